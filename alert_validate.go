package hangar

import (
	"net/mail"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// The bounds of parts of an AlertConfig, in bytes unless a unit is named.
const (
	maxAlertURL        = 2 << 10
	minAlertSecret     = 16
	maxAlertSecret     = 256
	maxAlertAddress    = 254 // RFC 5321
	maxAlertLabelValue = 1 << 10
	minAlertWait       = time.Second
	maxAlertWait       = time.Hour
	minAlertInterval   = 10 * time.Second
	maxAlertInterval   = 24 * time.Hour
	minAlertRepeat     = 5 * time.Minute
	maxAlertRepeat     = 30 * 24 * time.Hour
)

var (
	alertReceiverName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,62}$`)
	alertLabelName    = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]{0,127}$`)
)

// ValidAlertLabel reports whether an alert's label may have a name: at most 128 letters, digits and
// underscores. It must not begin with a digit, nor with two underscores, which mark reserved names.
func ValidAlertLabel(name string) bool {
	return alertLabelName.MatchString(name) && !strings.HasPrefix(name, "__")
}

// Validate answers CodeInvalid and names the field that is wrong. It does not parse the rules: see
// AlertHost.CheckAlertRules.
func (c AlertConfig) Validate() error {
	if err := ValidateAlertRules(c.Rules); err != nil {
		return err
	}
	if n := len(c.Receivers); n > MaxAlertReceivers {
		return Errorf(CodeInvalid, "", "invalid receivers: there are %d, more than the %d that are allowed", n, MaxAlertReceivers)
	}
	names := map[string]bool{}
	for _, r := range c.Receivers {
		if err := r.validate(); err != nil {
			return err
		}
		if names[r.Name] {
			return Errorf(CodeInvalid, "", "invalid receiver %q: the name is used twice", r.Name)
		}
		names[r.Name] = true
	}
	return c.Grouping.validate()
}

// ValidateAlertRules answers CodeInvalid for a rule file that is too large or not UTF-8.
func ValidateAlertRules(rules string) error {
	if n := len(rules); n > MaxAlertRulesBytes {
		return Errorf(CodeInvalid, "", "invalid rules: the file has %d bytes, more than the %d that are allowed", n, MaxAlertRulesBytes)
	}
	if !utf8.ValidString(rules) {
		return Errorf(CodeInvalid, "", "invalid rules: the file is not UTF-8")
	}
	return nil
}

func (r AlertReceiver) validate() error {
	invalid := func(format string, args ...any) error {
		return Errorf(CodeInvalid, "", "invalid receiver %q: "+format, append([]any{r.Name}, args...)...)
	}
	if !alertReceiverName.MatchString(r.Name) {
		return Errorf(CodeInvalid, "", "invalid receiver %.80q: the name must have 1 to 63 letters, digits, dashes and underscores, and begin with a letter or digit", r.Name)
	}
	if len(r.Match) > MaxAlertMatchLabels {
		return invalid("match has %d labels, more than the %d that are allowed", len(r.Match), MaxAlertMatchLabels)
	}
	for name, value := range r.Match {
		if !ValidAlertLabel(name) {
			return invalid("match: %.80q is no name of a label", name)
		}
		if len(value) > maxAlertLabelValue {
			return invalid("match: the value of %s has more than %d bytes", name, maxAlertLabelValue)
		}
	}
	switch {
	case (r.Webhook == nil) == (r.Email == nil):
		return invalid("exactly one of webhook and email must be there")
	case r.Webhook != nil:
		if problem := r.Webhook.problem(); problem != "" {
			return invalid("webhook.%s", problem)
		}
	default:
		if problem := r.Email.problem(); problem != "" {
			return invalid("email.to %s", problem)
		}
	}
	return nil
}

// problem describes the first fault, or returns "". It does not quote the URL, which may hold a
// credential.
func (w AlertWebhook) problem() string {
	u, err := url.Parse(w.URL)
	secret := len(w.Secret.Reveal())
	switch {
	case len(w.URL) > maxAlertURL:
		return "url is too long"
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "url must be like https://example.com/path"
	case u.Fragment != "" || u.User != nil:
		return "url must have neither a fragment nor a user"
	case w.Secret.IsZero():
		return "secret is required"
	case secret < minAlertSecret || secret > maxAlertSecret:
		return "secret must have 16 to 256 bytes"
	}
	return ""
}

func (e AlertEmail) problem() string {
	if len(e.To) == 0 || len(e.To) > MaxAlertRecipients {
		return "must have 1 to 10 addresses"
	}
	for _, to := range e.To {
		a, err := mail.ParseAddress(to)
		if err != nil || a.Address != to || len(to) > maxAlertAddress || strings.ContainsFunc(to, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return "must have addresses like ops@example.com, without names"
		}
	}
	return ""
}

func (g AlertGrouping) validate() error {
	if len(g.By) > MaxAlertGroupLabels {
		return Errorf(CodeInvalid, "", "invalid group_by: there are %d labels, more than the %d that are allowed", len(g.By), MaxAlertGroupLabels)
	}
	for _, name := range g.By {
		if name == AllLabels && len(g.By) == 1 {
			continue
		}
		if !ValidAlertLabel(name) {
			return Errorf(CodeInvalid, "", "invalid group_by: %.80q is no name of a label, or %q is not alone", name, AllLabels)
		}
	}
	for _, one := range []struct {
		field string
		d     Duration
		least time.Duration
		most  time.Duration
	}{
		{"group_wait", g.Wait, minAlertWait, maxAlertWait},
		{"group_interval", g.Interval, minAlertInterval, maxAlertInterval},
		{"repeat_interval", g.Repeat, minAlertRepeat, maxAlertRepeat},
	} {
		if d := time.Duration(one.d); d != 0 && (d < one.least || d > one.most) {
			return Errorf(CodeInvalid, "", "invalid %s: %s is not between %s and %s", one.field, d, one.least, one.most)
		}
	}
	return nil
}

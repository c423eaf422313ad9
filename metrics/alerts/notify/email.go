package notify

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	netmail "net/mail"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/wneessen/go-mail"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/fairsem"
)

// Mail is the SMTP server of the operator.
type Mail struct {
	Host        string
	Port        int
	ImplicitTLS bool   // from the first byte on (smtps)
	Plain       bool   // without any TLS, for a relay on the same server
	User        string // empty: no authentication
	Password    hangar.Sensitive
	From        string      // address of the sender
	TLS         *tls.Config // nil: the system's certificates
}

// The ports of SMTP: submission, and submission with TLS from the first byte on (RFC 8314).
const (
	portSubmission  = 587
	portSubmissions = 465
)

// ParseMail reads a URL, smtp://user:password@host:port or smtps://…, and the address of the sender.
// smtp requires STARTTLS unless the URL ends with ?tls=off. Errors do not repeat the URL.
func ParseMail(text, from string) (*Mail, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.Fragment != "" {
		return nil, errors.New("must be a URL such as smtp://user:password@mail.example.com:587")
	}
	m := &Mail{Host: u.Hostname(), Port: portSubmission}
	switch u.Scheme {
	case "smtp":
	case "smtps":
		m.ImplicitTLS, m.Port = true, portSubmissions
	default:
		return nil, errors.New("must begin with smtp:// or smtps://")
	}
	if port := u.Port(); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return nil, errors.New("has no port from 1 to 65535")
		}
		m.Port = int(n)
	}
	switch query := u.RawQuery; {
	case query == "tls=off" && !m.ImplicitTLS:
		m.Plain = true
	case query != "":
		return nil, errors.New("may have ?tls=off after smtp://, and no other parameter")
	}
	if u.User != nil {
		password, _ := u.User.Password()
		m.User, m.Password = u.User.Username(), hangar.NewSensitive(password)
		if m.Plain {
			return nil, errors.New("must not send a password without TLS")
		}
	}
	address, err := netmail.ParseAddress(from)
	if err != nil || address.Address != from {
		return nil, errors.New("the address of the sender must be like alerts@example.com")
	}
	m.From = from
	return m, nil
}

// mailer sends e-mails. Organizations share its connections fairly.
type mailer struct {
	mail  *Mail
	slots *fairsem.Semaphore[hangar.OrgID]
}

const mailConnections = 4

func newMailer(m *Mail) *mailer {
	return &mailer{m, fairsem.New[hangar.OrgID](mailConnections)}
}

var (
	errNoMail      = errors.New("this server sends no e-mail")
	errMailServer  = errors.New("the mail server of the platform cannot be reached")
	errMailRefused = errors.New("the mail server of the platform does not take the e-mail")
	errMailLater   = errors.New("the mail server of the platform does not take the e-mail now")
)

// mails records who has received the current e-mail of a group, so that only the others get it when it is sent
// again.
type mails struct {
	of       string          // the alerts that it is about
	received map[string]bool // by address
}

// missing returns those of the addresses that have not received the e-mail about a message.
func (s *mails) missing(m *message, to []string) []string {
	if of := m.changes(); s.of != of || s.received == nil {
		*s = mails{of: of, received: map[string]bool{}}
	}
	return slices.DeleteFunc(slices.Clone(to), func(address string) bool { return s.received[address] })
}

// unreached are addresses that the mail server refuses, while others have received the e-mail.
type unreached []string

// Error implements error.
func (u unreached) Error() string {
	return "the mail server of the platform does not take e-mails to " + strings.Join(u, ", ")
}

// send sends a message as one e-mail to each address, and records in m.mails who has received it. It returns
// unreached if only some are refused. Its errors are for tenants; logCause receives the cause.
func (s *mailer) send(ctx context.Context, org hangar.Org, to []string, m *message, external string, logCause func(error)) error {
	if s.mail == nil {
		return refusal{errNoMail}
	}
	var list []*mail.Msg
	for _, address := range to {
		msg, err := s.compose(org, address, m, external)
		if err != nil {
			logCause(err)
			return refusal{errMailRefused}
		}
		list = append(list, msg)
	}
	release, err := s.slots.Acquire(ctx, org.ID)
	if err != nil {
		return errMailServer
	}
	defer release()
	client, err := s.client(ctx)
	if err == nil {
		err = client.DialAndSendWithContext(ctx, list...)
	}
	if err != nil {
		logCause(err)
	}
	var later error
	var refused unreached
	for i, msg := range list {
		address := to[i]       //nolint:gosec // G602: there is one e-mail for each
		if msg.IsDelivered() { // whatever came after that
			m.mails.received[address] = true
			continue
		}
		// Only a reply of the server is a refusal (RFC 5321, section 4.2.1), a lost connection is none.
		e, _ := errors.AsType[*mail.SendError](msg.SendError())
		switch {
		case e != nil && e.ErrorCode()/100 == 5:
			refused = append(refused, address)
		case e != nil && e.ErrorCode()/100 == 4:
			later = errMailLater
		default:
			later = errMailServer
		}
	}
	switch {
	case later != nil:
		return later
	case len(refused) > 0 && len(m.mails.received) == 0:
		return refusal{errMailRefused}
	case len(refused) > 0:
		return refused
	}
	return nil
}

// client returns a client whose connection ends with ctx.
func (s *mailer) client(ctx context.Context) (*mail.Client, error) {
	config := s.mail.TLS.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.ServerName == "" {
		config.ServerName = s.mail.Host
	}
	options := []mail.Option{
		mail.WithPort(s.mail.Port), mail.WithTimeout(sendTimeout), mail.WithTLSConfig(config), mail.WithoutNoop(),
		mail.WithDialContextFunc(func(dialing context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(dialing, network, address)
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() { _ = conn.Close() })
			if s.mail.ImplicitTLS {
				secure := tls.Client(conn, config)
				if err := secure.HandshakeContext(dialing); err != nil {
					_ = conn.Close()
					return nil, err
				}
				return secure, nil
			}
			return conn, nil
		}),
	}
	switch {
	case s.mail.ImplicitTLS:
		options = append(options, mail.WithSSL())
	case s.mail.Plain:
		options = append(options, mail.WithTLSPolicy(mail.NoTLS))
	default:
		options = append(options, mail.WithTLSPolicy(mail.TLSMandatory))
	}
	if s.mail.User != "" {
		kind := mail.SMTPAuthAutoDiscover
		if s.mail.ImplicitTLS {
			kind = mail.SMTPAuthPlainNoEnc // the library does not know that the connection is encrypted
		}
		options = append(options, mail.WithSMTPAuth(kind), mail.WithUsername(s.mail.User), mail.WithPassword(s.mail.Password.Reveal()))
	}
	return mail.NewClient(s.mail.Host, options...)
}

// The bounds of an e-mail.
const (
	maxSubject  = 200 // characters
	maxMailed   = 50  // alerts
	maxMailText = 500 // characters of a label or annotation
)

// compose writes an e-mail. Each text of a tenant is on one line, so that it can neither end a header
// nor imitate the platform's own text.
func (s *mailer) compose(org hangar.Org, to string, m *message, external string) (*mail.Msg, error) {
	msg := mail.NewMsg()
	if err := errors.Join(msg.From(s.mail.From), msg.To(to)); err != nil {
		return nil, err
	}
	_, domain, _ := strings.Cut(s.mail.From, "@")
	msg.SetMessageIDWithValue(strings.ToLower(rand.Text()) + "@" + domain)
	msg.SetDate()
	msg.SetBulk()
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	msg.Subject(oneLine(m.subject(org), maxSubject))
	msg.SetBodyString(mail.TypeTextPlain, m.text(org, external))
	return msg, nil
}

func (m *message) subject(org hangar.Org) string {
	name := m.labels[hangar.AlertNameLabel]
	if name == "" {
		name = matchers(m.labels)
	}
	if n := len(m.firing); n > 0 {
		return fmt.Sprintf("[FIRING:%d] %s (%s)", n, name, org.Slug)
	}
	return fmt.Sprintf("[RESOLVED] %s (%s)", name, org.Slug)
}

func (m *message) text(org hangar.Org, external string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Alerts of the organization %s, group %s\n", org.Slug, oneLine(matchers(m.labels), maxMailText))
	for i, a := range m.all {
		if i == maxMailed {
			fmt.Fprintf(&b, "\n%d more alerts are not shown.\n", len(m.all)-maxMailed)
			break
		}
		fmt.Fprintf(&b, "\n%s %s\n", strings.ToUpper(string(a.State)), oneLine(a.Name, maxMailText))
		fmt.Fprintf(&b, "  labels: %s\n", oneLine(matchers(a.Labels), maxMailText))
		for _, name := range slices.Sorted(maps.Keys(a.Annotations)) {
			fmt.Fprintf(&b, "  %s: %s\n", name, oneLine(a.Annotations[name], maxMailText))
		}
		fmt.Fprintf(&b, "  value: %s\n  since: %s\n", a.Value, a.FiredAt.UTC().Format(time.RFC3339))
		if a.State == hangar.AlertResolved {
			fmt.Fprintf(&b, "  until: %s\n", a.ResolvedAt.UTC().Format(time.RFC3339))
		}
	}
	if external != "" {
		fmt.Fprintf(&b, "\nSent by %s; see `hangar alerts list`.\n", external)
	}
	return b.String()
}

// oneLine replaces characters that could start another line, and truncates a text.
func oneLine(text string, most int) string {
	n := 0
	return strings.Map(func(r rune) rune {
		n++
		switch {
		case n > most:
			return -1
		case unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Bidi_Control, r):
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

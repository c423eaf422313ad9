package check

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/provider"
)

// The bounds of a run.
const (
	// DefaultReadyWithin is how long an extension may take until it is ready.
	DefaultReadyWithin = 4 * time.Minute
	// answerWithin is how long the platform waits for an answer.
	answerWithin = 5 * time.Second
	// giveUpAfter is how long Run waits for one.
	giveUpAfter = 30 * time.Second
	// maxAnswer bounds the body of an answer, in bytes.
	maxAnswer = 1 << 20
	// firstLook and lastLook are the pauses between looks at an extension that is not ready.
	firstLook = 250 * time.Millisecond
	lastLook  = 5 * time.Second
)

// Config says which server is tried, and how.
type Config struct {
	// BaseURL is the provider's, as the platform would be given it.
	BaseURL string
	// Secret is the one for requests.
	Secret string
	// AuthorizeURL is where the provider sends a browser that is not signed in to it, such as
	// https://auth.example.com/oauth/authorize. Empty: it is not checked where it sends it.
	AuthorizeURL string
	// Webhooks are the webhooks that the provider sends to the platform during Run, see Receiver. Nil:
	// they are not checked.
	Webhooks *Receiver
	// ReadyWithin bounds how long the extension may take to be ready; 0 is DefaultReadyWithin.
	ReadyWithin time.Duration
	// HTTP sends the requests; nil is a client of its own. Redirects are never followed.
	HTTP *http.Client
}

// Outcome is how a rule was kept.
type Outcome string

// The outcomes.
const (
	Kept    Outcome = "kept"
	Broken  Outcome = "broken"
	Advised Outcome = "advised" // a provider SHOULD, and this one does not
	Skipped Outcome = "skipped" // it could not be tried
)

// Result is what was found of one rule.
type Result struct {
	Rule    string  `json:"rule"` // a few words, the same with every server
	Outcome Outcome `json:"outcome"`
	// Detail says what was sent and answered, unless the rule was kept. It has none of the server's
	// own words.
	Detail string `json:"detail,omitempty"`
}

// Run tries a server and reports each result as soon as it is known. It returns an error only when it
// could not begin, or ctx has ended; the extension that it has made is deleted in any case.
func Run(ctx context.Context, c Config, report func(Result)) error {
	if c.ReadyWithin == 0 {
		c.ReadyWithin = DefaultReadyWithin
	}
	client := http.Client{}
	if c.HTTP != nil {
		client = *c.HTTP
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	base := strings.TrimRight(c.BaseURL, "/")
	if _, err := provider.NewVerifier(provider.VerifierConfig{BaseURL: base, Secrets: []string{c.Secret}}); err != nil {
		return err // which says what is wrong with the base URL or the secret
	}
	name := "hangar-check-" + strings.ToLower(rand.Text()[:8])
	k := &checker{
		Config: c, base: base, client: &client, report: report,
		provision: provider.Provision{
			Name: name, ID: name, OrganizationID: name + "-org", OrganizationName: "Check of a provider",
			UserID: name + "-user", UserEmail: name + "@customer.example.com", UserRole: provider.RoleAdmin,
			PrimaryRegion: "loc", ReadRegions: []string{}, IPAddress: netip.MustParseAddr("fdaa::c4ec"),
		},
	}
	if !k.create(ctx) {
		return ctx.Err()
	}
	for _, step := range []func(context.Context){k.repeat, k.ready, k.unknownMembers, k.forgeries, k.update, k.signOn, k.events, k.nonsense} {
		if ctx.Err() != nil {
			break
		}
		step(ctx)
	}
	if ended := ctx.Err(); ended != nil {
		bounded, cancel := finish.Within(ctx, answerWithin)
		defer cancel()
		_, err := k.send(bounded, k.remove())
		return errors.Join(ended, err)
	}
	k.removed(ctx)
	k.webhooks(ctx)
	return ctx.Err()
}

// checker is one run.
type checker struct {
	Config
	base      string
	client    *http.Client
	report    func(Result)
	provision provider.Provision
	made      provider.Provisioned
}

func (k *checker) kept(rule string) { k.report(Result{Rule: rule, Outcome: Kept}) }

func (k *checker) broken(rule, format string, args ...any) {
	k.report(Result{Rule: rule, Outcome: Broken, Detail: fmt.Sprintf(format, args...)})
}

func (k *checker) advised(rule, format string, args ...any) {
	k.report(Result{Rule: rule, Outcome: Advised, Detail: fmt.Sprintf(format, args...)})
}

func (k *checker) skipped(rule, format string, args ...any) {
	k.report(Result{Rule: rule, Outcome: Skipped, Detail: fmt.Sprintf(format, args...)})
}

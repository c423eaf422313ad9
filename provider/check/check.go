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
	// DefaultReadyWithin is how long an extension may take to become ready.
	DefaultReadyWithin = 4 * time.Minute
	// answerWithin is how long the platform waits for an answer.
	answerWithin = 5 * time.Second
	// giveUpAfter is how long Run waits for an answer.
	giveUpAfter = 30 * time.Second
	// maxAnswer bounds the body of an answer, in bytes.
	maxAnswer = 1 << 20
	// firstLook and lastLook are the first and the longest pause between requests for an extension that is not ready.
	firstLook = 250 * time.Millisecond
	lastLook  = 5 * time.Second
)

// Config says which server to test, and how.
type Config struct {
	// BaseURL is the provider's base URL, as an operator would configure it on the platform.
	BaseURL string
	// Secret is the secret for requests.
	Secret string
	// AuthorizeURL is the URL to which the provider must redirect a browser that is not signed in, such as
	// https://auth.example.com/oauth/authorize. If it is empty, the redirect is not checked.
	AuthorizeURL string
	// Webhooks receives the webhooks that the provider sends during Run. If it is nil,
	// webhooks are not checked.
	Webhooks *Receiver
	// ReadyWithin bounds how long the extension may take to become ready; 0 is DefaultReadyWithin.
	ReadyWithin time.Duration
	// HTTP sends the requests; nil uses a new client. Redirects are never followed.
	HTTP *http.Client
}

// Outcome is the result of testing a rule.
type Outcome string

// The outcomes.
const (
	Kept    Outcome = "kept"
	Broken  Outcome = "broken"
	Advised Outcome = "advised" // a SHOULD that this provider does not follow
	Skipped Outcome = "skipped" // it could not be tested
)

// Result is the result for one rule.
type Result struct {
	Rule    string  `json:"rule"` // a few words, the same for every server
	Outcome Outcome `json:"outcome"`
	// Detail describes the request and the answer, unless the rule was kept. It contains no text
	// from the server.
	Detail string `json:"detail,omitempty"`
}

// Run tests a server and reports each result as soon as it is known. It returns an error only if it
// could not begin or ctx has ended. It always deletes the extension that it created.
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

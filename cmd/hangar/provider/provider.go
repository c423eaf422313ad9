// Package provider has the commands for developers of a provider of extensions.
package provider

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/provider/check"
)

// maxSecret bounds a file with a secret, in bytes.
const maxSecret = 4 << 10

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

// NewCommand returns `hangar provider`.
func NewCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("provider", "Build a provider of extensions")
	cmd.AddCommand(newCheckCommand(c))
	return cmd
}

const checkLong = `Test a provider's server: act as the platform and as an attacker, and report which rules
of the protocol it follows. No platform is needed. The check creates, uses and deletes an
extension whose name begins with hangar-check-.

With --webhook-url, the check receives webhooks at --webhook-listen. Configure the
server with that URL and with the secret in --webhook-secret-file.

The exit code is 1 if a rule is broken.`

// checkOptions are the flags of `hangar provider check`.
type checkOptions struct {
	secretFile, authorizeURL                     string
	webhookURL, webhookListen, webhookSecretFile string
	readyWithin                                  time.Duration
	asJSON                                       bool
}

func newCheckCommand(c commands) *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use: "check URL", Short: "Try whether a provider's server keeps the protocol", Long: checkLong, Args: cobra.ExactArgs(1),
		Example: "  hangar provider check https://logs.example.com --secret-file request.secret",
		RunE:    func(cmd *cobra.Command, args []string) error { return c.check(cmd.Context(), args[0], &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.secretFile, "secret-file", "", "file with the secret for requests; - is standard input")
	f.StringVar(&o.authorizeURL, "authorize-url", "", "URL to which the server must send a browser to sign in")
	f.StringVar(&o.webhookURL, "webhook-url", "", "webhook URL that the server is configured with")
	f.StringVar(&o.webhookListen, "webhook-listen", "127.0.0.1:8090", "address to receive webhooks at")
	f.StringVar(&o.webhookSecretFile, "webhook-secret-file", "", "file with the secret for webhooks")
	f.DurationVar(&o.readyWithin, "ready-within", check.DefaultReadyWithin, "how long an extension may take to be ready")
	cli.JSONFlag(cmd, &o.asJSON)
	if err := cmd.MarkFlagRequired("secret-file"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

// check runs and prints each result as it comes.
func (c commands) check(ctx context.Context, base string, o *checkOptions) error {
	secret, err := c.readSecret(o.secretFile)
	if err != nil {
		return err
	}
	config := check.Config{BaseURL: base, Secret: secret, AuthorizeURL: o.authorizeURL, ReadyWithin: o.readyWithin}
	if o.webhookURL != "" {
		receiver, stop, err := c.receive(ctx, o)
		if err != nil {
			return err
		}
		defer stop()
		config.Webhooks = receiver
	}
	counts := map[check.Outcome]int{}
	err = check.Run(ctx, config, func(r check.Result) {
		counts[r.Outcome]++
		c.show(r, o.asJSON)
	})
	if err != nil {
		return err
	}
	if !o.asJSON {
		fmt.Fprintf(c.Stdout, "\n%d rules followed, %d broken, %d not tested.\n", counts[check.Kept], counts[check.Broken], counts[check.Skipped])
	}
	if counts[check.Broken] > 0 {
		return cli.ExitStatus(1)
	}
	return nil
}

// marks begin the lines of results.
var marks = map[check.Outcome]string{check.Kept: "ok      ", check.Broken: "BROKEN  ", check.Advised: "advice  ", check.Skipped: "skipped "}

func (c commands) show(r check.Result, asJSON bool) {
	if asJSON {
		_ = c.PrintJSONLine(r) // the invocation fails if it cannot be written
		return
	}
	fmt.Fprintln(c.Stdout, marks[r.Outcome]+r.Rule)
	if r.Detail != "" {
		fmt.Fprintln(c.Stdout, strings.Repeat(" ", len(marks[r.Outcome]))+r.Detail)
	}
}

// readSecret reads a secret from a file, without line breaks at its end.
func (c commands) readSecret(path string) (string, error) {
	raw, err := c.ReadFile(path, maxSecret)
	secret := strings.TrimRight(string(raw), "\r\n")
	if err == nil && secret == "" {
		err = cli.UsageErrorf("the secret in %s is empty", path)
	}
	return secret, err
}

// receive serves the webhook URL until stop is called.
func (c commands) receive(ctx context.Context, o *checkOptions) (receiver *check.Receiver, stop func(), err error) {
	u, err := url.Parse(o.webhookURL)
	if err != nil || u.Host == "" {
		return nil, nil, cli.UsageErrorf("--webhook-url %q is not an absolute URL", o.webhookURL)
	}
	if o.webhookSecretFile == "" {
		return nil, nil, cli.UsageErrorf("--webhook-url needs --webhook-secret-file")
	}
	secret, err := c.readSecret(o.webhookSecretFile)
	if err != nil {
		return nil, nil, err
	}
	if receiver, err = check.NewReceiver(u.Scheme+"://"+u.Host, secret); err != nil {
		return nil, nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.webhookListen)
	if err != nil {
		return nil, nil, fmt.Errorf("--webhook-listen: %w", err)
	}
	server := &http.Server{Handler: receiver, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(c.Stderr, "webhooks:", err)
		}
	}()
	return receiver, func() {
		_ = server.Close() // the check is over
		<-served
	}, nil
}

// Package account has the commands about users of a platform: signing in, contexts, tokens and
// organizations.
package account

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

const loginLong = `Sign in at a platform from this computer. The token is checked and saved with the URL as a
context, which later commands use. The command prompts for the token, reads it from standard
input with --token-stdin, or takes it from HANGAR_TOKEN. ` + "`hangar tokens create`" + ` creates one.

The token is saved in the system's keyring (the Secret Service of D-Bus) if there is one, and
otherwise in a file that only you can read, ~/.config/hangar/contexts.json.

With --email you sign in as a user. The command prompts for the password, or reads it from
standard input with --password-stdin. The resulting token allows what you may do, for 30 days.
--code - sets the password first, with the code of an invitation or of a password reset. The command
prompts for the code, too, or with --password-stdin reads it from the line before the password. The
code itself as the value is visible to every user of this computer.

With --browser you sign in as a user with a browser on this computer, to the same effect; the
password never passes the terminal. --no-browser prints the page to open. The browser must reach a
port of this computer: over SSH, sign in with --email.

If no public authority has signed the server's certificate, --ca names the certificate of its
authority, whose fingerprint is printed for comparison. Without a URL, the context in use gets a
new token.

Exit codes: 2 plain HTTP to another computer, 3 no API at the URL, 6 the token is not valid, 7 no
answer, or an untrusted certificate.`

const loginExample = `  hangar login https://api.example.com
  hangar login https://api.example.com --email ann@example.com
  hangar login https://api.example.com --browser
  hangar login https://10.0.0.1:4280 --ca hangar-ca.pem --name lab --token-stdin < token`

// loginFlags are the flags of `hangar login`.
type loginFlags struct {
	name, ca, org string
	email, code   string // of a user
	passwordStdin bool
	browser       bool // sign in with a browser
	noBrowser     bool // the same, but only print the page
	fromStdin     bool
	noKeyring     bool
	asJSON        bool
}

// NewLoginCommand makes `hangar login`.
func NewLoginCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	var f loginFlags
	cmd := &cobra.Command{
		Use:               "login [URL]",
		Short:             "Sign in at a platform from this computer",
		Long:              loginLong,
		Example:           loginExample,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			x, err := c.newContext(f, args)
			if err != nil {
				return err
			}
			return c.login(cmd, f, x)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "name of the context (default the host)")
	flags.StringVar(&f.ca, "ca", "", "PEM file with the certificate of the server's own authority")
	flags.StringVar(&f.org, "org", "", "organization in which commands create things (default that of the token)")
	flags.BoolVar(&f.fromStdin, "token-stdin", false, "read the token from standard input")
	flags.StringVar(&f.email, "email", "", "sign in as the user with this address")
	flags.StringVar(&f.code, "code", "", "with --email: set the password first, with the code of an invitation or a reset; - to read it")
	flags.BoolVar(&f.passwordStdin, "password-stdin", false, "with --email: read the password from standard input")
	flags.BoolVar(&f.browser, "browser", false, "sign in as a user with a browser on this computer")
	flags.BoolVar(&f.noBrowser, "no-browser", false, "as --browser, but print the page instead of opening it")
	cmd.MarkFlagsMutuallyExclusive("email", "token-stdin", "browser", "no-browser")
	flags.BoolVar(&f.noKeyring, "no-keyring", false, "save the token in a file, even if there is a keyring")
	cli.JSONFlag(cmd, &f.asJSON)
	return cmd
}

// newContext returns the context to sign in at, without a token: for the URL of the argument, or the one in use.
func (c commands) newContext(f loginFlags, args []string) (cli.SavedContext, error) {
	var x cli.SavedContext
	switch {
	case len(args) == 1 && c.URL == "" && c.Context == "" && c.Dir == "":
		x.URL = cli.AddScheme(args[0])
	case len(args) == 1:
		return x, cli.UsageErrorf("the URL is an argument: remove --url, --context and --dir")
	default:
		all, err := c.Contexts()
		if err != nil {
			return x, err
		}
		found, err := c.ChosenContext(&all, nil)
		if err != nil {
			return x, cli.WithHint(err, "hangar login https://api.example.com; the daemon of this server needs no login")
		}
		x = *found
		x.Token, x.Keyring = "", false
	}
	if err := cli.CheckURL(x.URL); err != nil {
		return x, err
	}
	u, err := url.Parse(x.URL)
	if err != nil {
		return x, err
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return x, cli.UsageErrorf("invalid URL: must be like https://HOST or https://HOST:PORT, without a user name")
	}
	x.Name = cmp.Or(f.name, x.Name, u.Host, "unix")
	if !cli.ValidContextName(x.Name) {
		return x, cli.UsageErrorf("--name %q: must have up to 128 letters, digits, dots, dashes and colons, and not be %q", x.Name, cli.LocalContext)
	}
	if f.ca != "" {
		if x.CA, err = cli.ReadAuthorities(f.ca); err != nil {
			return x, err
		}
	}
	x.Org = hangar.OrgSlug(cmp.Or(f.org, string(x.Org)))
	x.Insecure = x.Insecure || c.Insecure
	return x, cli.Endpoint{URL: x.URL, Insecure: x.Insecure}.CheckPlain()
}

// login checks a token at the platform and saves the context.
func (c commands) login(cmd *cobra.Command, f loginFlags, x cli.SavedContext) error {
	roots, err := x.Roots()
	if err != nil {
		return err
	}
	c.Used = cli.Endpoint{URL: x.URL, Context: x.Name, Roots: roots}
	token, err := c.tokenOf(cmd.Context(), f, x, roots)
	if err != nil {
		return err
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return cli.UsageErrorf("the token is not valid: it has blanks or non-ASCII characters")
	}
	p := client.New(x.URL, token, client.WithRootCAs(roots))
	defer p.Close()
	tokens, err := p.CurrentTokens(cmd.Context())
	switch {
	case hangar.CodeOf(err) == hangar.CodeNotFound:
		return cli.WithHint(hangar.Errorf(hangar.CodeNotFound, "", "%s is not the API of a platform", x.URL), "if the platform serves a domain, the name of its API begins with api.: https://api.example.com")
	case hangar.CodeOf(err) == hangar.CodeUnauthenticated:
		return cli.WithHint(err, "the token is wrong, expired or revoked; `hangar tokens create` creates another one, on the server itself with sudo")
	case err != nil:
		return err
	case len(tokens) == 0:
		return cli.WithHint(hangar.Errorf(hangar.CodeUnauthenticated, "", "the server does not know the token"), "pass a valid one")
	}
	if x.Org == "" {
		if x.Org, err = orgOf(cmd.Context(), p, tokens); err != nil {
			return err
		}
	}
	where, err := c.KeepContext(&x, token, f.noKeyring)
	if err != nil {
		return err
	}
	if f.asJSON {
		return c.PrintJSON(viewContext(x, true))
	}
	fmt.Fprintf(c.Stdout, "Signed in at %s as %s.\n", x.URL, cmp.Or(tokens[0].User, tokens[0].Name))
	authority, err := x.Authority()
	if err != nil {
		return err
	}
	return c.PrintFields([]cli.Field{
		{"context", x.Name + ", in use from now on"},
		{"org", string(x.Org)},
		{"authority", authority},
		{"token", scopeOf(tokens[0]) + ", " + expires(tokens[0].Grant.Until) + "; kept in " + where},
	})
}

// tokenOf returns the token to sign in with: a new one of a user, or an existing one.
func (c commands) tokenOf(ctx context.Context, f loginFlags, x cli.SavedContext, roots *x509.CertPool) (string, error) {
	if f.browser || f.noBrowser {
		if f.code != "" || f.passwordStdin {
			return "", cli.UsageErrorf("--code and --password-stdin are for --email")
		}
		if strings.HasPrefix(x.URL, "unix:") {
			return "", cli.UsageErrorf("a browser cannot open %s: name the URL of the platform", x.URL)
		}
		p := client.New(x.URL, "", client.WithRootCAs(roots))
		defer p.Close()
		token, err := c.signInByBrowser(ctx, p, f.browser)
		return token.Reveal(), err
	}
	if f.email == "" {
		if f.code != "" || f.passwordStdin {
			return "", cli.UsageErrorf("--code and --password-stdin are for --email")
		}
		token := cmp.Or(c.Token, c.Getenv("HANGAR_TOKEN"))
		if !f.fromStdin && token != "" {
			return token, nil
		}
		secret, err := c.ReadSecret(f.fromStdin, "token", "hangar login URL --token-stdin < FILE", "Token for %s: ", x.URL)
		return secret.Reveal(), err
	}
	code, password, err := c.readCredentials(f, x.URL)
	if err != nil {
		return "", err
	}
	p := client.New(x.URL, "", client.WithRootCAs(roots))
	defer p.Close()
	if f.code != "" {
		if _, err := p.UseCode(ctx, hangar.CodeUse{Code: code, Password: password}); err != nil {
			return "", err
		}
	}
	made, err := p.SignIn(ctx, hangar.SignIn{Email: f.email, Password: password})
	if err != nil {
		return "", cli.WithHint(err, "if you have forgotten the password, ask an administrator of the platform for a code: hangar users password ADDRESS")
	}
	return made.Text, nil
}

// readCredentials returns the code of --code, if it is there, and the password.
func (c commands) readCredentials(f loginFlags, at string) (code, password hangar.Sensitive, err error) {
	code = hangar.NewSensitive(f.code)
	if f.code == "-" {
		code, err = c.ReadSecret(f.passwordStdin, "code", "hangar login URL --email ADDRESS --code - --password-stdin < FILE", "Code of %s at %s: ", f.email, at)
		if err != nil {
			return code, password, err
		}
		if f.passwordStdin {
			return twoLines(code, "the code and the password")
		}
	}
	ask := "Password of %s at %s: "
	if f.code != "" {
		ask = "New password of %s at %s: "
	}
	password, err = c.ReadSecret(f.passwordStdin, "password", "hangar login URL --email ADDRESS --password-stdin < FILE", ask, f.email, at)
	return code, password, err
}

// orgOf returns the only organization that all tokens are for, or "".
func orgOf(ctx context.Context, p *client.Client, tokens []*hangar.Token) (hangar.OrgSlug, error) {
	if tokens[0].Kind == hangar.TokenLogin {
		user, err := p.CurrentUser(ctx)
		if err != nil || len(user.Memberships) != 1 {
			return "", err
		}
		return user.Memberships[0].Org, nil
	}
	org := tokens[0].Grant.Org
	for _, t := range tokens {
		if t.Admin || t.Grant.Org != org {
			return "", nil
		}
	}
	return org, nil
}

// NewLogoutCommand makes `hangar logout`.
func NewLogoutCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	return &cobra.Command{
		Use:   "logout [CONTEXT]",
		Short: "Remove the token of a context, and revoke it if it comes from signing in",
		Long: "Remove the token of a context, by default of the one in use. `hangar login` signs in again.\n" +
			"A token that comes from signing in as a user is revoked. Others stay valid: `hangar tokens revoke` revokes them.",
		Example:           "  hangar logout\n  hangar logout lab",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.CompleteContext,
		RunE: func(cmd *cobra.Command, args []string) error {
			var before cli.SavedContext
			token := ""
			err := c.ChangeContexts(func(all *cli.Contexts) error {
				x, err := c.ChosenContext(all, args)
				if err != nil {
					return err
				}
				before = *x
				if token, err = c.TokenOf(x); err != nil {
					return err
				}
				return c.ForgetToken(x)
			})
			if err != nil {
				return err
			}
			if token != "" {
				c.endToken(cmd.Context(), before, token)
			}
			return c.Sayf("Signed out of %s. Sign in again: hangar login --context %s", before.Name, before.Name)
		},
	}
}

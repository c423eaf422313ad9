package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

const loginLong = `Sign in at a platform from this computer: the token is checked and kept with the URL as a
context, which later commands use. The token is asked for, read from standard input with
--token-stdin, or taken from HANGAR_TOKEN; ` + "`hangar tokens create`" + ` makes one.

It is kept in the system's keyring (the Secret Service of D-Bus) where there is one, and
otherwise in a file that only you can read, ~/.config/hangar/contexts.json.

A server whose certificate no public authority has signed needs --ca with the certificate
of its own; the fingerprint is shown, to compare. Without a URL, the context in use gets
another token.

Exit codes: 2 plain HTTP to another computer, 3 no API there, 6 the token is not valid, 7 no
answer, or a certificate that is not trusted.`

const loginExample = `  hangar login https://api.example.com
  hangar login https://10.0.0.1:4280 --ca hangar-ca.pem --name lab --token-stdin < token`

// loginFlags are what `hangar login` is told beside the URL.
type loginFlags struct {
	name, ca, org string
	fromStdin     bool
	noKeyring     bool
	asJSON        bool
}

func newLoginCommand(c *cli) *cobra.Command {
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
	flags.StringVar(&f.ca, "ca", "", "file with the certificate of the server's own authority, in PEM")
	flags.StringVar(&f.org, "org", "", "organization in which commands make things (default that of the token)")
	flags.BoolVar(&f.fromStdin, "token-stdin", false, "read the token from standard input")
	flags.BoolVar(&f.noKeyring, "no-keyring", false, "keep the token in a file, also where there is a keyring")
	jsonFlag(cmd, &f.asJSON)
	return cmd
}

// newContext is the context to sign in at, without a token: of the URL, or the one in use.
func (t *target) newContext(f loginFlags, args []string) (savedContext, error) {
	var x savedContext
	switch {
	case len(args) == 1 && t.url == "" && t.context == "":
		x.URL = completeURL(args[0])
	case len(args) == 1:
		return x, usageErrorf("the URL is an argument: --url and --context say nothing more")
	default:
		all, err := t.contexts()
		if err != nil {
			return x, err
		}
		name := cmp.Or(t.context, t.getenv("HANGAR_CONTEXT"), all.Current)
		if name == "" || name == localContext {
			return x, withHint(usageErrorf("which platform?"), "hangar login https://api.example.com; the daemon of this server needs no login")
		}
		found, err := all.find(name)
		if err != nil {
			return x, err
		}
		x = *found
		x.Token, x.Keyring = "", false
	}
	if err := checkURL(x.URL); err != nil {
		return x, err
	}
	u, err := url.Parse(x.URL)
	if err != nil {
		return x, err
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return x, usageErrorf("invalid URL: must be like https://HOST or https://HOST:PORT, without a user name")
	}
	x.Name = cmp.Or(f.name, x.Name, u.Host, "unix")
	if !validContextName(x.Name) {
		return x, usageErrorf("--name %q: must have up to 128 letters, digits, dots, dashes and colons, and not be %q", x.Name, localContext)
	}
	if f.ca != "" {
		if x.CA, err = readAuthorities(f.ca); err != nil {
			return x, err
		}
	}
	x.Org = hangar.OrgSlug(cmp.Or(f.org, string(x.Org)))
	x.Insecure = x.Insecure || t.insecure
	return x, endpoint{url: x.URL, insecure: x.Insecure}.checkPlain()
}

// login checks a token against the platform and keeps the context.
func (c *cli) login(cmd *cobra.Command, f loginFlags, x savedContext) error {
	roots, err := x.roots()
	if err != nil {
		return err
	}
	token := cmp.Or(c.token, c.getenv("HANGAR_TOKEN"))
	if f.fromStdin || token == "" {
		secret, err := c.readSecret(f.fromStdin, "token", "hangar login URL --token-stdin < FILE", "Token for %s: ", x.URL)
		if err != nil {
			return err
		}
		token = secret.Reveal()
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return usageErrorf("the token is not one: it has blanks or characters beyond ASCII")
	}
	c.used = endpoint{url: x.URL, context: x.Name, roots: roots}
	p := client.New(x.URL, token, client.WithRootCAs(roots))
	defer p.Close()
	tokens, err := p.CurrentTokens(cmd.Context())
	switch {
	case hangar.CodeOf(err) == hangar.CodeNotFound:
		return withHint(hangar.Errorf(hangar.CodeNotFound, "", "%s is not the API of a platform", x.URL), "its name begins with api. where the platform serves a domain: https://api.example.com")
	case hangar.CodeOf(err) == hangar.CodeUnauthenticated:
		return withHint(err, "the token is wrong, expired or revoked; `hangar tokens create` makes another, on the server itself with sudo")
	case err != nil:
		return err
	case len(tokens) == 0:
		return withHint(hangar.Errorf(hangar.CodeUnauthenticated, "", "the server knows no token"), "pass a valid one")
	}
	if x.Org == "" {
		x.Org = orgOf(tokens)
	}
	where, err := c.keepContext(&x, token, f.noKeyring)
	if err != nil {
		return err
	}
	if f.asJSON {
		return c.printJSON(viewContext(x, true))
	}
	fmt.Fprintf(c.stdout, "Signed in at %s as %s.\n", x.URL, cmp.Or(tokens[0].User, tokens[0].Name))
	authority, err := x.authority()
	if err != nil {
		return err
	}
	return c.printFields([]field{
		{"context", x.Name + ", in use from now on"},
		{"org", string(x.Org)},
		{"authority", authority},
		{"token", scopeOf(tokens[0].Grant) + ", " + expires(tokens[0].Grant.Until) + "; kept in " + where},
	})
}

// orgOf is the one organization that all tokens are for, or empty.
func orgOf(tokens []*hangar.Token) hangar.OrgSlug {
	org := tokens[0].Grant.Org
	for _, t := range tokens {
		if t.Admin || t.Grant.Org != org {
			return ""
		}
	}
	return org
}

// keepContext makes x the context in use. Its token goes to the keyring, unless inFile says
// otherwise, there is none or it refuses; where says for people where it is.
func (t *target) keepContext(x *savedContext, token string, inFile bool) (where string, err error) {
	dir, err := t.configDir()
	if err != nil {
		return "", err
	}
	where = dir + "/" + contextsFile + " (there is no keyring here)"
	if inFile {
		where = dir + "/" + contextsFile
	}
	if !inFile && t.keyring.here() {
		if err := t.keyring.set(x.Name, token); err == nil {
			x.Keyring, where = true, "the keyring"
		} else {
			where = fmt.Sprintf("%s/%s (the keyring refused it: %v)", dir, contextsFile, err)
		}
	}
	if !x.Keyring {
		x.Token = token
	}
	var before savedContext
	err = t.changeContexts(func(all *contexts) error {
		if i := all.index(x.Name); i >= 0 {
			before = all.Contexts[i]
		}
		all.put(*x)
		all.Current = x.Name
		return nil
	})
	if err == nil && before.Keyring && !x.Keyring {
		err = t.keyring.remove(x.Name) // an old token
	}
	return where, err
}

func newLogoutCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "logout [CONTEXT]",
		Short: "Forget the token of a context",
		Long: "Forget the token of a context, by default of the one in use. `hangar login` signs in again.\n" +
			"The token itself stays valid: `hangar tokens revoke` ends it.",
		Example:           "  hangar logout\n  hangar logout lab",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completeContext,
		RunE: func(_ *cobra.Command, args []string) error {
			name := ""
			err := c.changeContexts(func(all *contexts) error {
				x, err := c.chosenContext(all, args)
				if err != nil {
					return err
				}
				name = x.Name
				return c.forgetToken(x)
			})
			if err != nil {
				return err
			}
			return c.sayf("Signed out of %s. Sign in again: hangar login --context %s", name, name)
		},
	}
}

// forgetToken removes the token of a context.
func (t *target) forgetToken(x *savedContext) error {
	if x.Keyring {
		if err := t.keyring.remove(x.Name); err != nil {
			return fmt.Errorf("remove the token from the keyring: %w", err)
		}
	}
	x.Token, x.Keyring = "", false
	return nil
}

// chosenContext is the context that an argument names, or else the one in use.
func (t *target) chosenContext(all *contexts, args []string) (*savedContext, error) {
	name := cmp.Or(t.context, t.getenv("HANGAR_CONTEXT"), all.Current)
	if len(args) > 0 {
		name = args[0]
	}
	if name == "" || name == localContext {
		return nil, withHint(errors.New("the daemon of this server is in use, which is no context"), "name one, see `hangar context list`")
	}
	return all.find(name)
}

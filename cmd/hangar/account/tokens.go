package account

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/cmdline"
)

const aboutScopes = `Create, list and revoke API tokens.

A token allows what it was created for and nothing else, until it expires or is revoked.
It cannot allow more than the token that creates it. It is shown once; the platform keeps
only a digest. Give it to a program as HANGAR_TOKEN, or as "Authorization: Bearer TOKEN".`

// NewTokensCommand makes `hangar tokens`.
func NewTokensCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("tokens", "Create, list and revoke API tokens", "token")
	cmd.Long = aboutScopes
	cmd.AddCommand(newTokensCreateCommand(c), newTokensListCommand(c), newTokensRevokeCommand(c))
	return cmd
}

// tokenFlags are the flags of all kinds of tokens.
type tokenFlags struct {
	create   hangar.TokenCreate
	org      string
	apps     []string
	machines []string
	actions  []string
	commands []string
	prefixes []string
	asJSON   bool
}

// tokenKind is one kind of token as the command line offers it.
type tokenKind struct {
	kind    hangar.TokenKind
	use     string
	short   string
	example string
	args    cobra.PositionalArgs
	take    func(f *tokenFlags, args []string) // arguments; nil: none
	scoped  bool                               // takes --app
	machine bool                               // takes --machine
	command bool                               // takes --command
}

func tokenKinds() []tokenKind {
	return []tokenKind{
		{
			kind: hangar.TokenDeploy, use: "deploy APP...", short: "Everything in one App, or several",
			example: "  hangar tokens create deploy shop --expiry 720h", args: cobra.MinimumNArgs(1),
			take: func(f *tokenFlags, args []string) { f.apps = args },
		},
		{
			kind: hangar.TokenOrg, use: "org [ORG]", short: "Everything in an organization",
			example: "  hangar tokens create org acme --name ci", args: cobra.MaximumNArgs(1),
			take: func(f *tokenFlags, args []string) {
				if len(args) > 0 {
					f.org = args[0]
				}
			},
		},
		{
			kind: hangar.TokenReadOnly, use: "readonly", short: "See an organization, some of its Apps, or some Machines",
			example: "  hangar tokens create readonly --org acme\n  hangar tokens create readonly --app shop", args: cobra.NoArgs,
			scoped: true, machine: true,
		},
		{
			kind: hangar.TokenMachineExec, use: "machine-exec", short: "Execute some commands in Machines, and see them",
			example: "  hangar tokens create machine-exec --app shop --command 'rake db:migrate' --command-prefix 'rails runner'",
			args:    cobra.NoArgs, scoped: true, machine: true, command: true,
		},
		{
			kind: hangar.TokenMetrics, use: "metrics", short: "Query the metrics of an organization or some Apps, nothing else",
			example: "  hangar tokens create metrics --org acme --expiry never", args: cobra.NoArgs, scoped: true,
		},
		{
			kind: hangar.TokenCustom, use: "custom", short: "Only the named actions",
			example: "  hangar tokens create custom --app shop --machine d8912340000003 --action read,control", args: cobra.NoArgs,
			scoped: true, machine: true, command: true,
		},
	}
}

func newTokensCreateCommand(c commands) *cobra.Command {
	cmd := cli.Group("create", "Create a token; the last word printed is the token")
	for _, kind := range tokenKinds() {
		cmd.AddCommand(newTokenKindCommand(c, kind))
	}
	return cmd
}

func newTokenKindCommand(c commands, kind tokenKind) *cobra.Command {
	f := tokenFlags{create: hangar.TokenCreate{Kind: kind.kind}}
	cmd := &cobra.Command{
		Use: kind.use, Short: kind.short, Example: kind.example, Args: kind.args,
		RunE: func(cmd *cobra.Command, args []string) error {
			if kind.take != nil {
				kind.take(&f, args)
			}
			return c.createToken(cmd, &f)
		},
	}
	if kind.kind == hangar.TokenDeploy {
		cmd.ValidArgsFunction = c.CompleteApp
	}
	flags := cmd.Flags()
	flags.StringVar(&f.create.Name, "name", "", "name of the token (default made of its kind)")
	flags.StringVar(&f.create.User, "user", "", "the user that it stands for, e.g. a mail address (default you)")
	flags.StringVar(&f.create.Expiry, "expiry", "", `when it expires: a duration such as 720h, a time as in RFC 3339, or "never" (default 2160h, 90 days)`)
	flags.StringVar(&f.org, "org", "", "organization (default that of the App, yours, or personal)")
	if kind.scoped {
		flags.StringArrayVar(&f.apps, "app", nil, "only for this App; may be repeated")
	}
	if kind.machine {
		flags.StringArrayVar(&f.machines, "machine", nil, "only for the Machine with this id, of the one App; may be repeated")
	}
	if kind.command {
		flags.StringArrayVar(&f.commands, "command", nil, "allow exactly this command; may be repeated")
		flags.StringArrayVar(&f.prefixes, "command-prefix", nil, "allow every command that begins with these words; may be repeated")
	}
	if kind.kind == hangar.TokenCustom {
		flags.StringSliceVar(&f.actions, "action", nil, "what it allows: "+strings.Join(hangar.ActionAll.Names(), ", ")+"; may be repeated")
	}
	cli.JSONFlag(cmd, &f.asJSON)
	return cmd
}

func (c commands) createToken(cmd *cobra.Command, f *tokenFlags) error {
	in := f.create
	in.Org = hangar.OrgSlug(f.org)
	for _, app := range f.apps {
		in.Apps = append(in.Apps, hangar.AppName(app))
	}
	for _, id := range f.machines {
		in.Machines = append(in.Machines, hangar.MachineID(id))
	}
	var err error
	if in.Actions, err = hangar.ParseActions(f.actions); err != nil {
		return cli.UsageError{Err: err}
	}
	for i, line := range slices.Concat(f.commands, f.prefixes) {
		args, err := cmdline.Split(line)
		if err != nil {
			return cli.UsageErrorf("invalid command %q: %w", line, err)
		}
		in.Commands = append(in.Commands, hangar.CommandRule{Args: args, Exact: i < len(f.commands)})
	}
	p, err := c.Connect()
	if err != nil {
		return err
	}
	made, err := p.CreateToken(cmd.Context(), in)
	if err != nil {
		return err
	}
	if f.asJSON {
		return c.PrintJSON(struct {
			Text string `json:"token"`
			hangar.Token
		}{made.Text, made.Token})
	}
	// Standard output has only the token: HANGAR_TOKEN=$(hangar tokens create …).
	fmt.Fprintf(c.Stderr, "token %s for %s; it %s. It is not shown again.\n", made.ID, scopeOf(&made.Token), expires(made.Grant.Until))
	return c.Sayf("%s", made.Text)
}

// scopeOf describes what a token is for.
func scopeOf(t *hangar.Token) string {
	switch g := t.Grant; {
	case t.Kind == hangar.TokenLogin:
		return "all that the user may do"
	case t.Kind == hangar.TokenSession:
		return "the pages of the platform"
	case len(g.Machines) > 0:
		return fmt.Sprintf("%s/%s", g.Apps[0], strings.Join(cli.Texts(g.Machines), ","))
	case len(g.Apps) > 0:
		return strings.Join(cli.Texts(g.Apps), ",")
	case g.Org == "":
		return "everything"
	default:
		return "all of " + string(g.Org)
	}
}

func expires(at time.Time) string {
	if at.IsZero() {
		return "never expires"
	}
	return "expires " + at.Format(time.DateOnly)
}

func newTokensListCommand(c commands) *cobra.Command {
	var org, app string
	cmd := &cobra.Command{Use: "list", Short: "List tokens, without their secrets", Args: cobra.NoArgs}
	cmd.Flags().StringVar(&org, "org", "", "only tokens of this organization")
	cmd.Flags().StringVar(&app, "app", "", "only tokens that are for this App")
	return cli.Listing(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) ([]*hangar.Token, error) {
		return p.Tokens(ctx, hangar.TokenFilter{Org: hangar.OrgSlug(org), App: hangar.AppName(app)})
	}), cli.Table[*hangar.Token]{
		Head: []string{"ID", "NAME", "KIND", "FOR", "USER", "EXPIRES", "USED"},
		Row: func(now time.Time, t *hangar.Token) []string {
			until := "never"
			if at := t.Grant.Until; !at.IsZero() {
				until = at.Format(time.DateOnly)
				if !at.After(now) {
					until = "expired"
				}
			}
			return []string{string(t.ID), cli.Short(t.Name, 30), string(t.Kind), scopeOf(t), cli.Short(t.User, 30), until, cli.Ago(now, t.LastUsed)}
		},
		Names: "ids", Hint: "No tokens yet. Make one: hangar tokens create --help",
	})
}

func newTokensRevokeCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use: "revoke TOKEN...", Short: "Revoke tokens by id or name, at once", Args: cobra.MinimumNArgs(1),
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			for _, t := range args {
				if err := p.RevokeToken(ctx, t); err != nil {
					return err
				}
				fmt.Fprintf(c.Stdout, "Token %s is revoked.\n", t)
			}
			return nil
		}),
	}
}

package account

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// NewOIDCCommand makes `hangar oidc`.
func NewOIDCCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("oidc", "Identity tokens of Machines, and the keys that sign them")
	cmd.AddCommand(newOIDCTokenCommand(c), newOIDCKeysCommand(c), newOIDCRotateCommand(c))
	return cmd
}

const oidcTokenLong = `Print an identity token of a Machine: a JSON Web Token that third parties, such as cloud
providers, verify. It is valid for 15 minutes. A Machine requests its own token from within,
see docs/identity.md; this command is for tests of a third party. The Machine must run.`

func newOIDCTokenCommand(c commands) *cobra.Command {
	var in hangar.IdentityTokenRequest
	cmd := &cobra.Command{
		Use:               "token APP [MACHINE]",
		Short:             "Print an identity token of a Machine",
		Long:              oidcTokenLong,
		Example:           "  hangar oidc token shop web-1 --aud sts.amazonaws.com",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.CompleteMachine,
		RunE: c.OnMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			token, err := p.IssueIdentityToken(ctx, m.Ref(), in)
			if err != nil {
				return err
			}
			return c.Sayf("%s", token)
		}),
	}
	cmd.Flags().StringVar(&in.Audience, "aud", "", "the intended recipient (default: the platform's address with the organization)")
	cmd.Flags().BoolVar(&in.AWSPrincipalTags, "aws-principal-tags", false, "add the tags by which AWS policies distinguish Machines")
	return cmd
}

const oidcKeysLong = `List the keys that sign identity tokens, oldest first. All of them are published:
the next one before it signs, and retired ones until all tokens that they
have signed have expired. Only an administrator may do this.`

func newOIDCKeysCommand(c commands) *cobra.Command {
	return newSigningKeysCommand(c, &cobra.Command{
		Use:   "keys",
		Short: "List the keys that sign identity tokens",
		Long:  oidcKeysLong,
	}, (*client.Client).SigningKeys)
}

const oidcRotateLong = `Replace the key that signs identity tokens before its time. The next key, which is already
published, signs from now on, and another one is created to follow it. Third parties need no
notice, and tokens that were signed before stay valid until they expire. A next key that is
new signs as soon as it has been published for long enough; until then, repeating the command
changes nothing.

Keys are also replaced automatically: see --oidc-rotate-every of ` + "`hangar up`" + `. Only an
administrator may do this.`

func newOIDCRotateCommand(c commands) *cobra.Command {
	return newSigningKeysCommand(c, &cobra.Command{
		Use:   "rotate",
		Short: "Replace the key that signs identity tokens",
		Long:  oidcRotateLong,
	}, (*client.Client).RotateSigningKey)
}

// newSigningKeysCommand completes a command that prints the keys that do returns.
func newSigningKeysCommand(c commands, cmd *cobra.Command, do func(*client.Client, context.Context) ([]hangar.SigningKey, error)) *cobra.Command {
	cmd.Args = cobra.NoArgs
	return cli.Listing(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) ([]hangar.SigningKey, error) {
		return do(p, ctx)
	}), cli.Table[hangar.SigningKey]{
		Head: []string{"KEY", "STATE", "SIGNS FROM", "UNTIL"},
		Row: func(_ time.Time, k hangar.SigningKey) []string {
			return []string{k.ID, string(k.State), moment(k.NotBefore), moment(k.NotAfter)}
		},
	})
}

// moment formats a time in UTC.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.DateTime) + " UTC"
}

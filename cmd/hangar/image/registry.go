package image

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// NewRegistryCommand makes `hangar registry`.
func NewRegistryCommand(c *cli.Invocation) *cobra.Command {
	cmd := cli.Group("registry", "Sign in at registries from which images are pulled", "registries")
	cmd.AddCommand(newRegistryLoginCommand(c), newRegistryListCommand(c), newRegistryLogoutCommand(c))
	return cmd
}

const registryLoginLong = `Store a user name and a password, or token, with which the platform pulls images from
a registry. They are encrypted, are used from the next pull on, and take precedence over
` + "`docker login`" + ` on the server. What exists
needs no sign-in: Machines, and references with a digest that the organization has pulled.`

const registryLoginExample = `  hangar registry login ghcr.io -u me --password-stdin < token
  hangar registry login docker.io -u me`

func newRegistryLoginCommand(c *cli.Invocation) *cobra.Command {
	var (
		user      string
		fromStdin bool
	)
	cmd := &cobra.Command{
		Use:     "login HOST -u USER",
		Short:   "Sign in at a registry",
		Long:    registryLoginLong,
		Example: registryLoginExample,
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringVarP(&user, "username", "u", "", "user name")
	cmd.Flags().BoolVar(&fromStdin, "password-stdin", false, "read the password, or token, from standard input")
	return cli.Answering(c, cmd, cli.Asked(c, func(ctx context.Context, p *client.Client, args []string) (hangar.RegistryCredential, error) {
		if user == "" {
			return hangar.RegistryCredential{}, cli.UsageErrorf("-u is missing: the user name for the registry")
		}
		password, err := c.ReadSecret(fromStdin, "password", "hangar registry login … --password-stdin < FILE", "Password of %s at %s: ", user, args[0])
		if err != nil {
			return hangar.RegistryCredential{}, err
		}
		return p.SetRegistryCredential(ctx, args[0], hangar.RegistryLogin{Username: user, Password: password})
	}), func(made hangar.RegistryCredential) error {
		return c.Sayf("Images of %s are pulled as %s from now on. The next pull shows whether the registry accepts that.", made.Registry, made.Username)
	})
}

func newRegistryListCommand(c *cli.Invocation) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the registries at which the platform signs in", Args: cobra.NoArgs}
	return cli.Listing(c, cmd, cli.Asked(c, func(ctx context.Context, p *client.Client, _ []string) ([]hangar.RegistryCredential, error) {
		return p.RegistryCredentials(ctx)
	}), cli.Table[hangar.RegistryCredential]{
		Head: []string{"REGISTRY", "USER", "UPDATED"},
		Row: func(now time.Time, r hangar.RegistryCredential) []string {
			return []string{r.Registry, r.Username, cli.Ago(now, r.UpdatedAt)}
		},
		Names: "registries", Hint: "No registries yet. Sign in: hangar registry login HOST -u USER",
	})
}

func newRegistryLogoutCommand(c *cli.Invocation) *cobra.Command {
	return &cobra.Command{
		Use: "logout HOST", Short: "Remove the credentials for a registry", Args: cobra.ExactArgs(1),
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			err := p.DeleteRegistryCredential(ctx, args[0])
			if hangar.CodeOf(err) == hangar.CodeNotFound {
				return cli.WithHint(err, "see `hangar registry list`")
			}
			if err != nil {
				return err
			}
			return c.Sayf("Signed out of %s.", args[0])
		}),
	}
}

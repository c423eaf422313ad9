package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

func newRegistryCommand(c *cli) *cobra.Command {
	cmd := group("registry", "Sign in at registries that images are pulled from", "registries")
	cmd.AddCommand(newRegistryLoginCommand(c), newRegistryListCommand(c), newRegistryLogoutCommand(c))
	return cmd
}

const registryLoginLong = `Keep a user name and a password, or token, with which the platform pulls images from
a registry. They are encrypted, count for the next pull, and come before what
` + "`docker login`" + ` has left on the server. Images that are there need no sign-in.`

const registryLoginExample = `  hangar registry login ghcr.io -u me --password-stdin < token
  hangar registry login docker.io -u me`

func newRegistryLoginCommand(c *cli) *cobra.Command {
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
	return answering(c, cmd, asked(c, func(ctx context.Context, p *client.Client, args []string) (hangar.RegistryCredential, error) {
		if user == "" {
			return hangar.RegistryCredential{}, usageErrorf("-u is missing: who signs in?")
		}
		password, err := c.readSecret(fromStdin, "password", "hangar registry login … --password-stdin < FILE", "Password of %s at %s: ", user, args[0])
		if err != nil {
			return hangar.RegistryCredential{}, err
		}
		return p.SetRegistryCredential(ctx, args[0], hangar.RegistryLogin{Username: user, Password: password})
	}), func(made hangar.RegistryCredential) error {
		return c.sayf("Images of %s are pulled as %s from now on. Whether the registry agrees shows with the next pull.", made.Registry, made.Username)
	})
}

// maxPasswordInput bounds what is read of standard input, in bytes.
const maxPasswordInput = hangar.MaxRegistryPassword + 2

// readSecret reads a password or a token from standard input or asks a person, who does
// not see it. There is no flag for it: the command line is visible to every user of the
// computer. what is the word for it, pipe an example that pipes it in.
func (s *streams) readSecret(fromStdin bool, what, pipe, format string, args ...any) (hangar.Sensitive, error) {
	var raw []byte
	var err error
	stdin, _ := s.stdin.(*os.File)
	switch {
	case fromStdin:
		raw, err = io.ReadAll(io.LimitReader(s.stdin, maxPasswordInput))
	case isTerminal(s.stdin) && isTerminal(s.stderr):
		fmt.Fprintf(s.stderr, format, args...)
		raw, err = term.ReadPassword(int(stdin.Fd()))
		fmt.Fprintln(s.stderr)
	default:
		return hangar.Sensitive{}, usageErrorf("--%s-stdin is missing: without a terminal there is no prompt for the %s", what, what)
	}
	if err != nil {
		return hangar.Sensitive{}, fmt.Errorf("read the %s: %w", what, err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	if password == "" {
		return hangar.Sensitive{}, withHint(fmt.Errorf("the %s is empty", what), "pipe it in: "+pipe)
	}
	return hangar.NewSensitive(password), nil
}

func newRegistryListCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the registries that the platform signs in at", Args: cobra.NoArgs}
	return listing(c, cmd, asked(c, func(ctx context.Context, p *client.Client, _ []string) ([]hangar.RegistryCredential, error) {
		return p.RegistryCredentials(ctx)
	}), table[hangar.RegistryCredential]{
		head: []string{"REGISTRY", "USER", "UPDATED"},
		row: func(now time.Time, r hangar.RegistryCredential) []string {
			return []string{r.Registry, r.Username, ago(now, r.UpdatedAt)}
		},
		names: "registries", hint: "No registries yet. Sign in: hangar registry login HOST -u USER",
	})
}

func newRegistryLogoutCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "logout HOST", Short: "Forget the credentials for a registry", Args: cobra.ExactArgs(1),
		RunE: c.connected(func(ctx context.Context, p *client.Client, args []string) error {
			err := p.DeleteRegistryCredential(ctx, args[0])
			if hangar.CodeOf(err) == hangar.CodeNotFound {
				return withHint(err, "see `hangar registry list`")
			}
			if err != nil {
				return err
			}
			return c.sayf("Signed out of %s.", args[0])
		}),
	}
}

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/account"
	"github.com/hangar-platform/hangar/cmd/hangar/alert"
	"github.com/hangar-platform/hangar/cmd/hangar/app"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/db"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy"
	"github.com/hangar-platform/hangar/cmd/hangar/extension"
	"github.com/hangar-platform/hangar/cmd/hangar/host"
	"github.com/hangar-platform/hangar/cmd/hangar/image"
	"github.com/hangar-platform/hangar/cmd/hangar/machine"
	"github.com/hangar-platform/hangar/cmd/hangar/metric"
	"github.com/hangar-platform/hangar/cmd/hangar/network"
	"github.com/hangar-platform/hangar/cmd/hangar/platform"
	"github.com/hangar-platform/hangar/cmd/hangar/provider"
	"github.com/hangar-platform/hangar/cmd/hangar/reference"
	"github.com/hangar-platform/hangar/cmd/hangar/secret"
	"github.com/hangar-platform/hangar/cmd/hangar/volume"
	"github.com/hangar-platform/hangar/cmd/hangar/webhook"
)

const rootLong = `hangar turns a Linux server into a hosting platform: it runs any OCI image as a
fast-launching Machine behind one REST API.

First steps, as root:

  hangar doctor                           is this server ready?
  hangar up                               start the platform; Ctrl-C leaves Machines running
  hangar apps create hello                in another terminal
  hangar machine run hello nginx:alpine --port 80:80

Where commands find the daemon, first match wins:

  --url, --token, --context, --dir        flags
  HANGAR_URL, HANGAR_TOKEN,               environment
  HANGAR_CONTEXT, HANGAR_DIR
  hangar login, hangar context use        the context in use
  DIR/api.addr, DIR/admin.token           files of the local daemon

Exit codes:

  0  done             3  not found                          6  not allowed, or no valid token
  1  failed           4  timed out                          7  the platform cannot be reached or
  2  wrong usage      5  refused: conflict or wrong state      is full
  machine exec and ssh console exit with the code of the command, or with 125 if it
  could not be run.`

// newRootCommand builds the whole command tree for one invocation.
func newRootCommand(c *cli.Invocation) *cobra.Command {
	root := &cobra.Command{
		Use:     "hangar",
		Short:   "A hosting platform in one binary",
		Long:    rootLong,
		Version: c.Build.Version,
		Args:    cli.NoSuchCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("hangar {{.Version}}\n")
	root.AddGroup(
		&cobra.Group{ID: "use", Title: "Use the platform:"},
		&cobra.Group{ID: "run", Title: "Run the platform:"},
	)
	for _, cmd := range []*cobra.Command{
		deploy.NewCommand(c), deploy.NewLaunchCommand(c), deploy.NewScaleCommand(c), deploy.NewReleasesCommand(c), deploy.NewFileCommand(c),
		app.NewCommand(c), app.NewServicesCommand(c), app.NewLogsCommand(c), metric.NewCommand(c), alert.NewCommand(c), webhook.NewCommand(c),
		machine.NewCommand(c), machine.NewChecksCommand(c), machine.NewSSHCommand(c),
		volume.NewCommand(c), db.NewCommand(c),
		network.NewIPsCommand(c), network.NewCertsCommand(c), network.NewProxyCommand(c), network.NewWireguardCommand(c),
		secret.NewCommand(c, deploy.Again(c)), secret.NewKeysCommand(c),
		extension.NewExtensionsCommand(c),
		image.NewCommand(c), image.NewRegistryCommand(c),
		account.NewLoginCommand(c), account.NewLogoutCommand(c), account.NewContextCommand(c),
		account.NewOrgsCommand(c), account.NewUsersCommand(c), account.NewTokensCommand(c), account.NewOIDCCommand(c),
		provider.NewCommand(c),
		short("run", machine.NewCommand(c), "run"), short("ps", machine.NewCommand(c), "list"), short("status", app.NewCommand(c), "status"),
	} {
		cmd.GroupID = "use"
		root.AddCommand(cmd)
	}
	for _, cmd := range []*cobra.Command{platform.NewUpCommand(c), platform.NewDownCommand(c), platform.NewDoctorCommand(c), platform.NewConfigCommand(c), host.NewCommand(c), platform.NewStateCommand(c), extension.NewProvidersCommand(c)} {
		cmd.GroupID = "run"
		root.AddCommand(cmd)
	}
	root.AddCommand(deploy.NotOffered()...)
	root.AddCommand(platform.NewVersionCommand(c), platform.NewGuardCommand(c), reference.NewCommand(c))
	return root
}

// short adds a command of a group to the root, too, under a name that users try first.
func short(name string, group *cobra.Command, of string) *cobra.Command {
	cmd, _, err := group.Find([]string{of})
	if err != nil {
		panic(err) // tests build the tree, too
	}
	group.RemoveCommand(cmd)
	_, arguments, _ := strings.Cut(cmd.Use, " ")
	cmd.Use, cmd.Aliases = strings.TrimSpace(name+" "+arguments), nil
	cmd.Short += ", as `hangar " + group.Name() + " " + of + "`"
	cmd.Flags().AddFlagSet(group.PersistentFlags())
	return cmd
}

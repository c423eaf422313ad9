package main

import (
	"github.com/spf13/cobra"
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
  1  failed           4  the time to wait ran out           7  the platform cannot be reached or
  2  wrong usage      5  refused: conflict or wrong state      has no room
  machine exec and ssh console pass the code of the command through; 125 means that it
  did not run.`

// newRootCommand builds the whole command tree for one invocation.
func newRootCommand(c *cli) *cobra.Command {
	root := &cobra.Command{
		Use:   "hangar",
		Short: "A hosting platform in one binary",
		Long:  rootLong,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(
		&cobra.Group{ID: "use", Title: "Use the platform:"},
		&cobra.Group{ID: "run", Title: "Run the platform:"},
	)
	for _, cmd := range []*cobra.Command{
		newAppsCommand(c), newMachineCommand(c), newChecksCommand(c), newServicesCommand(c), newIPsCommand(c), newSecretsCommand(c), newSecretKeysCommand(c), newImageCommand(c),
		newRegistryCommand(c), newLogsCommand(c), newAlertsCommand(c), newSSHCommand(c), newProxyCommand(c), newOrgsCommand(c), newTokensCommand(c),
		newOIDCCommand(c), newWireguardCommand(c), newVolumesCommand(c), newCertsCommand(c),
		newLoginCommand(c), newLogoutCommand(c), newContextCommand(c),
	} {
		cmd.GroupID = "use"
		root.AddCommand(cmd)
	}
	for _, cmd := range []*cobra.Command{newUpCommand(c), newDownCommand(c), newDoctorCommand(c), newConfigCommand(c)} {
		cmd.GroupID = "run"
		root.AddCommand(cmd)
	}
	root.AddCommand(newVersionCommand(c), newGuardCommand(c))
	return root
}

// group is a command that only holds others: alone it shows its help, and a word
// that is none of its commands is a usage error.
func group(use, short string, aliases ...string) *cobra.Command {
	return &cobra.Command{
		Use:     use,
		Short:   short,
		Aliases: aliases,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}

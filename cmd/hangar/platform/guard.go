package platform

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/host/volume"
)

// guardCommand is the command with which the daemon starts this program to guard a file system that it has frozen.
const guardCommand = "guard-volume"

// NewGuardCommand returns the command that only the daemon runs.
func NewGuardCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	return &cobra.Command{
		Use: guardCommand + " DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return volume.Guard(args[0], os.Stdin, c.Stdout) },
	}
}

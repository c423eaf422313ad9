// Package machine has the commands about Machines: to run, change, list and destroy them, and to work
// inside of them.
package machine

import (
	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

const machineLong = `Run and manage Machines.

A Machine is named by its App and its id or name: ` + "`hangar machine stop hello 3d8d413b29d089`" + `.
If an App has exactly one Machine, the App is enough.

A leased Machine can be changed only with the nonce of the lease, in --nonce or
HANGAR_LEASE_NONCE: see ` + "`hangar machine lease`" + `.`

// NewCommand makes `hangar machine`.
func NewCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("machine", "Run and manage Machines", "machines", "m")
	cmd.Long = machineLong
	cmd.AddCommand(
		newRunCommand(c), newCreateCommand(c), newCloneCommand(c), newUpdateCommand(c),
		newListCommand(c), newStatusCommand(c), newEventsCommand(c), newPsCommand(c),
		newStartCommand(c), newStopCommand(c), newSuspendCommand(c), newRestartCommand(c),
		newDestroyCommand(c), newSignalCommand(c), newWaitCommand(c), newExecCommand(c),
		newCordonCommand(c), newUncordonCommand(c), newMetadataCommand(c), newLeaseCommand(c), newBusyCommand(c),
	)
	cmd.PersistentFlags().StringVar(&c.LeaseNonce, "nonce", "", "nonce of the Machine's lease (or HANGAR_LEASE_NONCE)")
	return cmd
}

// Package machine has the commands about Machines: running, changing, listing and ending them, and what
// is done inside of them.
package machine

import (
	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

const machineLong = `Run and look after Machines.

A Machine is named by its App and its id or name: ` + "`hangar machine stop hello 3d8d413b29d089`" + `.
Where an App has exactly one Machine, its name may be left out.

A Machine that is leased is changed only by a caller that shows the nonce of the
lease, with --nonce or HANGAR_LEASE_NONCE; see ` + "`hangar machine lease`" + `.`

// NewCommand makes `hangar machine`.
func NewCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("machine", "Run and look after Machines", "machines", "m")
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

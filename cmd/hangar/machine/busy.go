package machine

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

const busyLong = `Prevent autostop of a Machine for some time from now.

A Machine whose services have autostop is idle when no request or connection of the edge
is open. If it still has work to do, it can be kept running, for at most 24h at a time:

  hangar machine busy hello 0123456789abcd 30m
  hangar machine busy hello 0123456789abcd 0

0 ends that. Programs in the Machine can do the same over a socket, without a token: see
docs/guest.md.`

func newBusyCommand(c commands) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "busy APP [MACHINE] DURATION",
		Short:             "Prevent autostop of a Machine for some time",
		Long:              busyLong,
		Args:              cobra.RangeArgs(2, 3),
		ValidArgsFunction: c.CompleteMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			ttl, err := time.ParseDuration(args[last])
			if err != nil {
				return cli.UsageErrorf("invalid duration %q: must be like 30m", args[last])
			}
			p, m, err := c.OneMachine(cmd.Context(), args[:last])
			if err != nil {
				return err
			}
			busy, err := p.KeepMachineBusy(cmd.Context(), m.Ref(), ttl)
			switch {
			case err != nil:
				return err
			case asJSON:
				return c.PrintJSON(busy)
			case busy.Until.IsZero():
				fmt.Fprintf(c.Stdout, "Machine %s is stopped when it is idle\n", m.ID)
			default:
				fmt.Fprintf(c.Stdout, "Machine %s is busy until %s\n", m.ID, busy.Until.Local().Format(time.DateTime))
			}
			return nil
		},
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

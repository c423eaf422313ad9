package machine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// NewChecksCommand makes `hangar checks`.
func NewChecksCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("checks", "See the health checks of Machines")
	cmd.AddCommand(newChecksListCommand(c))
	return cmd
}

// machineChecks is a Machine as --json prints it.
type machineChecks struct {
	Machine hangar.MachineID      `json:"machine_id"`
	State   hangar.MachineState   `json:"state"`
	Checks  []hangar.MachineCheck `json:"checks"`
}

func newChecksListCommand(c commands) *cobra.Command {
	var f cli.ListFlags
	cmd := &cobra.Command{
		Use: "list APP [MACHINE]", Aliases: []string{"ls"}, Short: "List the health checks of an App's Machines",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteMachine,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			machines, err := cli.FindMachines(ctx, p, hangar.AppName(args[0]), args[1:], len(args) == 1)
			if err != nil {
				return err
			}
			list := []machineChecks{}
			for _, m := range machines {
				list = append(list, machineChecks{m.ID, m.State, cli.OrEmpty(m.Checks)})
			}
			return c.PrintList(f, list, healthRows(machines), "No checks. Checks come from the config of a Machine: checks and services[].checks")
		}),
	}
	cli.JSONFlag(cmd, &f.AsJSON)
	return cmd
}

// healthRows returns the table of checks.
func healthRows(machines []*hangar.Machine) [][]string {
	now := time.Now()
	rows := [][]string{{"CHECK", "STATUS", "MACHINE", "CHANGED", "OUTPUT"}}
	for _, m := range machines {
		for _, k := range m.Checks {
			rows = append(rows, []string{k.Name, string(k.Status), string(m.ID), cli.Ago(now, k.UpdatedAt), cli.Short(strings.Join(strings.Fields(k.Output), " "), 60)})
		}
	}
	return rows
}

// scheduleText describes the scheduled run of an event.
func scheduleText(run *hangar.ScheduledRun) string {
	text := "scheduled for " + run.Due.UTC().Format(time.RFC3339)
	if run.Missed > 0 {
		text += fmt.Sprintf(", missed %d since %s: %s", run.Missed, run.Since.UTC().Format(time.RFC3339), run.Reason)
	}
	return text
}

package volume

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/cli/follow"
)

const drillLong = `Test whether snapshots can be restored: restore a random snapshot of an App temporarily,
check its file system, compare its digest, and remove it again.

The platform also does this every week. The exit code is 1 if the drill does not pass.`

func newDrillCommand(c *commands) *cobra.Command {
	var asJSON, detach, show bool
	cmd := &cobra.Command{
		Use:               "drill [APP]",
		Short:             "Test whether a snapshot of an App can be restored",
		Long:              drillLong,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completeVolumesApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			if detach && show {
				return cli.UsageErrorf("--show does not start a drill: leave out --detach")
			}
			app, err := c.theApp(args)
			if err != nil {
				return err
			}
			p, err := c.Connect()
			if err != nil {
				return err
			}
			var drill *hangar.VolumeDrill
			if show {
				drill, err = p.VolumeDrill(cmd.Context(), app)
			} else {
				drill, err = p.DrillVolumes(cmd.Context(), app)
			}
			switch {
			case hangar.ReasonOf(err) == hangar.ReasonWrongState:
				return cli.WithHint(err, fmt.Sprintf("see `hangar volumes drill %s --show`", app))
			case hangar.ReasonOf(err) == hangar.ReasonSnapshotNotFound:
				return cli.WithHint(err, "take a snapshot first: hangar volumes snapshots create "+string(app))
			case hangar.CodeOf(err) == hangar.CodeNotFound && hangar.ReasonOf(err) != hangar.ReasonAppNotFound && show:
				return cli.WithHint(err, "start one: hangar volumes drill "+string(app))
			case err != nil:
				return err
			}
			if !detach && !show {
				if drill, err = follow.Drill(cmd.Context(), p, drill, c.WorkProgress(asJSON)); err != nil {
					return err
				}
			}
			if asJSON {
				err = c.PrintJSON(drill)
			} else {
				err = c.printDrill(drill)
			}
			if err == nil && !drill.FinishedAt.IsZero() && !drill.Passed {
				err = cli.WithHint(fmt.Errorf("the drill did not pass: snapshot %s cannot be relied on", drill.Snapshot),
					fmt.Sprintf("take a new snapshot and drill again; see `hangar volumes events %s %s`", drill.App, drill.Volume))
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "return at once")
	cmd.Flags().BoolVar(&show, "show", false, "show the latest drill instead of starting one")
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func (c *commands) printDrill(d *hangar.VolumeDrill) error {
	result, took := "passed", ""
	switch {
	case d.FinishedAt.IsZero():
		result = "under way"
		if d.Progress.Total > 0 {
			result += fmt.Sprintf(" (%d%%)", d.Progress.Done*100/d.Progress.Total)
		}
	case !d.Passed:
		result = strings.TrimSuffix("FAILED: "+d.Fault, ": ")
	}
	if !d.FinishedAt.IsZero() {
		took = cli.Brief(d.FinishedAt.Sub(d.StartedAt))
	}
	return c.PrintFields([]cli.Field{
		{"Result", result},
		{"Snapshot", string(d.Snapshot)},
		{"Volume", string(d.Volume)},
		{"Restored", progressText(d.Progress)},
		{"Started", cli.Ago(time.Now(), d.StartedAt)},
		{"Took", took},
	})
}

func progressText(p hangar.Progress) string {
	if p.Total == 0 {
		return ""
	}
	return fmt.Sprintf("%s of %s", cli.Bytes(p.Done), cli.Bytes(p.Total))
}

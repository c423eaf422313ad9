package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

const extendLong = `Extend a volume to a size in GB, or by a size with a plus sign.

A running Machine keeps running and sees the new size at once. If the server cannot do that,
the Machine sees it when it starts next, and the command says so. A volume cannot shrink.`

func newExtendCommand(c *commands) *cobra.Command {
	var (
		yes  bool
		size string
	)
	cmd := &cobra.Command{
		Use:               "extend [APP] [VOLUME] --size GB",
		Short:             "Extend a volume",
		Long:              extendLong,
		Example:           "  hangar volumes extend hello data --size 20\n  hangar volumes extend hello data --size +5",
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: c.completeVolume,
	}
	cmd.Flags().StringVarP(&size, "size", "s", "", "new size in GB, or +GB to add")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "has no effect; accepted for compatibility")
	_ = cmd.Flags().MarkHidden("yes")
	return cli.AnsweringAs(c.Invocation, cmd, func(cmd *cobra.Command, args []string) (hangar.VolumeExtended, error) {
		p, v, err := c.oneVolume(cmd.Context(), args, kept)
		if err != nil {
			return hangar.VolumeExtended{}, err
		}
		if size == "" {
			return hangar.VolumeExtended{}, cli.UsageErrorf("give the new size with --size GB or --size +GB")
		}
		wanted, err := newSize(v.SizeGB, size)
		if err != nil {
			return hangar.VolumeExtended{}, err
		}
		extended, err := p.ExtendVolume(cmd.Context(), v.Ref(), wanted)
		if hangar.ReasonOf(err) == hangar.ReasonWrongState {
			err = cli.WithHint(err, fmt.Sprintf("see `hangar volumes show %s %s`", v.App, v.ID))
		}
		return extended, err
	}, func(extended hangar.VolumeExtended) extendedOutput {
		return extendedOutput{volumeJSON(extended.Volume), extended.NeedsRestart}
	}, func(extended hangar.VolumeExtended) error {
		now := extended.Volume
		err := c.Sayf("Volume %s (%s) has %s.", now.ID, now.Name, cli.GB(now.SizeGB))
		if err != nil || !extended.NeedsRestart {
			return err
		}
		return c.Sayf("Its Machine sees the new size after a restart: hangar machine restart %s %s", now.App, now.AttachedMachine)
	})
}

// extendedOutput is the JSON output for an extended volume.
type extendedOutput struct {
	Volume       volumeOutput `json:"volume"`
	NeedsRestart bool         `json:"needs_restart"`
}

// newSize returns the new size in GB of a volume with has GB. text is a size or +GB.
func newSize(has int, text string) (int, error) {
	more, adds := strings.CutPrefix(text, "+")
	n, err := parseGB("--size", more)
	switch {
	case err != nil:
		return 0, err
	case adds && has+n > hangar.MaxVolumeGB:
		return 0, cli.UsageErrorf("invalid --size %s: the volume has %d GB, and %d is the most", text, has, hangar.MaxVolumeGB)
	case adds:
		return has + n, nil
	}
	return n, nil
}

func newUpdateCommand(c *commands) *cobra.Command {
	var (
		scheduled bool
		retention int
	)
	cmd := &cobra.Command{
		Use:               "update [APP] [VOLUME]",
		Short:             "Change how snapshots of a volume are taken",
		Long:              "Change how snapshots of a volume are taken. Existing snapshots keep their retention.",
		Example:           "  hangar volumes update hello data --snapshot-retention 30\n  hangar volumes update hello data --scheduled-snapshots=false",
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: c.completeVolume,
	}
	cmd.Flags().IntVar(&retention, "snapshot-retention", 0, "days to keep new snapshots, from 1 to 60")
	cmd.Flags().BoolVar(&scheduled, "scheduled-snapshots", true, "take a snapshot every day; =false: on demand only")
	return cli.AnsweringAs(c.Invocation, cmd, func(cmd *cobra.Command, args []string) (*hangar.Volume, error) {
		var in hangar.VolumeUpdate
		if cmd.Flags().Changed("snapshot-retention") {
			if err := checkRetention(retention); err != nil {
				return nil, err
			}
			in.SnapshotRetention = &retention
		}
		if cmd.Flags().Changed("scheduled-snapshots") {
			in.AutoBackup = &scheduled
		}
		if in == (hangar.VolumeUpdate{}) {
			return nil, cli.UsageErrorf("give --snapshot-retention or --scheduled-snapshots")
		}
		p, v, err := c.oneVolume(cmd.Context(), args, kept)
		if err != nil {
			return nil, err
		}
		return p.UpdateVolume(cmd.Context(), v.Ref(), in)
	}, volumeJSON, func(v *hangar.Volume) error {
		return c.Sayf("Volume %s (%s): snapshots %s.", v.ID, v.Name, snapshotPlan(v))
	})
}

func snapshotPlan(v *hangar.Volume) string {
	when := "on demand only"
	if v.AutoBackup {
		when = "every day"
	}
	return fmt.Sprintf("%s, kept for %s", when, cli.Plural(v.SnapshotRetention, "day", "days"))
}

func newDestroyCommand(c *commands) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "destroy [APP] VOLUME...",
		Aliases: []string{"rm", "delete"},
		Short:   "Destroy volumes",
		Long: "Destroy volumes that no Machine has. For 24 hours, unless the space is needed earlier,\n`hangar volumes undelete` restores one; " +
			"then its key and its data are lost. Its snapshots are kept until their retention ends.",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.completeVolume,
		RunE: func(cmd *cobra.Command, args []string) error {
			app, names, err := c.split(args)
			if err != nil {
				return err
			}
			if len(names) == 0 {
				return cli.UsageErrorf("name the volumes of App %s to destroy", app)
			}
			p, err := c.Connect()
			if err != nil {
				return err
			}
			var volumes []*hangar.Volume
			for _, name := range names {
				v, err := c.find(cmd.Context(), p, app, name, kept)
				if err != nil {
					return err
				}
				if !slices.ContainsFunc(volumes, func(x *hangar.Volume) bool { return x.ID == v.ID }) {
					volumes = append(volumes, v)
				}
			}
			if err := c.ConfirmUnless(yes, "Destroy %s?", volumeNames(volumes)); err != nil {
				return err
			}
			var failed []error
			for _, v := range volumes {
				_, err := p.DestroyVolume(cmd.Context(), v.Ref())
				if hangar.ReasonOf(err) == hangar.ReasonVolumeAttached && v.AttachedMachine != "" {
					err = cli.WithHint(err, fmt.Sprintf("destroy its Machine first: hangar machine destroy %s %s", v.App, v.AttachedMachine))
				}
				if err != nil {
					failed = append(failed, err)
					continue
				}
				fmt.Fprintf(c.Stdout, "Volume %s (%s) is destroyed. It can be undeleted for 24 hours, unless the space is needed: hangar volumes undelete %s %s\n",
					v.ID, v.Name, v.App, v.ID)
			}
			return errors.Join(failed...)
		},
	}
	cli.YesFlag(cmd, &yes)
	return cmd
}

func volumeNames(volumes []*hangar.Volume) string {
	var names []string
	for _, v := range volumes {
		names = append(names, fmt.Sprintf("volume %s (%s, %s) of App %s", v.ID, v.Name, cli.GB(v.SizeGB), v.App))
	}
	return strings.Join(names, ", ")
}

func newUndeleteCommand(c *commands) *cobra.Command {
	return cli.AnsweringAs(c.Invocation, &cobra.Command{
		Use:               "undelete [APP] [VOLUME]",
		Aliases:           []string{"undestroy"},
		Short:             "Restore a destroyed volume within 24 hours",
		Long:              "Restore a destroyed volume within 24 hours, unless its space was needed for other volumes. `hangar volumes list --all` shows destroyed volumes.",
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: c.completeVolume,
	}, func(cmd *cobra.Command, args []string) (*hangar.Volume, error) {
		p, v, err := c.oneVolume(cmd.Context(), args, undeletable)
		if err != nil {
			return nil, err
		}
		back, err := p.UndeleteVolume(cmd.Context(), v.Ref())
		if hangar.ReasonOf(err) == hangar.ReasonWrongState {
			err = cli.WithHint(err, fmt.Sprintf("see `hangar volumes list %s --all`; a lost volume can be restored from a snapshot: hangar volumes snapshots list %s %s",
				v.App, v.App, v.ID))
		}
		return back, err
	}, volumeJSON, func(v *hangar.Volume) error {
		return c.Sayf("Volume %s (%s) is restored.", v.ID, v.Name)
	})
}

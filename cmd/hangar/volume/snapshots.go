package volume

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/cli/follow"
)

const snapshotsLong = `Take snapshots of volumes, and restore them.

A snapshot has the content of a volume at one moment, as after a loss of power: data that a
program has synced is in it. It can be taken while a Machine writes, stores only data that no
earlier one has, and is kept until its retention ends, even if its volume is destroyed.`

func newSnapshotsCommand(c *commands) *cobra.Command {
	cmd := cli.Group("snapshots", "Take, list and restore snapshots", "snapshot", "snap")
	cmd.Long = snapshotsLong
	cmd.AddCommand(newSnapshotsListCommand(c), newSnapshotsCreateCommand(c), newSnapshotsRestoreCommand(c))
	return cmd
}

func newSnapshotsListCommand(c *commands) *cobra.Command {
	var f cli.ListFlags
	cmd := &cobra.Command{
		Use:               "list [APP] [VOLUME]",
		Aliases:           []string{"ls"},
		Short:             "List the snapshots of a volume, newest first",
		Long:              "List the snapshots of a volume, newest first. For a destroyed volume, give the App and the volume's id.",
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: c.completeVolume,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, ref, err := c.snapshotsOf(cmd.Context(), args)
			if err != nil {
				return err
			}
			snapshots, err := p.Snapshots(cmd.Context(), ref)
			if err != nil {
				return err
			}
			return c.PrintList(f, snapshotsJSON(snapshots), snapshotRows(snapshots),
				fmt.Sprintf("No snapshots. Take one: hangar volumes snapshots create %s %s", ref.App, ref.ID))
		},
	}
	f.Add(cmd, "ids")
	return cmd
}

// snapshotsOf returns the volume of the arguments [APP] [VOLUME]. The volume may be destroyed if its App and its id are
// given.
func (c *commands) snapshotsOf(ctx context.Context, args []string) (*client.Client, hangar.VolumeRef, error) {
	app, names, err := c.split(args)
	if err == nil && app != "" && len(names) == 1 && hangar.VolumeID(names[0]).Valid() {
		p, err := c.Connect()
		return p, hangar.VolumeRef{App: app, ID: hangar.VolumeID(names[0])}, err
	}
	p, v, err := c.oneVolume(ctx, args, anyVolume)
	if err != nil {
		return nil, hangar.VolumeRef{}, err
	}
	return p, v.Ref(), nil
}

// snapshotOutput is the JSON output for a snapshot, with the names of the API.
type snapshotOutput struct {
	*hangar.Snapshot
	FrozenMS int64 `json:"frozen_ms"`
	Frozen   any   `json:"frozen,omitempty"` // the API does not have it
}

func snapshotJSON(s *hangar.Snapshot) snapshotOutput {
	return snapshotOutput{Snapshot: s, FrozenMS: s.Frozen.Milliseconds()}
}

func snapshotsJSON(snapshots []*hangar.Snapshot) []snapshotOutput {
	list := make([]snapshotOutput, 0, len(snapshots))
	for _, s := range snapshots {
		list = append(list, snapshotJSON(s))
	}
	return list
}

func snapshotRows(snapshots []*hangar.Snapshot) [][]string {
	now := time.Now()
	rows := [][]string{{"ID", "STATE", "KIND", "STORED", "VOLUME", "DIGEST", "CREATED", "KEPT UNTIL"}}
	for _, s := range snapshots {
		kind := "on demand"
		if s.Daily {
			kind = "daily"
		}
		var stored, digest string
		if s.State == hangar.SnapshotCreated {
			stored, digest = cli.Bytes(s.Size), cli.Short(strings.TrimPrefix(s.Digest, "sha256:"), digestShown)
		}
		rows = append(rows, []string{
			string(s.ID), snapshotStateText(s), kind, stored, cli.Bytes(s.VolumeSize), digest, cli.Ago(now, s.CreatedAt), s.Expires().UTC().Format("2006-01-02"),
		})
	}
	return rows
}

// digestShown is how many characters of a digest are shown.
const digestShown = 13

func snapshotStateText(s *hangar.Snapshot) string {
	switch {
	case s.State == hangar.SnapshotRunning && s.Progress.Total > 0:
		return fmt.Sprintf("%s (%d%%)", s.State, s.Progress.Done*100/s.Progress.Total)
	case s.Fault != "":
		return string(s.State) + ": " + cli.Short(s.Fault, 40)
	}
	return string(s.State)
}

func newSnapshotsCreateCommand(c *commands) *cobra.Command {
	var asJSON, quiet, detach bool
	cmd := &cobra.Command{
		Use:               "create [APP] [VOLUME]",
		Aliases:           []string{"add"},
		Short:             "Take a snapshot of a volume",
		Long:              "Take a snapshot of a volume, even while a Machine writes to it. Ctrl-C ends the command, not the snapshot.",
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: c.completeVolume,
		RunE: c.onVolume(kept, func(ctx context.Context, p *client.Client, v *hangar.Volume) error {
			began := time.Now()
			s, err := p.CreateSnapshot(ctx, v.Ref())
			see := fmt.Sprintf("hangar volumes snapshots list %s %s", v.App, v.ID)
			if hangar.ReasonOf(err) == hangar.ReasonSnapshotRunning {
				err = cli.WithHint(err, "wait for its end; see `"+see+"`")
			}
			if err == nil && !detach {
				s, err = follow.Snapshot(ctx, p, v.Ref(), s, c.WorkProgress(asJSON || quiet))
			}
			switch {
			case err != nil:
				return err
			case asJSON:
				return c.PrintJSON(snapshotJSON(s))
			case quiet:
				fmt.Fprintln(c.Stdout, s.ID)
			case detach:
				fmt.Fprintf(c.Stdout, "Snapshot %s of volume %s is %s; see `%s`\n", s.ID, v.ID, s.State, see)
			default:
				fmt.Fprintf(c.Stdout, "Created snapshot %s of volume %s (%s) in %s: %s stored of %s%s.\n",
					s.ID, v.ID, v.Name, cli.Brief(time.Since(began)), cli.Bytes(s.Size), cli.Bytes(s.VolumeSize), waited(s))
				fmt.Fprintf(c.Stdout, "  restore it: hangar volumes snapshots restore %s %s\n", v.App, s.ID)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "return at once")
	cli.JSONFlag(cmd, &asJSON)
	cli.QuietFlag(cmd, &quiet, "the id")
	return cmd
}

// waited returns how long a snapshot kept writers waiting, if that is known.
func waited(s *hangar.Snapshot) string {
	if s.Frozen == 0 {
		return ""
	}
	return ", writes waited " + cli.Brief(s.Frozen)
}

const snapshotsRestoreLong = `Restore a snapshot into a new volume of the same size as the original, or larger with
--size. The original volume is not changed.

The new volume can be mounted once it is filled and its content matches the
digest of the snapshot.`

func newSnapshotsRestoreCommand(c *commands) *cobra.Command {
	var (
		f    fillFlags
		name string
	)
	cmd := &cobra.Command{
		Use:               "restore [APP] SNAPSHOT",
		Short:             "Restore a snapshot into a new volume",
		Long:              snapshotsRestoreLong,
		Example:           "  hangar volumes snapshots restore hello vs_0123456789abcdefghij --name data_old",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.completeSnapshot,
		RunE: func(cmd *cobra.Command, args []string) error {
			app, names, err := c.split(args)
			if err != nil {
				return err
			}
			if len(names) != 1 || !hangar.SnapshotID(names[0]).Valid() {
				return cli.UsageErrorf("give the id of the snapshot, like vs_0123456789abcdefghij")
			}
			in, err := f.volumeCreate(cmd)
			if err != nil {
				return err
			}
			p, err := c.Connect()
			if err != nil {
				return err
			}
			in.Snapshot, in.Name = hangar.SnapshotID(names[0]), name
			if app == "" || name == "" {
				of, err := snapshotSource(cmd.Context(), p, app, in.Snapshot)
				if err != nil {
					return err
				}
				app, in.Name = of.App, cmp.Or(name, of.Name)
			}
			v, err := c.createVolume(cmd.Context(), p, app, in, &f)
			if v != nil && f.asJSON {
				err = cmp.Or(err, c.PrintJSON(volumeJSON(v)))
			}
			return err
		},
	}
	f.add(cmd, "that of the original")
	f.addFollow(cmd)
	cmd.Flags().BoolVar(&f.plain, "no-encryption", false, "keep the data as it is on the server's disk")
	cmd.Flags().StringVarP(&name, "name", "n", "", "name of the new volume (default that of the original)")
	return cmd
}

// snapshotSource finds the volume of a snapshot, in one App or in all.
func snapshotSource(ctx context.Context, p *client.Client, app hangar.AppName, id hangar.SnapshotID) (*hangar.Volume, error) {
	apps := []hangar.AppName{app}
	if app == "" {
		all, err := p.Apps(ctx, hangar.AppFilter{})
		if err != nil {
			return nil, err
		}
		apps = nil
		for _, a := range all {
			apps = append(apps, a.Name)
		}
	}
	for _, app := range apps {
		volumes, err := p.Volumes(ctx, app)
		if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
			return nil, err
		}
		for _, v := range volumes {
			switch _, err := follow.FindSnapshot(ctx, p, v.Ref(), id); {
			case err == nil:
				return v, nil
			case hangar.CodeOf(err) != hangar.CodeNotFound:
				return nil, err
			}
		}
	}
	return nil, cli.WithHint(hangar.Errorf(hangar.CodeNotFound, hangar.ReasonSnapshotNotFound, "no volume has a snapshot %s", id),
		"if its volume is destroyed, give its App and a name for the new volume: hangar volumes snapshots restore APP "+string(id)+" --name NAME")
}

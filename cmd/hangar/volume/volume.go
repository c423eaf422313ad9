// Package volume has the commands for volumes and their snapshots.
package volume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

const volumesLong = `Keep data: volumes, which Machines mount, and snapshots of them.

Name a volume by its App and its id or name: ` + "`hangar volumes show hello data`" + `. The id
alone is enough, and so is the App alone if it has exactly one volume. --app
names the App for all commands below.

Give a Machine a volume when you create it: hangar machine run hello IMAGE --volume data:/data`

// commands is `hangar volumes`: an invocation, and the flag that all its commands share.
type commands struct {
	*cli.Invocation
	app string // the value of --app; empty: the App is the first argument
}

// NewCommand returns `hangar volumes`.
func NewCommand(inv *cli.Invocation) *cobra.Command {
	v := &commands{Invocation: inv}
	cmd := cli.Group("volumes", "Manage volumes and their snapshots", "volume", "vol")
	cmd.Long = volumesLong
	cmd.PersistentFlags().StringVarP(&v.app, "app", "a", "", "App of the volumes, instead of the first argument")
	_ = cmd.RegisterFlagCompletionFunc("app", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return inv.CompleteApp(cmd, nil, prefix)
	})
	cmd.AddCommand(
		newCreateCommand(v), newListCommand(v), newShowCommand(v), newExtendCommand(v),
		newForkCommand(v), newUpdateCommand(v), newDestroyCommand(v), newUndeleteCommand(v), newPurgeCommand(v),
		newEventsCommand(v), newSnapshotsCommand(v), newDrillCommand(v),
	)
	return cmd
}

// split divides arguments into an App and the names of things in it. The App is empty if the first name is an id,
// which needs no App.
func (c *commands) split(args []string) (hangar.AppName, []string, error) {
	switch {
	case c.app != "":
		return hangar.AppName(c.app), args, nil
	case len(args) == 0:
		return "", nil, cli.UsageErrorf("give the App as the first argument or with --app")
	case hangar.VolumeID(args[0]).Valid() || hangar.SnapshotID(args[0]).Valid():
		return "", args, nil
	}
	return hangar.AppName(args[0]), args[1:], nil
}

// theApp returns the App of arguments that have nothing else.
func (c *commands) theApp(args []string) (hangar.AppName, error) {
	app, rest, err := c.split(args)
	if err == nil && (app == "" || len(rest) > 0) {
		err = cli.UsageErrorf("give only the App")
	}
	return app, err
}

// kept, undeletable and anyVolume choose the volumes that a name on the command line can refer to.
func kept(v *hangar.Volume) bool { return !v.State.Gone() }

func undeletable(v *hangar.Volume) bool { return v.State == hangar.VolumePendingDestroy }

func anyVolume(*hangar.Volume) bool { return true }

// find returns the volume with the given id or name, or the App's only volume for an empty name. meant chooses among
// the volumes with the name; it is not called for an id.
func (c *commands) find(
	ctx context.Context, p *client.Client, app hangar.AppName, name string, meant func(*hangar.Volume) bool,
) (*hangar.Volume, error) {
	if id := hangar.VolumeID(name); id.Valid() {
		if app == "" {
			return volumeAnywhere(ctx, p, id)
		}
		return p.Volume(ctx, hangar.VolumeRef{App: app, ID: id})
	}
	if app == "" {
		return nil, cli.UsageErrorf("%q is not the id of a volume: give the App as the first argument or with --app", name)
	}
	volumes, err := p.Volumes(ctx, app)
	if err != nil {
		return nil, err
	}
	volumes = slices.DeleteFunc(volumes, func(v *hangar.Volume) bool { return !meant(v) || name != "" && v.Name != name })
	switch len(volumes) {
	case 1:
		return volumes[0], nil
	case 0:
		what := fmt.Sprintf("no volume %q", name)
		if name == "" {
			what = "no volume"
		}
		return nil, cli.WithHint(hangar.Errorf(hangar.CodeNotFound, hangar.ReasonVolumeNotFound, "App %s has %s", app, what),
			fmt.Sprintf("see `hangar volumes list %s --all`, or create one: hangar volumes create %s NAME", app, app))
	}
	var named []string
	for _, v := range volumes {
		named = append(named, fmt.Sprintf("%s (%s, %s)", v.ID, v.Name, v.State))
	}
	return nil, cli.WithHint(cli.UsageErrorf("App %s has %d such volumes: give an id", app, len(volumes)), "one of "+strings.Join(named, ", "))
}

// volumeAnywhere looks for a volume in all Apps, first in those with the most volumes.
func volumeAnywhere(ctx context.Context, p *client.Client, id hangar.VolumeID) (*hangar.Volume, error) {
	apps, err := p.Apps(ctx, hangar.AppFilter{})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(apps, func(a, b *hangar.App) int { return cmp.Compare(b.VolumeCount, a.VolumeCount) })
	for _, app := range apps {
		v, err := p.Volume(ctx, hangar.VolumeRef{App: app.Name, ID: id})
		if hangar.CodeOf(err) != hangar.CodeNotFound {
			return v, err
		}
	}
	return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonVolumeNotFound, "no App has volume %s", id)
}

// oneVolume finds the volume of the arguments [APP] [VOLUME].
func (c *commands) oneVolume(ctx context.Context, args []string, meant func(*hangar.Volume) bool) (*client.Client, *hangar.Volume, error) {
	app, names, err := c.split(args)
	if err != nil {
		return nil, nil, err
	}
	if len(names) > 1 {
		return nil, nil, cli.UsageErrorf("name one volume, not %d", len(names))
	}
	p, err := c.Connect()
	if err != nil {
		return nil, nil, err
	}
	v, err := c.find(ctx, p, app, strings.Join(names, ""), meant)
	return p, v, err
}

// onVolume returns the RunE of a command whose arguments name a volume.
func (c *commands) onVolume(
	meant func(*hangar.Volume) bool, work func(context.Context, *client.Client, *hangar.Volume) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		p, v, err := c.oneVolume(cmd.Context(), args, meant)
		if err != nil {
			return err
		}
		return work(cmd.Context(), p, v)
	}
}

// parseGB reads a size in GB, each 2^30 bytes.
func parseGB(flag, text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		size, failed := units.RAMInBytes(text)
		if failed != nil || size <= 0 || size%units.GiB != 0 {
			return 0, cli.UsageErrorf("invalid %s %q: must be a whole number of GB, like 10 or 10gb", flag, text)
		}
		n = uint64(size / units.GiB)
	}
	if n < hangar.MinVolumeGB || n > hangar.MaxVolumeGB {
		return 0, cli.UsageErrorf("invalid %s %q: must be from %d to %d GB", flag, text, hangar.MinVolumeGB, hangar.MaxVolumeGB)
	}
	return int(n), nil
}

// completeVolume completes an App, unless --app is given, and then its volumes.
func (c *commands) completeVolume(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	app, _, err := c.split(args)
	switch {
	case err != nil:
		return c.CompleteApp(cmd, nil, prefix)
	case app == "":
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.Complete(cmd, func(ctx context.Context, p *client.Client) (ids []string, err error) {
		volumes, err := p.Volumes(ctx, app)
		for _, v := range volumes {
			ids = append(ids, fmt.Sprintf("%s\t%s, %s, %s", v.ID, v.Name, cli.GB(v.SizeGB), v.State))
		}
		return ids, err
	})
}

// completeVolumesApp completes the App of a command that takes no volume.
func (c *commands) completeVolumesApp(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if c.app != "" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.CompleteApp(cmd, args, prefix)
}

// completeSnapshot completes an App, unless --app is given, and then the snapshots of its volumes.
func (c *commands) completeSnapshot(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	app, names, err := c.split(args)
	switch {
	case err != nil:
		return c.CompleteApp(cmd, nil, prefix)
	case app == "" || len(names) > 0:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.Complete(cmd, func(ctx context.Context, p *client.Client) (ids []string, err error) {
		volumes, err := p.Volumes(ctx, app)
		for _, v := range volumes {
			snapshots, failed := p.Snapshots(ctx, v.Ref())
			if failed != nil {
				return nil, failed
			}
			for _, s := range snapshots {
				ids = append(ids, fmt.Sprintf("%s\t%s, %s, %s", s.ID, v.Name, s.CreatedAt.UTC().Format("2006-01-02 15:04"), s.State))
			}
		}
		return ids, err
	})
}

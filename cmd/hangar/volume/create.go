package volume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/cli/follow"
)

const createLong = `Create a volume: storage of an App on one server, which a Machine mounts.

It is encrypted with a key of its own unless --no-encryption is given. It takes its whole
size from the server's disk at once, unless the operator allows more volumes than fit. The
file system is created when a Machine first mounts it.

Names have at most 30 characters of a-z, 0-9 and underscore, and several volumes of an
App may have the same name.`

const createExample = `  hangar volumes create hello data --size 10
  hangar volumes create data -a hello --size 10 --snapshot-retention 14
  hangar machine run hello IMAGE --volume data:/data`

// fillFlags are the flags of commands that create a volume.
type fillFlags struct {
	in                hangar.VolumeCreate
	region            string
	size              string
	plain             bool
	scheduled, unique bool
	detach            bool
	asJSON, quiet     bool
}

func (f *fillFlags) add(cmd *cobra.Command, defaultSize string) {
	fs := cmd.Flags()
	fs.StringVarP(&f.size, "size", "s", "", "size in GB, from 1 to 500 (default "+defaultSize+")")
	fs.StringVarP(&f.region, "region", "r", "", "region to be in (default the server's)")
	fs.IntVar(&f.in.SnapshotRetention, "snapshot-retention", 0, "days to keep snapshots, from 1 to 60 (default 5)")
	fs.BoolVar(&f.scheduled, "scheduled-snapshots", true, "take a snapshot every day")
	fs.BoolVar(&f.unique, "require-unique-zone", true, "accepted for compatibility, and not enforced")
	cli.JSONFlag(cmd, &f.asJSON)
	cli.QuietFlag(cmd, &f.quiet, "ids")
}

func (f *fillFlags) addFollow(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "return at once")
}

// volumeCreate reads the flags.
func (f *fillFlags) volumeCreate(cmd *cobra.Command) (hangar.VolumeCreate, error) {
	in := f.in
	in.Region = hangar.Region(f.region)
	if f.size != "" {
		var err error
		if in.SizeGB, err = parseGB("--size", f.size); err != nil {
			return in, err
		}
	}
	changed := cmd.Flags().Changed
	if changed("snapshot-retention") {
		if err := checkRetention(in.SnapshotRetention); err != nil {
			return in, err
		}
	}
	if changed("scheduled-snapshots") {
		in.AutoBackup = &f.scheduled
	}
	if changed("require-unique-zone") {
		in.UniqueZone = &f.unique
	}
	if f.plain {
		encrypted := false
		in.Encrypted = &encrypted
	}
	return in, nil
}

func checkRetention(days int) error {
	if days < hangar.MinSnapshotRetention || days > hangar.MaxSnapshotRetention {
		return cli.UsageErrorf("invalid --snapshot-retention %d: must be from %d to %d days", days, hangar.MinSnapshotRetention, hangar.MaxSnapshotRetention)
	}
	return nil
}

// maxVolumesAtOnce bounds --count.
const maxVolumesAtOnce = 20

// createFlags are the flags of `volumes create`.
type createFlags struct {
	fillFlags
	count    int
	yes      bool
	fstype   string
	snapshot string
	compute  hangar.Guest
	memory   string
}

func (f *createFlags) add(cmd *cobra.Command) {
	f.fillFlags.add(cmd, "3, or that of the snapshot")
	f.addFollow(cmd)
	fs := cmd.Flags()
	fs.BoolVar(&f.plain, "no-encryption", false, "keep the data as it is on the server's disk")
	fs.StringVar(&f.fstype, "fstype", "", "ext4, or raw for a block device without a file system (default ext4)")
	fs.StringVar(&f.fstype, "fs-type", "", "the public platform's name of --fstype")
	_ = fs.MarkHidden("fs-type")
	fs.StringVar(&f.snapshot, "snapshot-id", "", "fill it from this snapshot")
	fs.BoolVar(&f.in.UniqueZoneAppWide, "unique-zone-app-wide", false, "accepted for compatibility, and not enforced")
	fs.IntVarP(&f.count, "count", "n", 1, "how many volumes to create")
	fs.IntVar(&f.compute.CPUs, "vm-cpus", 0, "choose a server with room for a Machine with this many CPUs")
	fs.StringVar(&f.compute.CPUKind, "vm-cpu-kind", "", "kind of these CPUs, shared or performance")
	fs.StringVar(&f.memory, "vm-memory", "", "choose a server with room for a Machine with this much memory, e.g. 512, 1gb")
	fs.BoolVarP(&f.yes, "yes", "y", false, "do not warn about the risk of a single volume")
	cli.CompleteFlag(cmd, "fstype", string(hangar.FSExt4), string(hangar.FSRaw))
	cli.CompleteFlag(cmd, "vm-cpu-kind", "shared", "performance")
}

// volumeCreate reads the flags.
func (f *createFlags) volumeCreate(cmd *cobra.Command) (hangar.VolumeCreate, error) {
	in, err := f.fillFlags.volumeCreate(cmd)
	if err != nil {
		return in, err
	}
	in.FSType, in.Snapshot = hangar.FSType(f.fstype), hangar.SnapshotID(f.snapshot)
	if f.memory != "" {
		if f.compute.MemoryMB, err = cli.ParseMemory(f.memory); err != nil {
			return in, err
		}
	}
	if f.compute.CPUs != 0 || f.compute.CPUKind != "" || f.compute.MemoryMB != 0 {
		in.Compute = &f.compute
	}
	return in, nil
}

func newCreateCommand(c *commands) *cobra.Command {
	var f createFlags
	cmd := &cobra.Command{
		Use:               "create APP NAME",
		Aliases:           []string{"add"},
		Short:             "Create a volume",
		Long:              createLong,
		Example:           createExample,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.completeVolumesApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			app, names, err := c.split(args)
			switch {
			case err != nil:
				return err
			case app == "" || len(names) != 1:
				return cli.UsageErrorf("give the App and the name of the volume")
			case f.count < 1 || f.count > maxVolumesAtOnce:
				return cli.UsageErrorf("invalid --count %d: must be from 1 to %d", f.count, maxVolumesAtOnce)
			}
			in, err := f.volumeCreate(cmd)
			if err != nil {
				return err
			}
			in.Name = names[0]
			return c.createVolumes(cmd.Context(), app, in, &f)
		},
	}
	f.add(cmd)
	return cmd
}

// createVolumes creates --count equal volumes one after another.
func (c *commands) createVolumes(ctx context.Context, app hangar.AppName, in hangar.VolumeCreate, f *createFlags) error {
	p, err := c.Connect()
	if err != nil {
		return err
	}
	made := make([]*hangar.Volume, 0, f.count)
	for range f.count {
		var v *hangar.Volume
		if v, err = c.createVolume(ctx, p, app, in, &f.fillFlags); v != nil {
			made = append(made, v)
		}
		if err != nil {
			break
		}
	}
	switch {
	case f.asJSON && f.count > 1:
		return cmp.Or(err, c.PrintJSON(volumesJSON(made)))
	case f.asJSON && len(made) == 1:
		return cmp.Or(err, c.PrintJSON(volumeJSON(made[0])))
	case err == nil && !f.quiet && !f.yes:
		c.warnOfOneVolume(ctx, p, made[0])
	}
	return err
}

// createVolume creates a volume and follows its filling. It prints progress unless the output is JSON. With an error, it
// returns the volume if that was created.
func (c *commands) createVolume(
	ctx context.Context, p *client.Client, app hangar.AppName, in hangar.VolumeCreate, f *fillFlags,
) (*hangar.Volume, error) {
	began := time.Now()
	v, err := p.CreateVolume(ctx, app, in)
	if hangar.ReasonOf(err) == hangar.ReasonAppNotFound {
		err = cli.WithHint(err, "create it first: hangar apps create "+string(app))
	}
	if err != nil {
		return nil, err
	}
	if !f.detach && v.State != hangar.VolumeCreated {
		filled, err := follow.Filling(ctx, p, v, c.WorkProgress(f.asJSON || f.quiet))
		if err != nil {
			return v, err
		}
		v = filled
	}
	switch {
	case f.asJSON:
		return v, nil
	case f.quiet:
		fmt.Fprintln(c.Stdout, v.ID)
		return v, nil
	case v.State == hangar.VolumeRestoring:
		fmt.Fprintf(c.Stdout, "Volume %s (%s) is being filled; see `hangar volumes show %s %s`\n", v.ID, v.Name, v.App, v.ID)
		return v, nil
	}
	fmt.Fprintf(c.Stdout, "Created volume %s (%s) in %s: %s in %s, %s%s.\n",
		v.ID, v.Name, cli.Brief(time.Since(began)), cli.GB(v.SizeGB), v.Region, encryption(v), origin(v, in))
	fmt.Fprintf(c.Stdout, "  mount it: hangar machine run %s IMAGE --volume %s:/data\n", v.App, v.ID)
	return v, nil
}

func encryption(v *hangar.Volume) string {
	if v.Encrypted {
		return "encrypted"
	}
	return "not encrypted"
}

// origin describes the source of a new volume.
func origin(v *hangar.Volume, in hangar.VolumeCreate) string {
	switch {
	case in.Snapshot != "":
		return fmt.Sprintf(", restored from %s", in.Snapshot)
	case in.Source != "":
		return fmt.Sprintf(", a copy of %s", in.Source)
	case v.Wanted == hangar.FSRaw:
		return ", without a file system"
	}
	return ""
}

// warnOfOneVolume prints the risk of an App with only one volume of a name.
func (c *commands) warnOfOneVolume(ctx context.Context, p *client.Client, v *hangar.Volume) {
	volumes, err := p.Volumes(ctx, v.App)
	if err != nil {
		return // the volume was created all the same
	}
	volumes = slices.DeleteFunc(volumes, func(x *hangar.Volume) bool { return !kept(x) || x.Name != v.Name })
	if len(volumes) != 1 {
		return
	}
	every := "It has no scheduled snapshots."
	if v.AutoBackup {
		every = fmt.Sprintf("A snapshot of it is taken every day and kept for %s.", cli.Plural(v.SnapshotRetention, "day", "days"))
	}
	fmt.Fprintf(c.Stderr, `
Note: this is the App's only volume called %s. A volume is on the disk of one server and
belongs to one Machine: it is unavailable while that server is down, and lost with that
disk. An App that must stay available needs two Machines with a volume each, and must
replicate its data between them. %s
`, v.Name, every)
}

const forkLong = `Create a volume with the content of another one of the App, as that is now.

A Machine may continue to write to it: the copy has the content of one moment. It
is as large as the volume, or larger with --size, and has a key of its own.`

func newForkCommand(c *commands) *cobra.Command {
	var (
		f    fillFlags
		name string
	)
	cmd := &cobra.Command{
		Use:               "fork [APP] VOLUME",
		Short:             "Copy a volume to a new one",
		Long:              forkLong,
		Example:           "  hangar volumes fork hello data --name data_test",
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: c.completeVolume,
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := f.volumeCreate(cmd)
			if err != nil {
				return err
			}
			p, source, err := c.oneVolume(cmd.Context(), args, kept)
			if err != nil {
				return err
			}
			if in.SizeGB != 0 && in.SizeGB < source.SizeGB {
				return cli.UsageErrorf("invalid --size %d: volume %s has %d GB, and its copy cannot be smaller", in.SizeGB, source.ID, source.SizeGB)
			}
			in.Source, in.Name = source.ID, cmp.Or(name, source.Name)
			v, err := c.createVolume(cmd.Context(), p, source.App, in, &f)
			if v != nil && f.asJSON {
				err = cmp.Or(err, c.PrintJSON(volumeJSON(v)))
			}
			return err
		},
	}
	f.add(cmd, "that of the volume")
	f.addFollow(cmd)
	cmd.Flags().StringVarP(&name, "name", "n", "", "name of the new volume (default the same)")
	return cmd
}

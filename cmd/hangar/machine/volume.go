package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/cli/follow"
)

// mountOptions are the properties of a mount that --volume can set.
func mountOptions(m *hangar.Mount) map[string]*int {
	return map[string]*int{
		"extend_threshold_percent": &m.ExtendThresholdPercent, "add_size_gb": &m.AddSizeGB, "size_gb_limit": &m.SizeGBLimit,
	}
}

// parseMount reads VOLUME:/PATH[:OPTION=N…]. Options are separated by colons or commas. A VOLUME that is not an id is
// a name, which pickVolumes resolves.
func parseMount(text string) (hangar.Mount, error) {
	invalid := func(why string) error { return cli.UsageErrorf("invalid --volume %q: %s", text, why) }
	name, rest, ok := strings.Cut(text, ":")
	path, options, _ := strings.Cut(rest, ":")
	if !ok || name == "" || !strings.HasPrefix(path, "/") {
		return hangar.Mount{}, invalid("must be VOLUME:/PATH, e.g. data:/data, with the id or the name of a volume")
	}
	m := hangar.Mount{Path: path}
	if hangar.VolumeID(name).Valid() {
		m.Volume = name
	} else {
		m.Name = name
	}
	known := mountOptions(&m)
	for option := range strings.FieldsFuncSeq(options, func(r rune) bool { return r == ':' || r == ',' }) {
		key, value, _ := strings.Cut(option, "=")
		at := known[key]
		if at == nil {
			return hangar.Mount{}, invalid(fmt.Sprintf("%q is none of extend_threshold_percent=N, add_size_gb=N and size_gb_limit=N", option))
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			return hangar.Mount{}, invalid(fmt.Sprintf("%s must be a number", key))
		}
		*at = n
	}
	return m, nil
}

func (f *configFlags) patchMounts(p object) error {
	var mounts []hangar.Mount
	for _, text := range f.volumes {
		m, err := parseMount(text)
		if err != nil {
			return err
		}
		mounts = append(mounts, m)
	}
	if mounts != nil {
		p["mounts"] = mounts
	}
	return nil
}

// pickVolumes replaces volume names in a config with ids. It prefers a volume that the Machine already has to a free one.
func pickVolumes(ctx context.Context, p *client.Client, app hangar.AppName, region hangar.Region, own hangar.MachineID, config *hangar.MachineConfig) error {
	named := func(m hangar.Mount) bool { return m.Volume == "" && m.Name != "" }
	if !slices.ContainsFunc(config.Mounts, named) {
		return nil
	}
	volumes, err := p.Volumes(ctx, app)
	if err != nil {
		return err
	}
	taken := map[hangar.VolumeID]bool{}
	for _, m := range config.Mounts {
		taken[hangar.VolumeID(m.Volume)] = true
	}
	config.Mounts = slices.Clone(config.Mounts)
	for i := range config.Mounts {
		if !named(config.Mounts[i]) {
			continue
		}
		v, err := pickVolume(volumes, app, region, own, config.Mounts[i].Name, taken)
		if err != nil {
			return err
		}
		config.Mounts[i].Volume, taken[v.ID] = string(v.ID), true
	}
	return nil
}

func pickVolume(
	volumes []*hangar.Volume, app hangar.AppName, region hangar.Region, own hangar.MachineID, name string, taken map[hangar.VolumeID]bool,
) (*hangar.Volume, error) {
	var free *hangar.Volume
	var busy []string
	for _, v := range volumes {
		switch {
		case v.Name != name || taken[v.ID] || v.State.Gone() || region != "" && v.Region != region:
		case own != "" && v.AttachedMachine == own:
			return v, nil
		case v.AttachedMachine != "":
			busy = append(busy, fmt.Sprintf("%s (of Machine %s)", v.ID, v.AttachedMachine))
		case !v.State.Usable():
			busy = append(busy, fmt.Sprintf("%s (%s)", v.ID, v.State))
		case free == nil:
			free = v
		}
	}
	if free != nil {
		return free, nil
	}
	where := ""
	if region != "" {
		where = " in " + string(region)
	}
	hint := fmt.Sprintf("create one: hangar volumes create %s %s", app, name)
	if len(busy) > 0 {
		return nil, cli.WithHint(hangar.Errorf(hangar.CodeConflict, hangar.ReasonVolumeAttached,
			"App %s has no free volume %q%s: there is %s", app, name, where, strings.Join(busy, ", ")), hint)
	}
	return nil, cli.WithHint(hangar.Errorf(hangar.CodeNotFound, hangar.ReasonVolumeNotFound, "App %s has no volume %q%s", app, name, where), hint)
}

// lastSnapshot stands for the newest snapshot of a volume.
const lastSnapshot = "last"

// cloneVolumes creates new volumes, empty or filled from a snapshot, for the mounts of a config that was copied from
// another Machine. If it fails, it destroys those that it created.
func (c commands) cloneVolumes(
	ctx context.Context, p *client.Client, source *hangar.Machine, app hangar.AppName, f *launchFlags, snapshot string, config *hangar.MachineConfig,
) (made []*hangar.Volume, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, destroyVolumes(ctx, p, made))
		}
	}()
	config.Mounts = slices.Clone(config.Mounts)
	for i := range config.Mounts {
		m := &config.Mounts[i]
		if !slices.ContainsFunc(source.Config.Mounts, func(x hangar.Mount) bool { return x.Volume == m.Volume }) {
			continue
		}
		old, err := p.Volume(ctx, hangar.VolumeRef{App: source.App, ID: hangar.VolumeID(m.Volume)})
		if err != nil {
			return made, err
		}
		in := hangar.VolumeCreate{
			Name: old.Name, Region: hangar.Region(f.region), SizeGB: old.SizeGB, Encrypted: &old.Encrypted, FSType: old.Wanted,
			SnapshotRetention: old.SnapshotRetention, AutoBackup: &old.AutoBackup, Snapshot: hangar.SnapshotID(snapshot),
		}
		if snapshot == lastSnapshot {
			if in.Snapshot, err = newestSnapshot(ctx, p, old); err != nil {
				return made, err
			}
		}
		v, err := p.CreateVolume(ctx, app, in)
		if err != nil {
			return made, err
		}
		made = append(made, v)
		if v.State != hangar.VolumeCreated {
			if v, err = follow.Filling(ctx, p, v, c.WorkProgress(f.asJSON || f.quiet)); err != nil {
				return made, err
			}
		}
		m.Volume = string(v.ID)
		if !f.asJSON && !f.quiet {
			fmt.Fprintf(c.Stderr, "Created volume %s (%s, %s).\n", v.ID, v.Name, cli.GB(v.SizeGB))
		}
	}
	return made, nil
}

// destroyVolumes destroys the volumes that were created for a Machine that could not be created.
func destroyVolumes(ctx context.Context, p *client.Client, volumes []*hangar.Volume) error {
	var failed []error
	for _, v := range volumes {
		if _, err := p.DestroyVolume(context.WithoutCancel(ctx), v.Ref()); err != nil {
			failed = append(failed, fmt.Errorf("destroy volume %s, which was created for it: %w", v.ID, err))
		}
	}
	return errors.Join(failed...)
}

// newestSnapshot returns the newest complete snapshot of a volume.
func newestSnapshot(ctx context.Context, p *client.Client, v *hangar.Volume) (hangar.SnapshotID, error) {
	snapshots, err := p.Snapshots(ctx, v.Ref())
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(snapshots, func(s *hangar.Snapshot) bool { return s.State == hangar.SnapshotCreated })
	if i < 0 {
		return "", cli.WithHint(hangar.Errorf(hangar.CodeNotFound, hangar.ReasonSnapshotNotFound, "volume %s has no snapshot", v.ID),
			fmt.Sprintf("take one: hangar volumes snapshots create %s %s", v.App, v.ID))
	}
	return snapshots[i].ID, nil
}

// mountFields describe the mounted volumes of a Machine.
func mountFields(m *hangar.Machine) (fields []cli.Field) {
	for i, mount := range m.Config.Mounts {
		text := mount.Volume
		if mount.Name != "" {
			text += fmt.Sprintf(" (%s, %s)", mount.Name, cli.GB(mount.SizeGB))
		}
		text += " at " + mount.Path
		if mount.ExtendThresholdPercent > 0 {
			text += fmt.Sprintf("; grows by %[2]s when %[1]d%% full", mount.ExtendThresholdPercent, cli.GB(mount.AddSizeGB))
			if mount.SizeGBLimit > 0 {
				text += ", up to " + cli.GB(mount.SizeGBLimit)
			}
		}
		name := "Volume"
		if i > 0 {
			name = ""
		}
		fields = append(fields, cli.Field{name, text})
	}
	return fields
}

// completeMount completes the value of --volume with the names of free volumes of the App.
func (c commands) completeMount(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 || strings.Contains(prefix, ":") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	words, directive := c.Complete(cmd, func(ctx context.Context, p *client.Client) (names []string, err error) {
		volumes, err := p.Volumes(ctx, hangar.AppName(args[0]))
		for _, v := range volumes {
			if v.AttachedMachine == "" && v.State.Usable() {
				names = append(names, fmt.Sprintf("%s:\t%s, %s", v.Name, v.ID, cli.GB(v.SizeGB)))
			}
		}
		return names, err
	})
	return words, directive | cobra.ShellCompDirectiveNoSpace
}

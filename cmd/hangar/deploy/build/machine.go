package build

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/internal/random"
)

// DefaultImage is an image with buildkitd, buildctl, runc and a shell.
const DefaultImage = "docker.io/moby/buildkit:v0.34.2"

// The Machine in which an organization's images are built.
const (
	builderPrefix = "builder-"       // of the name of its App
	builderKey    = "hangar_builder" // of its metadata
	cacheVolume   = "cache"
	cacheGB       = 10
	cachePath     = "/var/lib/buildkit"
	busyFile      = "/run/hangar-build" // is touched while something is built
	memoryMB      = 2048
	cpus          = 2
)

// daemon is the main process of the Machine: it ends ten minutes after the last build. gVisor has no cgroups
// until someone mounts them, and runc does not run without; without the host's network it would want interfaces
// that the sandbox does not make.
const daemon = `set -e
touch ` + busyFile + `
mount -t tmpfs none /sys/fs/cgroup
for c in cpu cpuacct cpuset devices memory pids; do
	mkdir /sys/fs/cgroup/$c
	mount -t cgroup -o $c none /sys/fs/cgroup/$c
done
buildkitd --oci-worker-net=host &
while kill -0 $! 2>/dev/null; do
	sleep 5
	[ $(($(date +%s) - $(date -r ` + busyFile + ` +%s))) -lt 600 ] || exit 0
done
exit 1`

// Machine returns the Machine in which images of an organization are built. It makes it, and starts it, if need be.
func Machine(ctx context.Context, p *client.Client, org hangar.OrgSlug, image string) (*hangar.Machine, error) {
	app, err := builderApp(ctx, p, org)
	if err != nil {
		return nil, err
	}
	machines, err := p.Machines(ctx, app, hangar.MachineFilter{Metadata: map[string]string{builderKey: "1"}})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(machines, func(x, y *hangar.Machine) int { return cmp.Compare(x.ID, y.ID) })
	var m *hangar.Machine
	for _, one := range machines {
		if one.State != hangar.MachineDestroying && one.State != hangar.MachineFailed {
			m = one
			break
		}
	}
	if m == nil {
		if m, err = createBuilder(ctx, p, app, image); err != nil {
			return nil, err
		}
	}
	switch m.State {
	case hangar.MachineStarted:
		return m, nil
	case hangar.MachineStopped, hangar.MachineSuspended:
		if _, err := p.StartMachine(ctx, m.Ref()); err != nil {
			return nil, err
		}
	default:
	}
	_, err = p.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}})
	return m, err
}

// builderApp finds or makes the App of the Machine. What a build is made of goes there, so that an App of that
// name that is another organization's is not it.
func builderApp(ctx context.Context, p *client.Client, org hangar.OrgSlug) (hangar.AppName, error) {
	name := hangar.AppName(builderPrefix + string(org))
	apps, err := p.Apps(ctx, hangar.AppFilter{Org: org})
	if err != nil {
		return "", err
	}
	for _, app := range apps {
		if app.Org.Slug == org && (app.Name == name || strings.HasPrefix(string(app.Name), string(name)+"-")) {
			return app.Name, nil
		}
	}
	_, err = p.CreateApp(ctx, hangar.AppCreate{Name: name, Org: org})
	if hangar.ReasonOf(err) == hangar.ReasonNameTaken {
		name += hangar.AppName("-" + random.ID())
		_, err = p.CreateApp(ctx, hangar.AppCreate{Name: name, Org: org})
	}
	return name, err
}

func createBuilder(ctx context.Context, p *client.Client, app hangar.AppName, image string) (*hangar.Machine, error) {
	volumes, err := p.Volumes(ctx, app)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(volumes, func(v *hangar.Volume) bool {
		return v.Name == cacheVolume && v.AttachedMachine == "" && v.State.Usable()
	})
	var volume *hangar.Volume
	if at >= 0 {
		volume = volumes[at]
	} else {
		never := false
		if volume, err = p.CreateVolume(ctx, app, hangar.VolumeCreate{Name: cacheVolume, SizeGB: cacheGB, AutoBackup: &never}); err != nil {
			return nil, err
		}
	}
	config := hangar.MachineConfig{
		Image:    image,
		Guest:    &hangar.Guest{CPUKind: "shared", CPUs: cpus, MemoryMB: memoryMB},
		Restart:  &hangar.RestartConfig{Policy: hangar.RestartNo},
		Metadata: map[string]string{builderKey: "1"},
		Mounts:   []hangar.Mount{{Volume: string(volume.ID), Path: cachePath}},
	}
	config.Init.Exec = []string{"/bin/sh", "-c", daemon}
	m, err := p.CreateMachine(ctx, app, hangar.MachineCreate{Config: config})
	if err != nil {
		return nil, fmt.Errorf("make a Machine that builds images: %w", err)
	}
	return m, nil
}

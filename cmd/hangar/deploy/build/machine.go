package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/internal/random"
)

// DefaultImage is an image with buildkitd, buildctl, runc and a shell.
const DefaultImage = "docker.io/moby/buildkit:v0.34.2"

// Idle is how long the Machine waits for another build before it stops.
const Idle = 10 * time.Minute

// The Machine in which an organization's images are built.
const (
	builderPrefix = "builder-"       // of the name of its App
	builderName   = "builder"        // unique in the App, so that there is only one
	builderKey    = "hangar_builder" // of its metadata
	cacheVolume   = "cache"
	cacheGB       = 10
	cachePath     = "/var/lib/buildkit"
	busyFile      = "/run/hangar-build" // touched during builds
	endingDir     = "/run/hangar-end"   // exists once the Machine has decided to stop
	memoryMB      = 2048
	cpus          = 2
)

const (
	reservedFor = time.Minute            // how long another caller may take to create the Machine, mostly for the image
	lookAgain   = 250 * time.Millisecond // between two checks
)

// daemon is the main process of the Machine. It ends when nothing was built for a number of seconds, its argument. A
// build touches busyFile and then checks endingDir; the daemon makes endingDir and then checks busyFile, so that no
// build starts in a Machine that stops. runc needs cgroups, which gVisor has only after they are mounted. BuildKit
// uses the host's network, because the sandbox cannot create interfaces.
const daemon = `set -e
rm -rf ` + endingDir + `
touch ` + busyFile + `
mount -t tmpfs none /sys/fs/cgroup
for c in cpu cpuacct cpuset devices memory pids; do
	mkdir /sys/fs/cgroup/$c
	mount -t cgroup -o $c none /sys/fs/cgroup/$c
done
buildkitd --oci-worker-net=host &
idle() { [ $(($(date +%s) - $(date -r ` + busyFile + ` +%s))) -ge $1 ]; }
while kill -0 $! 2>/dev/null; do
	sleep 1
	idle $1 || continue
	mkdir ` + endingDir + `
	if idle $1; then exit 0; fi
	rmdir ` + endingDir + `
done
exit 1`

// Builder has the settings of a new Machine that builds images.
type Builder struct {
	Image string        // with buildkitd, buildctl, runc and a shell; empty: DefaultImage
	Idle  time.Duration // in whole seconds; 0: Idle
}

// Machine returns the Machine in which images of an organization are built. It creates and starts the Machine if
// necessary. Of several concurrent callers, one creates it and the others use it.
func Machine(ctx context.Context, p *client.Client, org hangar.OrgSlug, b Builder) (*hangar.Machine, error) {
	app, err := builderApp(ctx, p, org)
	if err != nil {
		return nil, err
	}
	m, err := findBuilder(ctx, p, app)
	if err != nil {
		return nil, err
	}
	if m == nil {
		if m, err = createBuilder(ctx, p, app, b); err != nil {
			return nil, err
		}
	}
	for {
		switch m.State {
		case hangar.MachineStarted:
			return m, nil
		case hangar.MachineStopped, hangar.MachineSuspended:
			// Another caller may have started or destroyed it.
			if _, err := p.StartMachine(ctx, m.Ref()); err != nil && hangar.ReasonOf(err) != hangar.ReasonWrongState {
				return nil, err
			}
			_, err = p.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}})
		case hangar.MachineFailed, hangar.MachineDestroyed:
			return nil, b.unusable(ctx, p, m)
		default:
			_, err = p.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.WaitSettled}})
		}
		if reason := hangar.ReasonOf(err); err != nil && reason != hangar.ReasonWaitTimeout && reason != hangar.ReasonOutOfReach {
			return nil, err
		}
		if m, err = p.Machine(ctx, m.Ref()); err != nil {
			return nil, err
		}
	}
}

// unusable destroys a Machine that cannot run, and returns the reason.
func (b Builder) unusable(ctx context.Context, p *client.Client, m *hangar.Machine) error {
	why := ""
	for _, e := range m.Events {
		if e.Request != nil && e.Request.Error != "" {
			why = ": " + e.Request.Error
			break
		}
	}
	err := fmt.Errorf("the Machine that builds images is %s%s", m.State, why)
	return errors.Join(b.advise(err), p.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}))
}

// advise adds advice about an image that cannot be pulled.
func (b Builder) advise(err error) error {
	return cli.WithHint(err, fmt.Sprintf("this server cannot run %s: name an image with BuildKit that it can pull with --builder-image, or build here with docker, podman or buildah",
		cmp.Or(b.Image, DefaultImage)))
}

// findBuilder returns the Machine of an App that builds images, or nil. It destroys a failed one, to free its name.
func findBuilder(ctx context.Context, p *client.Client, app hangar.AppName) (*hangar.Machine, error) {
	machines, err := p.Machines(ctx, app, hangar.MachineFilter{Metadata: map[string]string{builderKey: "1"}})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(machines, func(x, y *hangar.Machine) int { return cmp.Compare(x.ID, y.ID) })
	for _, m := range machines {
		switch m.State {
		case hangar.MachineFailed:
			if err := p.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}); err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
				return nil, err
			}
			fallthrough
		case hangar.MachineDestroying:
			_, err := p.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineDestroyed}})
			if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
				return nil, err
			}
		default:
			return m, nil
		}
	}
	return nil, nil //nolint:nilnil // there is none
}

// builderApp finds or creates the App of the Machine. It never uses another organization's App with that name, because
// builds send source code there.
func builderApp(ctx context.Context, p *client.Client, org hangar.OrgSlug) (hangar.AppName, error) {
	name := hangar.AppName(builderPrefix + string(org))
	found := func() (hangar.AppName, error) {
		apps, err := p.Apps(ctx, hangar.AppFilter{Org: org})
		if err != nil {
			return "", err
		}
		for _, app := range apps {
			if app.Org.Slug == org && (app.Name == name || strings.HasPrefix(string(app.Name), string(name)+"-")) {
				return app.Name, nil
			}
		}
		return "", nil
	}
	if app, err := found(); app != "" || err != nil {
		return app, err
	}
	_, err := p.CreateApp(ctx, hangar.AppCreate{Name: name, Org: org})
	if hangar.ReasonOf(err) != hangar.ReasonNameTaken {
		return name, err
	}
	// Another caller for this organization has created it, or another organization has the name.
	if app, err := found(); app != "" || err != nil {
		return app, err
	}
	name += hangar.AppName("-" + random.ID())
	_, err = p.CreateApp(ctx, hangar.AppCreate{Name: name, Org: org})
	return name, err
}

// createBuilder creates the Machine, or returns the one that another caller has created meanwhile.
func createBuilder(ctx context.Context, p *client.Client, app hangar.AppName, b Builder) (*hangar.Machine, error) {
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
		Image:    cmp.Or(b.Image, DefaultImage),
		Guest:    &hangar.Guest{CPUKind: "shared", CPUs: cpus, MemoryMB: memoryMB},
		Restart:  &hangar.RestartConfig{Policy: hangar.RestartNo},
		Metadata: map[string]string{builderKey: "1"},
		Mounts:   []hangar.Mount{{Volume: string(volume.ID), Path: cachePath}},
	}
	idle := strconv.Itoa(int(cmp.Or(b.Idle, Idle) / time.Second))
	config.Init.Exec = []string{"/bin/sh", "-c", daemon, "build", idle}
	var m, other *hangar.Machine
	var wrong error
	for range reservedFor / lookAgain {
		if m, err = p.CreateMachine(ctx, app, hangar.MachineCreate{Name: builderName, Config: config}); err == nil {
			return m, nil
		}
		// The name is reserved before the Machine can be found.
		other, wrong = findBuilder(ctx, p, app)
		if other != nil || wrong != nil || hangar.ReasonOf(err) != hangar.ReasonNameTaken {
			break
		}
		if wrong = pause.For(ctx, lookAgain); wrong != nil {
			break
		}
	}
	if at < 0 && (other == nil || len(other.Config.Mounts) == 0 || other.Config.Mounts[0].Volume != string(volume.ID)) {
		_, failed := p.DestroyVolume(ctx, volume.Ref())
		wrong = errors.Join(wrong, failed)
	}
	if other != nil && wrong == nil {
		return other, nil
	}
	err = errors.Join(fmt.Errorf("create a Machine that builds images: %w", err), wrong)
	if code := hangar.CodeOf(err); code == hangar.CodeInvalid || code == hangar.CodeUnavailable {
		err = b.advise(err)
	}
	return nil, err
}

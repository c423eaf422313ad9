package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/guest"
	"github.com/hangar-platform/hangar/host/journal"
	devices "github.com/hangar-platform/hangar/host/volume"
)

// errRepaired makes a resume a cold boot: what memory knows of a file system that was
// repaired is wrong.
var errRepaired = errors.New("a volume was not closed when its machine was suspended")

// mountVolumes opens what the Machine mounts. While its memory is of use, nothing on the
// volumes is touched; else their roots become the run user's.
func (m *machine) mountVolumes(ctx context.Context, rec *journal.Record, user guest.Process) ([]driver.Mount, error) {
	var mounts []driver.Mount
	if len(rec.Machine.Config.Mounts) > 0 {
		m.clean, m.tidied = false, false
	}
	for i, mount := range rec.Machine.Config.Mounts {
		v := m.agent.volumeByID(hangar.VolumeID(mount.Volume))
		if v == nil || v.rec.Load().Volume.AttachedMachine != m.id {
			return nil, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonVolumeNotFound, "volume not found: %s is %q", volumeField(i), mount.Volume)
		}
		dir, repaired, err := m.mountVolume(ctx, v)
		if err != nil {
			return nil, fmt.Errorf("mount volume %s: %w", v.id, err)
		}
		if rec.Snapshot && repaired {
			return nil, errRepaired
		}
		if !rec.Snapshot {
			m.note("info", "Mounting %s at %s w/ uid: %d, gid: %d and chmod 0755", v.id, mount.Path, user.UID, user.GID)
			if err := errors.Join(os.Chown(dir, int(user.UID), int(user.GID)), os.Chmod(dir, 0o755)); err != nil { //nolint:gosec // as everywhere
				return nil, fmt.Errorf("mount volume %s: %w", v.id, err)
			}
		}
		mounts = append(mounts, driver.Mount{Source: dir, Target: mount.Path})
	}
	return mounts, nil
}

// mountVolume returns where a volume is mounted on the host.
func (m *machine) mountVolume(ctx context.Context, v *volume) (dir string, repaired bool, err error) {
	v.open.mu.Lock()
	defer v.open.mu.Unlock()
	device, err := v.attach(ctx)
	if err != nil {
		return "", false, err
	}
	v.open.machine = true
	if v.open.mounted != nil {
		return v.open.mounted.Dir, false, nil
	}
	if err := m.formatOnce(ctx, v, device); err != nil {
		return "", false, err
	}
	mounted, err := device.Mount(ctx)
	if err != nil {
		return "", false, v.damaged(err)
	}
	v.open.mounted = &mounted
	repaired = mounted.Replayed || mounted.Repaired
	if repaired {
		m.note("warn", "The file system of volume %s was not closed properly and has been checked", v.id)
	}
	return mounted.Dir, repaired, v.mounted(ctx, mounted)
}

// mounted records what mounting has found out. v.open.mu is held.
func (v *volume) mounted(ctx context.Context, mounted MountedVolume) error {
	usage, ok := v.measure(ctx)
	_, err := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Damaged, next.Volume.NeedsRestart = "", false
		if ok {
			next.Volume.Usage = usage
		}
		if !mounted.Replayed && !mounted.Repaired {
			return nil
		}
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventRepair, Machine: next.Volume.AttachedMachine, Text: mounted.Report}}
	})
	return err
}

// formatOnce makes the file system of a volume that is used for the first time.
// v.open.mu is held.
func (m *machine) formatOnce(ctx context.Context, v *volume, device Device) error {
	rec := v.rec.Load()
	if rec.Formatted {
		return nil
	}
	m.note("info", "Uninitialized volume '%s', initializing...", rec.Volume.Name)
	if rec.Volume.Encrypted {
		m.note("info", "Encrypting volume")
	}
	m.note("info", "Formatting volume")
	// What is there already was made by an agent that was killed before it said so.
	if err := device.Format(ctx); err != nil && !errors.Is(err, devices.ErrNotBlank) {
		return err
	}
	_, err := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Formatted = true
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventFormat, Machine: m.id}}
	})
	return err
}

// closeVolumes closes what the Machine mounted, once its sandbox has ended.
func (m *machine) closeVolumes(ctx context.Context, rec *journal.Record) error {
	var errs []error
	for _, v := range m.volumes(rec) {
		errs = append(errs, v.letGo(ctx))
	}
	return errors.Join(errs...)
}

// volumeLost is the end of a device under a running Machine.
type volumeLost struct {
	v     *volume
	cause error
}

func (e volumeLost) Error() string { return fmt.Sprintf("volume %s was lost: %s", e.v.id, e.why()) }

// why is what of the cause may be shown.
func (e volumeLost) why() string {
	if errors.Is(e.cause, devices.ErrLost) {
		return devices.ErrLost.Error()
	}
	if why := damage(e.cause); why != "" {
		return why
	}
	return userText(e.cause)
}

func (e volumeLost) Unwrap() error { return e.cause }

// errNotMounted: a Machine has been using a volume of which nothing is mounted any more.
var errNotMounted = errors.New("it is not mounted any more")

// retake takes back the volumes of a Machine that has run on without this daemon. It
// answers volumeLost for one that has not lasted as long.
func (m *machine) retake(ctx context.Context, rec *journal.Record) error {
	for _, v := range m.volumes(rec) {
		if err := v.retake(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (v *volume) retake(ctx context.Context) error {
	v.open.mu.Lock()
	defer v.open.mu.Unlock()
	if v.open.machine && v.open.device != nil {
		return nil
	}
	device, err := v.attach(ctx)
	switch {
	case ctx.Err() != nil:
		return errOvertaken
	case damage(err) != "":
		return volumeLost{v, err}
	case err != nil:
		return err
	}
	v.open.machine = true
	usage, err := device.Usage(ctx)
	if err == nil && usage.Blocks == 0 { // it was opened just now, and serves nobody
		return volumeLost{v, errNotMounted}
	}
	var mounted MountedVolume
	if err == nil {
		mounted, err = device.Mount(ctx) // says where it is
	}
	if isLost(device) {
		return volumeLost{v, device.Err()}
	}
	if err != nil {
		return err
	}
	v.open.mounted = &mounted
	return nil
}

// withVolumes returns a context that ends with volumeLost when the Machine loses a
// volume, and with ctx. end must be called.
func (m *machine) withVolumes(ctx context.Context, rec *journal.Record) (watched context.Context, end func()) {
	watched, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	for _, v := range m.volumes(rec) {
		v.open.mu.Lock()
		device := v.open.device
		v.open.mu.Unlock()
		if device == nil {
			continue
		}
		watching.Go(func() {
			select {
			case <-device.Lost():
				cancel(volumeLost{v, device.Err()})
			case <-watched.Done():
			}
		})
	}
	return watched, func() { cancel(nil); watching.Wait() }
}

// withoutVolume ends a Machine that has lost a volume: what it goes on to do would be
// lost as well. The next boot repairs the volume.
func (m *machine) withoutVolume(ctx context.Context, rec *journal.Record, err error) error {
	var lost volumeLost
	if !errors.As(err, &lost) {
		return err
	}
	m.agent.o.Log.Error("machine lost a volume", keyMachine, m.id, keyVolume, lost.v.id, keyError, lost.cause)
	m.note("error", "Volume %s was lost, ending the machine", lost.v.id)
	event := hangar.VolumeEvent{Type: hangar.VolumeEventLost, Machine: m.id, Fault: lost.why()}
	if err := lost.v.tell(event); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, m.agent.limits.release)
	defer cancel()
	d := m.agent.o.Driver
	exit := lostExit(m.agent.o.Now())
	if err := d.Stop(bounded, rec.Handle, sigKill, 0); err == nil {
		if ended, err := d.Wait(bounded, rec.Handle); err == nil {
			exit = ended
		}
	}
	if ctx.Err() != nil {
		return errOvertaken
	}
	if exit.Code == 0 {
		exit.Code = 137 // whatever it says: its policy shall see a failure
	}
	return m.exitedBecause(rec, exit, lost.Error())
}

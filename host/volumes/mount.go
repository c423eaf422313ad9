package volumes

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	devices "github.com/hangar-platform/hangar/host/volume"
)

// Mount opens the i-th volume that a config mounts, for the Machine that has it, and returns where
// it is on the host. With resume, the Machine's memory is about to be resumed, and unclean says that
// it does not match the file system, which was not closed and is left as it is. It may be repeated.
func (s *Store) Mount(ctx context.Context, id hangar.MachineID, config *hangar.MachineConfig, i int, resume bool) (dir string, unclean bool, err error) {
	name := config.Mounts[i].Volume
	v := s.byID(hangar.VolumeID(name))
	if v == nil || v.rec.Load().Volume.AttachedMachine != id {
		return "", false, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonVolumeNotFound, "volume not found: %s is %q", mountField(i), name)
	}
	dir, err = v.open.mount(ctx, id, resume)
	switch {
	case errors.Is(err, devices.ErrUnclean):
		return "", true, nil
	case err != nil:
		return "", false, fmt.Errorf("mount volume %s: %w", v.id, err)
	}
	return dir, false, nil
}

// mount is Mount for a Machine.
func (o *opened) mount(ctx context.Context, id hangar.MachineID, resume bool) (dir string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	device, err := o.attach(ctx)
	if err != nil {
		return "", err
	}
	o.machine = true
	if o.mounted != nil {
		return o.mounted.Dir, nil
	}
	if err := o.formatOnce(ctx, id, device); err != nil {
		return "", err
	}
	mount := device.Mount
	if resume {
		mount = device.MountClean
	}
	mounted, err := mount(ctx)
	if err != nil {
		return "", o.v.damaged(err)
	}
	o.mounted = &mounted
	if mounted.Replayed || mounted.Repaired {
		o.v.note(id, "warn", "The file system of volume %s was not closed properly and has been checked", o.v.id)
	}
	return mounted.Dir, o.recordMount(ctx, mounted)
}

// recordMount records a replay, repair or growth by a mount. o.mu is held.
func (o *opened) recordMount(ctx context.Context, mounted MountedVolume) error {
	usage, ok := o.measure(ctx)
	_, err := o.v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
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

// formatOnce makes the file system of a volume that is used for the first time, by a Machine.
// o.mu is held.
func (o *opened) formatOnce(ctx context.Context, id hangar.MachineID, device Device) error {
	rec := o.v.rec.Load()
	if rec.Formatted {
		return nil
	}
	o.v.note(id, "info", "Uninitialized volume '%s', initializing...", rec.Volume.Name)
	if rec.Volume.Encrypted {
		o.v.note(id, "info", "Encrypting volume")
	}
	o.v.note(id, "info", "Formatting volume")
	// An existing file system was made by a daemon that was killed before it recorded that.
	if err := device.Format(ctx); err != nil && !errors.Is(err, devices.ErrNotBlank) {
		return err
	}
	_, err := o.v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Formatted = true
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventFormat, Machine: id}}
	})
	return err
}

// Unmount closes what a Machine has mounted, once its sandbox has ended. It may be repeated.
func (s *Store) Unmount(ctx context.Context, id hangar.MachineID, config *hangar.MachineConfig) error {
	var errs []error
	for _, v := range s.heldBy(id, config) {
		errs = append(errs, v.open.machineEnded(ctx))
	}
	return errors.Join(errs...)
}

// OpenRoot opens the root directory of a volume that a Machine has mounted.
func (s *Store) OpenRoot(id hangar.VolumeID) (fd int, err error) {
	v := s.byID(id)
	if v == nil {
		return -1, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonVolumeNotFound, "volume not found: %s", id)
	}
	v.open.mu.Lock()
	defer v.open.mu.Unlock()
	if v.open.mounted == nil {
		return -1, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonVolumeNotFound, "volume %s is not mounted", id)
	}
	return unix.Open(v.open.mounted.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
}

// Lost is the end of a device under a running Machine.
type Lost struct {
	v     *volume
	cause error
}

func (e Lost) Error() string { return fmt.Sprintf("volume %s was lost: %s", e.v.id, e.why()) }

// why is the part of the cause that users may read.
func (e Lost) why() string {
	for _, known := range []error{devices.ErrLost, devices.ErrUnsynced} {
		if errors.Is(e.cause, known) {
			return known.Error()
		}
	}
	if why := damage(e.cause); why != "" {
		return why
	}
	return hangar.MessageOf(e.cause)
}

func (e Lost) Unwrap() error { return e.cause }

// Volume is the one that was lost.
func (e Lost) Volume() hangar.VolumeID { return e.v.id }

// Record records an event of the loss, with the Machine, unless there is one.
func (e Lost) Record(by hangar.MachineID) error {
	if !e.v.open.lossRecorded.CompareAndSwap(false, true) {
		return nil
	}
	err := e.v.recordEvents(hangar.VolumeEvent{Type: hangar.VolumeEventLost, Machine: by, Fault: e.why()})
	if err != nil {
		e.v.open.lossRecorded.Store(false)
	}
	return err
}

// errNotMounted: the volume of a running Machine is no longer mounted.
var errNotMounted = errors.New("it is not mounted any more")

// Retake takes back the volumes of a Machine that has run on without this daemon. It answers Lost
// for one that is gone, and the cause of ctx when that ends.
func (s *Store) Retake(ctx context.Context, id hangar.MachineID, config *hangar.MachineConfig) error {
	for _, v := range s.heldBy(id, config) {
		if err := v.open.retake(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (o *opened) retake(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.machine && o.mounted != nil {
		return nil
	}
	device, err := o.attach(ctx)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case damage(err) != "":
		return Lost{o.v, err}
	case err != nil:
		return err
	}
	o.machine = true
	usage, err := device.Usage(ctx)
	if err == nil && usage.Blocks == 0 { // it was opened just now, and has no user
		return Lost{o.v, errNotMounted}
	}
	var mounted MountedVolume
	if err == nil {
		mounted, err = device.Mount(ctx) // says where it is
	}
	if isLost(device) {
		return Lost{o.v, device.Err()}
	}
	if err != nil {
		return err
	}
	o.mounted = &mounted
	return nil
}

// Watch returns a context that ends with Lost when a Machine loses a volume, and with ctx. end
// must be called.
func (s *Store) Watch(ctx context.Context, id hangar.MachineID, config *hangar.MachineConfig) (watched context.Context, end func()) {
	watched, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	for _, v := range s.heldBy(id, config) {
		v.open.mu.Lock()
		device := v.open.device
		v.open.mu.Unlock()
		if device == nil {
			continue
		}
		watching.Go(func() {
			select {
			case <-device.Lost():
				cancel(Lost{v, device.Err()})
			case <-watched.Done():
			}
		})
	}
	return watched, func() { cancel(nil); watching.Wait() }
}

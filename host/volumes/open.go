package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish"
)

// opened is the open device of a volume on the host. It is open while a Machine runs that mounts
// it, and while it has a reader.
type opened struct {
	v *volume

	mu      sync.Mutex // held while the device is opened, closed or extended; guards what follows
	device  Device     // nil: this daemon has not opened it
	mounted *MountedVolume
	machine bool // a Machine uses it
	readers int

	lossRecorded atomic.Bool // the loss of the device is recorded
}

// closing bounds the end of a device, with a view of it, and the removal of an image.
const closing = 2 * time.Minute

// hold opens the device of a volume, if it is not open, and keeps it so until release
// is called.
func (o *opened) hold(ctx context.Context) (device Device, release func(context.Context) error, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if device, err = o.attach(ctx); err != nil {
		return nil, nil, err
	}
	o.readers++
	var once sync.Once
	return device, func(ctx context.Context) (err error) {
		once.Do(func() { err = o.unhold(ctx) })
		return err
	}, nil
}

// attach returns the open device. o.mu is held.
func (o *opened) attach(ctx context.Context) (Device, error) {
	if o.device != nil && !isLost(o.device) {
		return o.device, nil
	}
	if o.device != nil {
		if err := finish.Do(ctx, closing, o.detach); err != nil && o.device != nil {
			return nil, err
		}
	}
	spec, err := o.v.store.spec(o.v.rec.Load())
	if err != nil {
		return nil, o.v.damaged(err)
	}
	device, err := o.v.store.o.Devices.Attach(ctx, spec)
	if err != nil {
		return nil, o.v.damaged(err)
	}
	o.device, o.mounted = device, nil
	o.lossRecorded.Store(false)
	return device, nil
}

func isLost(d Device) bool {
	select {
	case <-d.Lost():
		return true
	default:
		return false
	}
}

// detach closes the device, or what an earlier daemon left of it, and records its loss if
// the Machine's worker has not: often a program ends of the loss before that is noticed.
// o.mu is held.
func (o *opened) detach(ctx finish.Context) error {
	device, err := o.openDevice(ctx)
	if device == nil || err != nil {
		return err
	}
	usage, ok := o.measure(ctx)
	err = device.Close(ctx)
	switch {
	case errors.Is(err, devices.ErrLost), errors.Is(err, devices.ErrUnsynced): // it is closed
		err = o.recordLoss(err)
	case err != nil:
		return fmt.Errorf("close volume %s: %w", o.v.id, err)
	}
	o.device, o.mounted = nil, nil
	if !ok {
		return err
	}
	return errors.Join(err, o.v.remember(usage))
}

// recordLoss records a lost device, of which a Machine has mounted the file system.
func (o *opened) recordLoss(cause error) error {
	if o.mounted == nil {
		return nil
	}
	return Lost{o.v, cause}.Record(o.v.rec.Load().Volume.AttachedMachine)
}

// openDevice returns what is open of the volume, which an earlier daemon may have opened,
// or nil. o.mu is held.
func (o *opened) openDevice(ctx finish.Context) (Device, error) {
	if o.device != nil {
		return o.device, nil
	}
	open, err := o.v.store.o.Devices.List(ctx)
	if err != nil || !slices.Contains(open, o.v.id) {
		return nil, err
	}
	device, err := o.attach(ctx)
	if err != nil && damage(err) != "" {
		// Some of it is missing, so unsynced writes are lost in any case.
		return nil, o.v.store.o.Devices.Release(ctx, o.v.id)
	}
	return device, err
}

// unhold is the inverse of hold.
func (o *opened) unhold(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.readers--
	return finish.Do(ctx, closing, o.closeUnused)
}

// closeUnused closes the device unless it is in use. o.mu is held.
func (o *opened) closeUnused(ctx finish.Context) error {
	switch {
	case o.machine:
		return nil
	case o.readers == 0:
		return o.detach(ctx)
	case o.mounted != nil:
		// The reader continues; the Machine's writes are made durable.
		return syncFileSystem(o.mounted.Dir)
	default:
		return nil
	}
}

func syncFileSystem(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}

// machineEnded closes the device after the end of the Machine that used it.
func (o *opened) machineEnded(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.machine = false
	return finish.Do(ctx, closing, o.closeUnused)
}

// measure asks the file system how full it is; ok is false if it is not mounted.
// o.mu is held.
func (o *opened) measure(ctx context.Context) (usage hangar.VolumeUsage, ok bool) {
	if o.device == nil || isLost(o.device) {
		return usage, false
	}
	usage, err := o.device.Usage(ctx)
	if err != nil && ctx.Err() == nil {
		o.v.store.o.Log.Warn("measure volume", keyVolume, o.v.id, keyError, err)
	}
	return usage, err == nil && usage.Blocks > 0
}

// usagePatience bounds the wait of a caller that lists volumes: the device may be in use, and for
// long if it does not answer.
const usagePatience = 100 * time.Millisecond

// usage is measure for callers that do not wait while the volume is being opened or closed.
func (o *opened) usage(ctx context.Context) (usage hangar.VolumeUsage, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, usagePatience)
	defer cancel()
	if !o.mu.TryLock() {
		return usage, false
	}
	defer o.mu.Unlock()
	return o.measure(ctx)
}

// remember records how full a volume is.
func (v *volume) remember(usage hangar.VolumeUsage) error {
	if v.rec.Load().Volume.Usage == usage {
		return nil
	}
	_, err := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Volume.Usage = usage
		return nil
	})
	return err
}

// damaged records that a volume is damaged, if err says so, and returns the error for the caller.
func (v *volume) damaged(err error) error {
	why := damage(err)
	if why == "" {
		return err
	}
	if v.rec.Load().Damaged != why {
		_, recorded := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
			next.Damaged = why
			return []hangar.VolumeEvent{{Type: hangar.VolumeEventDamaged, Machine: next.Volume.AttachedMachine, Fault: why}}
		})
		if recorded != nil {
			return recorded
		}
		v.store.o.Log.Error("volume is damaged", keyVolume, v.id, keyError, err)
	}
	return &hangar.Error{
		Code: hangar.CodeFailedPrecondition, Reason: hangar.ReasonVolumeDamaged, Err: err,
		Message: fmt.Sprintf("volume %s cannot be opened: %s", v.id, why),
	}
}

// damage describes a lasting fault of a volume to its user; empty: err is none.
func damage(err error) string {
	if e, ok := errors.AsType[*hangar.Error](err); ok && e.Reason == hangar.ReasonVolumeDamaged {
		return e.Message
	}
	for _, known := range []error{
		devices.ErrWrongKey, devices.ErrForeign, devices.ErrTruncated, devices.ErrDamaged, devices.ErrUnrepairable,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "its image is missing"
	}
	return ""
}

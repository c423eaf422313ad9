package volumes

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	// fillsAtOnce bounds the volumes of a host that are being filled. One organization has at
	// most all but one of them.
	fillsAtOnce = 3
	// fillReserve is how much of the disk the filling of volumes leaves free, in bytes.
	fillReserve = 256 << 20
)

// fillingOf finds the source of a new volume, and completes the volume's size from it. The source
// is kept until release is called; afterwards the record of the volume that is being filled keeps
// it.
func (s *Store) fillingOf(ctx context.Context, spec *hangar.VolumeSpec) (filling hangar.Filling, release func(), err error) {
	release = func() {}
	var (
		size int64
		from string
	)
	switch {
	case spec.Snapshot != "" && spec.Source != "":
		return filling, release, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
			"invalid source_volume_id: a volume is made from a snapshot or from another volume, not from both")
	case spec.Snapshot != "":
		filling.Snapshot, from = spec.Snapshot, "snapshot "+string(spec.Snapshot)
		release = s.archiver.pin(spec.Snapshot) // before it is looked for: afterwards it might be removed
		size, err = s.restorable(ctx, spec)
	case spec.Source != "":
		filling.Source, from = spec.Source, "volume "+string(spec.Source)
		size, release, err = s.forkable(spec)
	default:
		return filling, release, nil
	}
	if err != nil {
		release()
		return filling, func() {}, err
	}
	least := int((size + 1<<30 - 1) >> 30)
	if spec.SizeGB == 0 {
		spec.SizeGB = least
	}
	if spec.SizeGB < least {
		release()
		return filling, func() {}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
			"invalid size_gb: %d is less than the %d GB of %s", spec.SizeGB, least, from)
	}
	return filling, release, nil
}

// beginFilling starts to fill a volume in hangar.VolumeRestoring: after it was made, and
// again after a restart of the daemon.
func (v *volume) beginFilling() { v.store.work.Go(func() { v.fill(v.store.work.Context) }) }

// fill brings a volume from restoring to created, or to failed if that is impossible, unless its
// user destroys it meanwhile. If ctx ends first, the next daemon begins again.
func (v *volume) fill(ctx context.Context) {
	filling, end := context.WithCancel(ctx)
	defer end()
	v.endFilling.Store(&end)
	v.fillUntil(filling)
	v.abandonImage(ctx)
}

// abandonImage removes the image of a volume that was destroyed while it was being filled. After
// a failure, the purge of the volume removes it.
func (v *volume) abandonImage(ctx context.Context) {
	if !v.rec.Load().Unfilled {
		return
	}
	if err := v.removeImage(ctx); err != nil && ctx.Err() == nil {
		v.store.o.Log.Error("remove the image of a volume that was destroyed while it was filled", keyVolume, v.id, keyError, err)
	}
}

// removeImage closes the device and removes the image.
func (v *volume) removeImage(ctx context.Context) error {
	v.open.mu.Lock()
	defer v.open.mu.Unlock()
	return finish.Do(ctx, closing, v.closeAndRemove)
}

// closeAndRemove closes the device, if it is open, and removes the image. v.open.mu is held.
func (v *volume) closeAndRemove(ctx finish.Context) error {
	if err := v.open.detach(ctx); err != nil {
		return err
	}
	return v.store.o.Devices.Remove(ctx, v.id)
}

// fillUntil is fill until ctx ends, which it does when the volume is destroyed.
func (v *volume) fillUntil(ctx context.Context) {
	release, err := v.store.fills.Acquire(ctx, v.rec.Load().OrgID)
	if err != nil {
		return
	}
	defer release()
	if v.rec.Load().Volume.State != hangar.VolumeRestoring {
		return // it was destroyed while it waited
	}
	began := time.Now()
	reported := ""
	for delay := minPause; ; delay = min(2*delay, maxPause) {
		err := v.fillOnce(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		v.store.o.Log.Error("fill a volume", keyVolume, v.id, keyError, err)
		if errors.Is(err, errNone) {
			return // to the next daemon
		}
		if isPermanent(err) || time.Since(began) >= v.store.o.FillPatience {
			if err := v.giveUpFilling(ctx, hangar.MessageOf(err)); err != nil && ctx.Err() == nil {
				v.store.o.Log.Error("give up a volume that was not filled", keyVolume, v.id, keyError, err)
			}
			return
		}
		if why := hangar.MessageOf(err); why != reported {
			v.failed("record why a volume is not filled yet", v.recordEvents(hangar.VolumeEvent{
				Type: hangar.VolumeEventRestore, Snapshot: v.rec.Load().Volume.Filling.Snapshot,
				Text: "The volume could not be filled yet, and it is tried again", Fault: why,
			}))
			reported = why
		}
		if pause.For(ctx, delay) != nil {
			return
		}
	}
}

// isPermanent reports whether a retry cannot help.
func isPermanent(err error) bool {
	switch hangar.CodeOf(err) {
	case hangar.CodeInternal, hangar.CodeUnavailable, hangar.CodeTimeout:
		return errors.Is(err, archive.ErrCorrupt) || errors.Is(err, archive.ErrNotFound)
	default:
		return true
	}
}

// fillOnce creates the image again and fills it.
func (v *volume) fillOnce(ctx context.Context) error {
	if err := v.recreateImage(ctx); err != nil {
		return err
	}
	filling := v.rec.Load().Volume.Filling
	content, err := v.fillImage(ctx, filling)
	if err != nil {
		return err
	}
	_, err = v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		if next.Volume.State != hangar.VolumeRestoring {
			return nil
		}
		next.Volume.State, next.Volume.Filling = hangar.VolumeCreated, hangar.Filling{}
		if content != "" {
			next.Volume.Wanted = content
			next.Formatted = content != hangar.FSRaw
		}
		e := hangar.VolumeEvent{Type: hangar.VolumeEventRestore, Snapshot: filling.Snapshot, Text: "Restored from snapshot " + string(filling.Snapshot)}
		if filling.Source != "" {
			e.Text = "Made as a fork of volume " + string(filling.Source)
		}
		return []hangar.VolumeEvent{e}
	})
	return err
}

// recreateImage replaces the image of a volume by an empty one.
func (v *volume) recreateImage(ctx context.Context) error {
	v.open.mu.Lock()
	defer v.open.mu.Unlock()
	spec, err := v.store.spec(v.rec.Load())
	if err != nil {
		return err
	}
	if err := finish.Do(ctx, closing, v.closeAndRemove); err != nil {
		return err
	}
	return v.store.o.Devices.Create(ctx, spec)
}

// fillImage fills the image, and returns its content once everything is durable.
func (v *volume) fillImage(ctx context.Context, filling hangar.Filling) (content hangar.FSType, err error) {
	defer v.filling.Store(nil)
	device, release, err := v.open.hold(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, release(ctx)) }()
	return content, fillDevice(ctx, device, func(target Target) (err error) {
		if filling.Snapshot != "" {
			content, err = v.restore(ctx, target, filling.Snapshot)
		} else {
			content, err = v.fork(ctx, target, filling.Source)
		}
		return err
	})
}

// fillDevice has write fill a device.
func fillDevice(ctx context.Context, device Device, write func(Target) error) error {
	target, err := device.Fill(ctx)
	if err != nil {
		return err
	}
	err = write(target)
	if err == nil {
		err = target.Flush()
	}
	return errors.Join(err, target.Close())
}

// giveUpFilling marks a volume as failed, and erases its image.
func (v *volume) giveUpFilling(ctx context.Context, fault string) error {
	err := v.recordEnd(ctx, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		if next.Volume.State != hangar.VolumeRestoring {
			return nil
		}
		next.Volume.State = hangar.VolumeFailed
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventRestore, Snapshot: next.Volume.Filling.Snapshot, Text: "The volume could not be filled", Fault: fault}}
	})
	if err != nil {
		return err
	}
	return v.eraseImage(ctx)
}

// boundedTarget is a target that refuses writes beyond the room on the disk.
type boundedTarget struct {
	Target

	space *diskspace.Space
	what  diskspace.Purpose // of filling the target
	taken atomic.Int64      // allocated bytes of the image that are not filled yet
	left  atomic.Int64      // bytes
	free  int64
	fault
}

// boundTarget returns a target that leaves reserve bytes of the disk free. The blocks that the image has already
// allocated do not count.
func (s *Store) boundTarget(ctx context.Context, target Target, what diskspace.Purpose, id hangar.VolumeID, reserve int64) (*boundedTarget, error) {
	room, err := s.o.Devices.Room(ctx)
	if err != nil {
		return nil, fmt.Errorf("measure the disk of volumes: %w", err)
	}
	reserve = max(reserve, s.o.Space.Reserved())
	r := &boundedTarget{Target: target, space: s.o.Space, what: what, free: max(0, room.Free-reserve) + room.Taken[id]}
	r.left.Store(r.free)
	r.taken.Store(room.Taken[id])
	return r, nil
}

// WriteAt implements io.WriterAt. It refuses a write without room on the disk.
func (r *boundedTarget) WriteAt(b []byte, at int64) (int, error) {
	err := r.admit(int64(len(b)))
	n := 0
	if err == nil {
		n, err = r.Target.WriteAt(b, at)
		err = diskspace.Explain(err)
	}
	r.keep(err)
	return n, err
}

// expect refuses a size without room on the disk, before any of it is written.
func (r *boundedTarget) expect(bytes int64) error {
	if r.left.Load() < bytes {
		return r.full()
	}
	return r.space.Admit(r.what, max(0, bytes-r.taken.Load()))
}

func (r *boundedTarget) full() error {
	return hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonDiskFull,
		"cannot %s: the disk has %d bytes for what is to be written, which is more", r.what, r.free)
}

func (r *boundedTarget) admit(bytes int64) error {
	if r.left.Add(-bytes) < 0 {
		return r.full()
	}
	if r.taken.Add(-bytes) < 0 {
		return r.space.Admit(r.what, bytes)
	}
	return nil
}

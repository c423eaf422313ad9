package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish"
)

// extendDeadline bounds the growth of a volume, which writes only metadata.
const extendDeadline = 2 * time.Minute

// ExtendVolume implements hangar.VolumeAgent.
func (s *Store) ExtendVolume(ctx context.Context, ref hangar.VolumeRef, sizeGB int) (*hangar.VolumeRow, error) {
	v, err := s.volume(ref)
	if err != nil {
		return nil, err
	}
	if err := v.extend(ctx, sizeGB, hangar.VolumeEvent{Source: hangar.EventSourceFrom(ctx)}); err != nil {
		return nil, err
	}
	return v.row(ctx), nil
}

// extend makes the volume sizeGB large, and records event.
func (v *volume) extend(ctx context.Context, sizeGB int, event hangar.VolumeEvent) error {
	if begun, err := v.beginExtending(ctx, sizeGB); err != nil || !begun {
		return err
	}
	return v.finishExtending(ctx, event)
}

// beginExtending claims the quota and the room of the disk, unless the volume is that large
// already.
func (v *volume) beginExtending(ctx context.Context, sizeGB int) (begun bool, err error) {
	err = v.claiming(ctx, func(rec *journal.VolumeRecord) (*hangar.VolumeRow, error) {
		switch size := rec.Volume.SizeGB; {
		case rec.Volume.State != hangar.VolumeCreated:
			return nil, wrongState("extend", rec)
		case sizeGB == size:
			return nil, nil //nolint:nilnil // there is nothing to do
		case sizeGB < size:
			return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid size_gb: size_gb must be greater than current: %d asked, the volume has %d", sizeGB, size)
		case sizeGB > hangar.MaxVolumeGB:
			return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid size_gb: %d is more than the %d that are allowed", sizeGB, hangar.MaxVolumeGB)
		}
		wanted := rowOf(rec)
		wanted.Volume.SizeGB = sizeGB
		return &wanted, nil
	}, func(rec *journal.VolumeRecord) error {
		return v.store.promises.make(ctx, rec.OrgID, sizeGB-rec.Volume.SizeGB, func() error {
			begun = true
			return v.commitTo(rec, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
				next.Volume.State, next.Growing = hangar.VolumeExtending, sizeGB
				return nil
			})
		})
	})
	return begun && err == nil, err
}

// finishExtending grows a volume in the state extending. It may be repeated.
func (v *volume) finishExtending(ctx context.Context, event hangar.VolumeEvent) error {
	to := v.rec.Load().Growing
	online, mounted, failure := v.open.grow(ctx, int64(to)<<30)
	event.Type = hangar.VolumeEventExtend
	end := func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Volume.State, next.Growing = hangar.VolumeCreated, 0
		if failure != nil {
			event.Fault = hangar.MessageOf(failure)
			return []hangar.VolumeEvent{event}
		}
		if event.Text == "" {
			event.Text = fmt.Sprintf("extended from %d to %d GB", next.Volume.SizeGB, to)
		}
		next.Volume.SizeGB = to
		next.Volume.NeedsRestart = mounted && !online
		return []hangar.VolumeEvent{event}
	}
	rec, err := v.record(end)
	if hangar.ReasonOf(err) == hangar.ReasonDiskFull {
		v.store.work.Go(func() { // once the disk has room for that
			ctx := v.store.work.Context
			err := v.recordEnd(ctx, end)
			if err == nil {
				err = v.store.o.Machines.DescribeVolume(&v.rec.Load().Volume)
			}
			if err != nil && ctx.Err() == nil {
				v.store.o.Log.Error("the end of an extension was not recorded", keyVolume, v.id, keyError, err)
			}
		})
	}
	if err != nil || failure != nil {
		return cmp.Or(failure, err)
	}
	return v.store.o.Machines.DescribeVolume(&rec.Volume)
}

// grow extends the image and the device to size bytes. online: a mounted file system is extended,
// too; otherwise the next mount extends it.
func (o *opened) grow(ctx context.Context, size int64) (online, mounted bool, err error) {
	o.mu.Lock() // a boot holds it while it checks a file system
	defer o.mu.Unlock()
	extending, cancel := finish.Within(ctx, extendDeadline)
	defer cancel()
	device, err := o.attach(extending)
	if err != nil {
		return false, false, o.v.unlessGone(err)
	}
	mounted = o.machine
	online, err = device.Extend(extending, size)
	switch {
	case errors.Is(err, devices.ErrFrozen):
		err = hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonSnapshotRunning,
			"volume %s cannot be extended while a snapshot of it is being taken", o.v.id)
	case err != nil:
		err = o.v.unlessGone(fmt.Errorf("extend volume %s: %w", o.v.id, err))
	}
	return online, mounted, cmp.Or(err, finish.Do(ctx, closing, o.closeUnused))
}

// unlessGone turns the failure of a volume whose storage daemon has ended meanwhile into an error that allows a retry.
func (v *volume) unlessGone(err error) error {
	for _, gone := range []error{devices.ErrLost, io.EOF, unix.ECONNRESET, unix.ECONNREFUSED, unix.EPIPE} {
		if errors.Is(err, gone) {
			return &hangar.Error{Code: hangar.CodeUnavailable, Message: fmt.Sprintf("volume %s was lost meanwhile: try again", v.id), Err: err}
		}
	}
	return err
}

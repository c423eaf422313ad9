package volumes

import (
	"context"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish"
)

// view is a volume as it was at one moment.
type view struct {
	Frozen

	space   *diskspace.Space
	what    diskspace.Purpose // of the view
	of      *journal.VolumeRecord
	content hangar.FSType // empty: no content
	data    extent.List   // ranges that were ever written
}

// ReadAt reads the volume as it was, as long as the disk has room: the data is about to be
// written elsewhere, and the Machine's overwrites take room until the view ends.
func (v view) ReadAt(b []byte, at int64) (int, error) {
	if err := v.space.Admit(v.what, int64(len(b))); err != nil {
		return 0, err
	}
	return v.Frozen.ReadAt(b, at)
}

// frozen calls work with a view of the volume at one moment. From then on changes are counted for
// mark, unless that is empty. The volume is opened if necessary, and stays open as long as its
// Machine or work needs it.
func (v *volume) frozen(ctx context.Context, what diskspace.Purpose, mark string, work func(view) error) (err error) {
	if err := v.still.Acquire(ctx, 1); err != nil { // a device has one view at a time
		return err
	}
	defer v.still.Release(1)
	device, release, err := v.open.hold(ctx)
	if err != nil {
		return err
	}
	defer func() { v.ended("close the device", release(ctx)) }()
	seen := view{space: v.store.o.Space, what: what, of: v.rec.Load()}
	if used(seen.of) {
		seen.content = seen.of.Volume.Wanted
	} else {
		mark = "" // an unfinished file system is made again, so its blocks must not count as known
	}
	if seen.Frozen, err = device.Freeze(ctx, mark); err != nil {
		return err
	}
	defer func() { v.ended("end the view", finish.Do(ctx, closing, seen.Close)) }()
	v.store.metrics.freeze.Observe(seen.Took().Seconds())
	if seen.content != "" {
		if seen.data, err = seen.Data(ctx); err != nil {
			return err
		}
	}
	return work(seen)
}

// ended logs an error of the end of a view.
func (v *volume) ended(what string, err error) {
	if err != nil {
		v.store.o.Log.Error("leftovers of reading a volume", keyStep, what, keyVolume, v.id, keyError, err)
	}
}

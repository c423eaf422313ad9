package host

import (
	"context"
	"io"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/extent"
)

// copyStep is how much of a volume is copied at once, in bytes.
const copyStep = 1 << 20

// forkable finds the volume that another one is to be made from, and returns its size.
func (a *Agent) forkable(spec *hangar.VolumeSpec) (size int64, err error) {
	v := a.volumeByID(spec.Source)
	if v == nil || v.rec.Load().OrgID != spec.OrgID {
		return 0, hangar.VolumeNotFound(spec.Source)
	}
	rec := v.rec.Load()
	if !rec.Volume.State.Usable() {
		return 0, wrongVolumeState("fork", rec)
	}
	return int64(max(rec.Volume.SizeGB, rec.Growing)) << 30, nil
}

// fork copies another volume, as it is now, to the target and says what is on it. What
// is written to the other one from now on is not copied.
func (v *volume) fork(ctx context.Context, target Target, from hangar.VolumeID) (content hangar.FSType, err error) {
	source := v.agent.volumeByID(from)
	if source == nil || !source.rec.Load().Volume.State.Usable() {
		return "", hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "volume %s is not there any more", from)
	}
	room, err := v.agent.roomy(ctx, target, fillReserve)
	if err != nil {
		return "", err
	}
	err = source.frozen(ctx, "", func(view view) error {
		if err := v.growWith(ctx, from, view.Size()); err != nil {
			return err
		}
		content = view.content
		return copyData(ctx, room, view, view.data, v.filled)
	})
	return content, err
}

// growWith makes a fork as large as its source has become since the fork was asked for. It
// fails if that was needed: the image has to be made anew.
func (v *volume) growWith(ctx context.Context, source hangar.VolumeID, size int64) error {
	least := int((size + 1<<30 - 1) >> 30)
	if v.rec.Load().Volume.SizeGB >= least {
		return nil
	}
	if _, err := v.record(ctx, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Volume.SizeGB = max(next.Volume.SizeGB, least)
		return nil
	}); err != nil {
		return err
	}
	return hangar.Errorf(hangar.CodeUnavailable, "", "volume %s has been extended to %d GB meanwhile", source, least)
}

// copyData copies what is in data, to where it was.
func copyData(ctx context.Context, dst io.WriterAt, src io.ReaderAt, data extent.List, progress func(hangar.Progress)) error {
	done := hangar.Progress{Total: data.Length()}
	buffer := make([]byte, copyStep)
	for _, e := range data {
		for at := e.Offset; at < e.End(); {
			progress(done)
			if err := ctx.Err(); err != nil {
				return err
			}
			part := buffer[:min(copyStep, e.End()-at)]
			if _, err := io.ReadFull(io.NewSectionReader(src, at, int64(len(part))), part); err != nil {
				return err
			}
			if _, err := dst.WriteAt(part, at); err != nil {
				return err
			}
			at += int64(len(part))
			done.Done += int64(len(part))
		}
	}
	progress(done)
	return nil
}

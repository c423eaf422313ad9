package volumes

import (
	"context"
	"io"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/extent"
)

// copyStep is how much of a volume is copied at once, in bytes.
const copyStep = 1 << 20

// forkable finds the source of a fork, and returns its size. The source keeps its content until
// release is called.
func (s *Store) forkable(spec *hangar.VolumeSpec) (size int64, release func(), err error) {
	none := func() {}
	v := s.byID(spec.Source)
	if v == nil || v.rec.Load().OrgID != spec.OrgID {
		return 0, none, hangar.VolumeNotFound(spec.Source)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	rec := v.rec.Load()
	if !rec.Volume.State.Usable() {
		return 0, none, wrongState("fork", rec)
	}
	v.forking.Add(1)
	return int64(max(rec.Volume.SizeGB, rec.Growing)) << 30, func() { v.forking.Add(-1) }, nil
}

// forked reports whether another volume is being made from this one, which keeps its key and
// its image until that is complete, destroyed or not.
func (v *volume) forked() bool {
	return v.forking.Load() > 0 || slices.ContainsFunc(v.store.all(), func(other *volume) bool {
		rec := other.rec.Load()
		return rec.Volume.Filling.Source == v.id && (rec.Volume.State == hangar.VolumeCreating || rec.Volume.State == hangar.VolumeRestoring)
	})
}

// hasContent reports whether a volume can be read, if only because it is still being read.
func hasContent(state hangar.VolumeState) bool {
	return state.Usable() || state == hangar.VolumePendingDestroy
}

// fork copies the present content of another volume to the target, and returns its kind. Later
// writes to that volume are not copied.
func (v *volume) fork(ctx context.Context, target Target, from hangar.VolumeID) (content hangar.FSType, err error) {
	source := v.store.byID(from)
	if source == nil || !hasContent(source.rec.Load().Volume.State) {
		return "", hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "volume %s is not there any more", from)
	}
	room, err := v.store.boundTarget(ctx, target, diskspace.ForkVolume, v.id, fillReserve)
	if err != nil {
		return "", err
	}
	err = source.frozen(ctx, diskspace.ForkVolume, "", func(view view) error {
		if err := v.growWith(ctx, from, view.Size()); err != nil {
			return err
		}
		if err := room.expect(view.data.Length()); err != nil {
			return err
		}
		content = view.content
		return copyData(ctx, room, view, view.data, v.filled)
	})
	return content, err
}

// growWith makes a fork as large as its source has become since the fork was requested. It fails
// if that was needed: the image has to be created again.
func (v *volume) growWith(ctx context.Context, source hangar.VolumeID, size int64) error {
	least := int((size + 1<<30 - 1) >> 30)
	if v.rec.Load().Volume.SizeGB >= least {
		return nil
	}
	if err := v.claiming(ctx, func(rec *journal.VolumeRecord) (*hangar.VolumeRow, error) {
		wanted := rowOf(rec)
		wanted.Volume.SizeGB = least
		return &wanted, nil
	}, func(rec *journal.VolumeRecord) error {
		return v.store.promises.make(ctx, rec.OrgID, least-rec.Volume.SizeGB, func() error {
			return v.commitTo(rec, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
				next.Volume.SizeGB = least
				return nil
			})
		})
	}); err != nil {
		return err
	}
	return hangar.Errorf(hangar.CodeUnavailable, "", "volume %s has been extended to %d GB meanwhile", source, least)
}

// copyData copies the ranges in data to the same offsets.
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

package host

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// publishVolumesOnce is publishOnce for volumes.
func (a *Agent) publishVolumesOnce(ctx context.Context) (int, error) {
	pending, err := a.o.Journal.UnpublishedVolumes(publishBatch)
	if err != nil || len(pending) == 0 {
		return 0, err
	}
	var group errgroup.Group
	group.SetLimit(publishers)
	for _, p := range pending { // each of another volume
		group.Go(func() error { return a.passOverVolume(p.Ref, a.publishVolume(ctx, p)) })
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return len(pending), a.o.Journal.PublishedVolumes(pending)
}

// passOverVolume is passOver for the row of a volume.
func (a *Agent) passOverVolume(ref hangar.VolumeRef, err error) error {
	if hangar.CodeOf(err) != hangar.CodeInvalid {
		return err
	}
	a.o.Log.Error("row of a volume is refused; it is published again when it changes", keyVolume, ref.ID, keyError, err)
	return nil
}

func (a *Agent) publishVolume(ctx context.Context, p journal.PendingVolume) error {
	if p.Deleted {
		return a.o.VolumePublisher.RetractVolume(ctx, a.o.Host.ID, p.Ref)
	}
	rec, err := a.o.Journal.Volume(p.Ref.ID)
	if errors.Is(err, journal.ErrNotFound) {
		return nil // its retraction is queued behind
	}
	if err != nil {
		return err
	}
	return a.o.VolumePublisher.PublishVolume(ctx, volumeRow(rec))
}

// republishVolumes is republish for volumes.
func (a *Agent) republishVolumes(ctx context.Context) error {
	published, err := a.o.VolumePublisher.PublishedVolumes(ctx, a.o.Host.ID)
	if err != nil {
		return err
	}
	for _, v := range a.allVolumes() {
		rec := v.rec.Load()
		ref := rec.Volume.Ref()
		if seq, ok := published[ref]; !ok || seq < rec.Seq {
			if err := a.passOverVolume(ref, a.publishVolume(ctx, journal.PendingVolume{Ref: ref})); err != nil {
				return err
			}
		}
		delete(published, ref)
	}
	for ref := range published {
		if a.volumes.unread[ref.ID] || a.volumeByID(ref.ID) != nil {
			continue // its record cannot be read, or it was created meanwhile
		}
		if err := a.o.VolumePublisher.RetractVolume(ctx, a.o.Host.ID, ref); err != nil {
			return err
		}
	}
	return nil
}

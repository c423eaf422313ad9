package volumes

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// How many rows are published in one go, and how many of them at once.
const (
	publishBatch = 256
	publishers   = 16
)

// PublishSome sends some of the rows of volumes that wait, the oldest, and returns how many.
func (s *Store) PublishSome(ctx context.Context) (int, error) {
	pending, err := s.o.Journal.UnpublishedVolumes(publishBatch)
	if err != nil || len(pending) == 0 {
		return 0, err
	}
	var group errgroup.Group
	group.SetLimit(publishers)
	for _, p := range pending { // each of another volume
		group.Go(func() error { return s.passOver(p.Ref, s.publish(ctx, p)) })
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return len(pending), s.o.Journal.PublishedVolumes(pending)
}

// passOver turns the refusal of one row into a line of the log: it concerns no other volume,
// whose rows must not queue behind it. What may succeed later stays an error.
func (s *Store) passOver(ref hangar.VolumeRef, err error) error {
	if hangar.CodeOf(err) != hangar.CodeInvalid {
		return err
	}
	s.o.Log.Error("row of a volume is refused; it is published again when it changes", keyVolume, ref.ID, keyError, err)
	return nil
}

func (s *Store) publish(ctx context.Context, p journal.PendingVolume) error {
	if p.Deleted {
		return s.o.Publisher.RetractVolume(ctx, s.o.Host, p.Ref)
	}
	rec, err := s.o.Journal.Volume(p.Ref.ID)
	if errors.Is(err, journal.ErrNotFound) {
		return nil // its retraction is queued behind
	}
	if err != nil {
		return err
	}
	return s.o.Publisher.PublishVolume(ctx, rowOf(rec))
}

// Republish sends the rows that lag although nothing waits in the journal, as after the
// cluster state was restored from a backup, and retracts those that no record claims.
func (s *Store) Republish(ctx context.Context) error {
	published, err := s.o.Publisher.PublishedVolumes(ctx, s.o.Host)
	if err != nil {
		return err
	}
	for _, v := range s.all() {
		rec := v.rec.Load()
		ref := rec.Volume.Ref()
		if seq, ok := published[ref]; !ok || seq < rec.Seq {
			if err := s.passOver(ref, s.publish(ctx, journal.PendingVolume{Ref: ref})); err != nil {
				return err
			}
		}
		delete(published, ref)
	}
	for ref := range published {
		if s.unread[ref.ID] || s.byID(ref.ID) != nil {
			continue // its record cannot be read, or it was created meanwhile
		}
		if err := s.o.Publisher.RetractVolume(ctx, s.o.Host, ref); err != nil {
			return err
		}
	}
	return nil
}

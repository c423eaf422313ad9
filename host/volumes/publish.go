package volumes

import (
	"context"
	"errors"
	"log/slog"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// rows are the volumes as the other planes see them.
type rows struct {
	index   *index
	journal *journal.Journal
	to      hangar.VolumePublisher
	host    hangar.HostID
	log     *slog.Logger
}

// PublishSome publishes some of the pending rows of volumes, the oldest, and returns how many.
func (r *rows) PublishSome(ctx context.Context) (int, error) {
	return journal.PublishSome(r.journal.UnpublishedVolumes, r.journal.PublishedVolumes, func(p journal.PendingVolume) error {
		return r.passOver(p.Ref, r.publish(ctx, p))
	})
}

// passOver logs the refusal of one row, because other volumes' rows must not queue behind it. It
// returns temporary errors.
func (r *rows) passOver(ref hangar.VolumeRef, err error) error {
	if hangar.CodeOf(err) != hangar.CodeInvalid && hangar.ReasonOf(err) != hangar.ReasonRecordDamaged {
		return err
	}
	r.log.Error("row of a volume is refused; it is published again when it changes", keyVolume, ref.ID, keyError, err)
	return nil
}

func (r *rows) publish(ctx context.Context, p journal.PendingVolume) error {
	if p.Deleted {
		return r.to.RetractVolume(ctx, r.host, p.Ref)
	}
	rec, err := r.journal.Volume(p.Ref.ID)
	if errors.Is(err, journal.ErrNotFound) {
		return nil // its retraction is queued behind, or it is unreadable
	}
	if err != nil {
		return err
	}
	return r.to.PublishVolume(ctx, rowOf(rec))
}

// Republish publishes rows that lag although the outbox is empty, as after the cluster state was
// restored from a backup, and retracts rows without a record.
func (r *rows) Republish(ctx context.Context) error {
	published, err := r.to.PublishedVolumes(ctx, r.host)
	if err != nil {
		return err
	}
	for _, v := range r.index.all() {
		rec := v.rec.Load()
		ref := rec.Volume.Ref()
		if seq, ok := published[ref]; !ok || seq < rec.Seq {
			if err := r.passOver(ref, r.publish(ctx, journal.PendingVolume{Ref: ref})); err != nil {
				return err
			}
		}
		delete(published, ref)
	}
	for ref := range published {
		if r.index.unread[ref.ID] || r.index.byID(ref.ID) != nil {
			continue // its record cannot be read, or it was created meanwhile
		}
		if err := r.to.RetractVolume(ctx, r.host, ref); err != nil {
			return err
		}
	}
	return nil
}

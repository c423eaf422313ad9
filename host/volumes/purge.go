package volumes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/finish"
)

// purgeDeadline bounds how long the removal of one volume may take while others wait for its
// room.
const purgeDeadline = time.Minute

// Purge removes the remains of volumes that can no longer be undeleted, and forgets volumes without
// snapshots.
func (s *Store) Purge(ctx context.Context) {
	for _, v := range s.all() {
		if !v.rec.Load().Volume.State.Gone() {
			continue
		}
		if s.purging.Acquire(ctx, 1) != nil {
			return
		}
		err := v.purge(ctx)
		s.purging.Release(1)
		if err != nil && ctx.Err() == nil {
			s.o.Log.Error("remove a destroyed volume", keyVolume, v.id, keyError, err)
		}
	}
}

// purge does the next steps of a destroyed volume that are due.
func (v *volume) purge(ctx context.Context) error {
	rec := v.rec.Load()
	if rec.Volume.State == hangar.VolumePendingDestroy && v.store.expiry.now().Sub(rec.Volume.DestroyedAt) >= hangar.VolumeGrace {
		if err := v.destroyKey(); err != nil {
			return err
		}
	}
	if v.rec.Load().Volume.State == hangar.VolumeDestroying {
		if _, err := v.destroyImage(ctx); err != nil {
			return err
		}
	}
	if rec := v.rec.Load(); rec.Volume.State == hangar.VolumeDestroyed && len(rec.Snapshots)+len(rec.Discarded) == 0 {
		return v.store.forget(v)
	}
	return nil
}

// destroyKey removes the key of a volume in hangar.VolumePendingDestroy, which makes it unreadable,
// unless a fork still reads it. events say why that is before its time.
func (v *volume) destroyKey(events ...hangar.VolumeEvent) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.rec.Load().Volume.State != hangar.VolumePendingDestroy || v.forked() {
		return nil // undeleted meanwhile, destroyed already, or still read by a fork
	}
	_, err := v.commit(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Volume.State = hangar.VolumeDestroying
		next.Key = nil
		return events
	})
	return err
}

// destroyImage removes the image of a volume without a key. It reports false while the image
// is still being read.
func (v *volume) destroyImage(ctx context.Context) (bool, error) {
	v.open.mu.Lock()
	defer v.open.mu.Unlock()
	return v.destroyUnread(ctx)
}

// destroyUnread is destroyImage. v.open.mu is held.
func (v *volume) destroyUnread(ctx context.Context) (bool, error) {
	if v.open.readers > 0 || v.rec.Load().Volume.State != hangar.VolumeDestroying {
		return false, nil
	}
	if err := finish.Do(ctx, purgeDeadline, v.closeAndRemove); err != nil {
		return false, fmt.Errorf("remove volume %s: %w", v.id, err)
	}
	_, err := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Volume.State = hangar.VolumeDestroyed
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventDestroy, Text: "its key and its image are gone"}}
	})
	return err == nil, err
}

// purgeNow removes a destroyed volume before its time. It reports false for a volume that is not destroyed, or whose
// content is still being read or changed. The key is gone before the image, and a daemon that is killed in between
// removes the image when it starts again. p.purging is held.
func (v *volume) purgeNow(ctx context.Context, why string) (bool, error) {
	if !v.open.mu.TryLock() {
		return false, nil
	}
	defer v.open.mu.Unlock()
	if v.open.readers > 0 {
		return false, nil
	}
	if err := v.destroyKey(hangar.VolumeEvent{Type: hangar.VolumeEventDestroy, Source: hangar.EventSourceFrom(ctx), Text: why}); err != nil {
		return false, err
	}
	return v.destroyUnread(ctx)
}

// reclaim removes destroyed volumes that could still be undeleted, until lacking bytes more may be
// promised: the oldest of an organization first, then the oldest of others. It reports whether it
// has removed any. If all of them together are not enough, it removes none. p.purging is held.
func (p *promises) reclaim(ctx context.Context, org hangar.OrgID, lacking int64) bool {
	var list []*volume
	var sum int64
	for _, v := range p.index.all() {
		if v.purgeable() {
			list = append(list, v)
			sum += int64(v.promised()) << 30
		}
	}
	if sum < lacking {
		return false
	}
	slices.SortStableFunc(list, func(x, y *volume) int {
		a, b := x.rec.Load(), y.rec.Load()
		if mine := a.OrgID == org; mine != (b.OrgID == org) {
			if mine {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Volume.DestroyedAt.Compare(b.Volume.DestroyedAt), cmp.Compare(x.id, y.id))
	})
	freed := false
	for _, v := range list {
		if lacking <= 0 || sum < lacking || ctx.Err() != nil {
			break
		}
		size := int64(v.promised()) << 30
		gone, err := v.purgeNow(ctx, "it cannot be undeleted any more: the server needs its room for other volumes")
		if err != nil {
			p.o.Log.ErrorContext(ctx, "remove a destroyed volume whose room is needed", keyVolume, v.id, keyError, err)
		}
		sum -= size
		if gone {
			freed = true
			lacking -= size
			p.o.Log.InfoContext(ctx, "destroyed volume removed before its time: its room is needed", keyVolume, v.id)
		}
	}
	return freed
}

// purgeable reports whether the removal of the volume would make room at once.
func (v *volume) purgeable() bool {
	state := v.rec.Load().Volume.State
	if v.promised() == 0 || state != hangar.VolumePendingDestroy && state != hangar.VolumeDestroying || !v.open.mu.TryLock() {
		return false
	}
	defer v.open.mu.Unlock()
	return v.open.readers == 0 && !v.forked()
}

// PurgeVolume implements hangar.VolumeAgent.
func (s *Store) PurgeVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	v, err := s.volume(ref)
	if err != nil {
		return nil, err
	}
	if err := s.purging.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.purging.Release(1)
	if !v.rec.Load().Volume.State.Gone() {
		return nil, wrongState("purge", v.rec.Load())
	}
	if v.rec.Load().Volume.State != hangar.VolumeDestroyed {
		why := "it was purged"
		if hangar.EventSourceFrom(ctx) == hangar.SourceAgent {
			why = "it cannot be undeleted any more: its organization needs its quota for other volumes"
		}
		gone, err := v.purgeNow(ctx, why)
		if err != nil {
			return nil, err
		}
		if !gone {
			return nil, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "volume %s is still being read", v.id)
		}
	}
	return v.row(ctx), nil
}

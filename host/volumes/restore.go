package volumes

import (
	"context"
	"errors"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

// restorable finds the snapshot to restore, and returns the size of its volume. The volume may be
// destroyed, or on another host that shares the archive, but not of another organization.
func (s *Store) restorable(ctx context.Context, spec *hangar.VolumeSpec) (size int64, err error) {
	for _, v := range s.all() {
		rec := v.rec.Load()
		i := slices.IndexFunc(rec.Snapshots, func(s hangar.Snapshot) bool { return s.ID == spec.Snapshot })
		switch {
		case i < 0 && slices.Contains(rec.Discarded, spec.Snapshot):
			return 0, snapshotNotFound() // even if the archive still has it
		case i < 0:
			continue
		}
		if rec.OrgID != spec.OrgID {
			return 0, snapshotNotFound()
		}
		if s := &rec.Snapshots[i]; s.State != hangar.SnapshotCreated {
			return 0, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState,
				"failed_precondition: snapshot %s is %s and cannot be restored", s.ID, s.State)
		}
		return rec.Snapshots[i].VolumeSize, nil
	}
	store, err := s.archiver.get(ctx)
	if err != nil {
		return 0, err
	}
	entry, err := store.Entry(ctx, spec.Snapshot)
	switch {
	case errors.Is(err, archive.ErrNotFound):
		return 0, snapshotNotFound()
	case err != nil:
		return 0, &hangar.Error{Code: hangar.CodeUnavailable, Message: "the archive of snapshots cannot be read", Err: err}
	case entry.OrgID != spec.OrgID:
		return 0, snapshotNotFound()
	}
	return entry.VolumeSize, nil
}

func snapshotNotFound() error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonSnapshotNotFound, "snapshot not found")
}

// restore writes a snapshot to the target, and returns the kind of its content.
func (v *volume) restore(ctx context.Context, target Target, id hangar.SnapshotID) (content hangar.FSType, err error) {
	store, err := v.store.archiver.getSoon(ctx)
	if err != nil {
		return "", err
	}
	room, err := v.store.boundTarget(ctx, target, diskspace.RestoreSnapshot, v.id, fillReserve)
	if err != nil {
		return "", err
	}
	entry, err := readArchive(ctx, store, id, room, v.filled)
	return entry.FSType, err
}

// filled stores the progress of the filling.
func (v *volume) filled(p hangar.Progress) { v.filling.Store(&p) }

package volumes

import (
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// failedKept is how long a failed snapshot is listed, and maxFailedKept bounds their number.
const (
	failedKept    = day
	maxFailedKept = 20
)

// expired reports whether a snapshot is to be removed.
func expired(s *hangar.Snapshot, now time.Time) bool {
	switch s.State {
	case hangar.SnapshotCreated:
		return !now.Before(s.Expires())
	case hangar.SnapshotFailed:
		return !now.Before(s.FinishedAt.Add(failedKept))
	default:
		return false
	}
}

// dispensable returns the snapshots of a volume that are to be removed: those that have expired,
// the oldest of too many failed ones and, of more than hangar.MaxSnapshots, the oldest daily
// ones. snapshots are newest first.
func dispensable(snapshots []hangar.Snapshot, now time.Time) []hangar.SnapshotID {
	var ids []hangar.SnapshotID
	kept, faulty := 0, 0
	for i := range snapshots {
		s := &snapshots[i]
		if s.State == hangar.SnapshotFailed {
			faulty++
		}
		switch {
		case expired(s, now), s.State == hangar.SnapshotFailed && faulty > maxFailedKept:
			ids = append(ids, s.ID)
		case s.State != hangar.SnapshotFailed:
			kept++
		}
	}
	for i := len(snapshots) - 1; i >= 0 && kept > hangar.MaxSnapshots; i-- {
		if s := &snapshots[i]; s.Daily && s.State == hangar.SnapshotCreated && !expired(s, now) {
			ids = append(ids, s.ID)
			kept--
		}
	}
	return ids
}

// roomForSnapshot reports whether a volume may have another snapshot: a daily one also
// if it can replace an older daily one.
func roomForSnapshot(snapshots []hangar.Snapshot, daily bool) bool {
	kept, replaceable := 0, false
	for i := range snapshots {
		s := &snapshots[i]
		if s.State != hangar.SnapshotFailed {
			kept++
		}
		replaceable = replaceable || s.Daily && s.State == hangar.SnapshotCreated
	}
	return kept < hangar.MaxSnapshots || daily && replaceable
}

// discard removes snapshots from the list of a volume. Their content in the archive is removed
// afterwards, even if the daemon is killed meanwhile: every listed snapshot can be restored, and no
// content stays stored indefinitely.
func discard(next *journal.VolumeRecord, ids ...hangar.SnapshotID) {
	if len(ids) == 0 {
		return
	}
	next.Snapshots = slices.DeleteFunc(slices.Clone(next.Snapshots), func(s hangar.Snapshot) bool {
		return slices.Contains(ids, s.ID)
	})
	next.Discarded = slices.Clone(next.Discarded)
	for _, id := range ids {
		if !slices.Contains(next.Discarded, id) {
			next.Discarded = append(next.Discarded, id)
		}
	}
}

package volumes

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// failedKept is how long a failed snapshot is listed, and maxFailedKept bounds their number.
const (
	failedKept    = day
	maxFailedKept = 20
)

// What is removed because of its age is lost, so that a clock which is wrong for a while must not decide that. settling
// is how long the clock has to run without having been set, and clockStep by how much it may have been.
const (
	settling  = time.Hour
	clockStep = time.Minute
)

// expiry is the clock by which snapshots expire and keys of destroyed volumes are destroyed.
type expiry struct {
	read func() (wall time.Time, elapsed time.Duration) // elapsed is of the monotonic clock, and 0 at first
	log  *slog.Logger

	mu    sync.Mutex
	wall  time.Time // both clocks at the first look since the clock was set, or the daemon started
	since time.Duration
}

func newExpiry(now func() time.Time, log *slog.Logger) *expiry {
	began := now()
	return &expiry{
		read: func() (time.Time, time.Duration) { at := now(); return at.Round(0), at.Sub(began) },
		log:  log, wall: began.Round(0),
	}
}

// now is the time, or the zero time, at which nothing has expired, while the clock may be wrong.
func (e *expiry) now() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	wall, elapsed := e.read()
	if step := wall.Sub(e.wall) - (elapsed - e.since); step.Abs() > clockStep {
		e.log.Warn("the clock was set: no snapshot expires and no destroyed volume is removed for a while", "by", step, "wait", settling)
		e.wall, e.since = wall, elapsed
	}
	if elapsed-e.since < settling {
		return time.Time{}
	}
	return wall
}

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

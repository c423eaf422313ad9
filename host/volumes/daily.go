package volumes

import (
	"hash/fnv"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

const (
	day  = 24 * time.Hour
	week = 7 * day
	// dailyRetry is how long after a failed daily snapshot the next attempt follows.
	dailyRetry = time.Hour
	// clockError is how far a clock may be set back without repeated work. A recorded time that is
	// further ahead is wrong.
	clockError = time.Hour
)

// ahead reports whether a time of the past cannot be right.
func ahead(t, now time.Time) bool { return t.After(now.Add(clockError)) }

// turn is the minute of a period at which a volume or App has its turn. Turns are spread, so that
// the disk is not used by all at once.
func turn(id string, period time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	return time.Duration(h.Sum64()%uint64(period/time.Minute)) * time.Minute
}

// latestTurn is the newest turn that is not after now. Days begin at midnight and weeks
// on Monday, UTC.
func latestTurn(id string, period time.Duration, now time.Time) time.Time {
	at := turn(id, period)
	return now.Add(-at).Truncate(period).Add(at)
}

// dueDaily reports whether the daily snapshot of a volume is due. Any number of turns that the
// server missed are made up for by one. A volume that was never used has none, nor has a damaged
// one, whose snapshots should not be replaced.
func dueDaily(rec *journal.VolumeRecord, now time.Time) bool {
	v := &rec.Volume
	if !v.AutoBackup || !v.State.Usable() || !used(rec) || rec.Damaged != "" {
		return false
	}
	due := latestTurn(string(v.ID), day, now)
	if v.CreatedAt.After(due) && !ahead(v.CreatedAt, now) {
		return false
	}
	for i := range rec.Snapshots {
		s := &rec.Snapshots[i]
		switch {
		case underWay(s):
			return false
		case !s.Daily || s.CreatedAt.Before(due) || ahead(s.CreatedAt, now):
		case s.State == hangar.SnapshotCreated, now.Before(s.FinishedAt.Add(dailyRetry)):
			return false
		}
	}
	return true
}

// used reports whether a volume may have content of its user.
func used(rec *journal.VolumeRecord) bool {
	return rec.Formatted || rec.Volume.Wanted == hangar.FSRaw
}

func underWay(s *hangar.Snapshot) bool {
	return s.State == hangar.SnapshotWaiting || s.State == hangar.SnapshotRunning
}

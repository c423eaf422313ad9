package volumes

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

var epoch = time.Date(2026, 8, 14, 0, 0, 0, 0, time.UTC) // a Friday

// A daily snapshot is taken once in every period in which the daemon runs at all, at the
// volume's own minute if the daemon runs then, and at most once for all that were missed.
func TestDailyTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := &journal.VolumeRecord{Formatted: true, Volume: hangar.Volume{
			ID:         hangar.VolumeID("vol_" + rapid.StringMatching(`[a-z0-9]{16}`).Draw(t, "id")),
			State:      hangar.VolumeCreated,
			AutoBackup: true, CreatedAt: epoch,
		}}
		at := turn(string(rec.Volume.ID), day)
		first := epoch.Add(at)
		if first.Before(epoch) || !first.Before(epoch.Add(day)) {
			t.Fatalf("the turn is %s into the day", at)
		}
		taken := map[int64]int{} // by period
		now := epoch
		for range rapid.IntRange(1, 200).Draw(t, "looks") {
			now = now.Add(rapid.SampledFrom([]time.Duration{
				time.Minute, time.Minute, 20 * time.Minute, 5 * time.Hour, day, 3 * day,
			}).Draw(t, "later"))
			period := int64(now.Sub(first) / day)
			due := dueDaily(rec, now)
			if want := !now.Before(first) && taken[period] == 0; due != want {
				t.Fatalf("at %s due is %t, want %t: the turn is at %s into the day, taken are %v", now, due, want, at, rec.Snapshots)
			}
			if due {
				taken[period]++
				s := hangar.Snapshot{State: hangar.SnapshotCreated, Daily: true, CreatedAt: wholeSecond(now), FinishedAt: now}
				rec.Snapshots = slices.Insert(rec.Snapshots, 0, s)
			}
		}
	})
}

// Turns differ from volume to volume.
func TestTurnsAreSpread(t *testing.T) {
	hours := map[time.Duration]int{}
	for i := range 2400 {
		hours[turn(fmt.Sprintf("vol_%016d", i), day).Truncate(time.Hour)]++
	}
	for hour := range 24 {
		if n := hours[time.Duration(hour)*time.Hour]; n < 50 || n > 200 {
			t.Errorf("of 2400 volumes %d have their turn in hour %d", n, hour)
		}
	}
}

func TestDueDaily(t *testing.T) {
	const id = "vol_0123456789abcdef"
	due := latestTurn(id, day, epoch.Add(2*day))
	now := due.Add(3 * time.Hour)
	usable := func(change func(*journal.VolumeRecord), snapshots ...hangar.Snapshot) *journal.VolumeRecord {
		rec := &journal.VolumeRecord{Formatted: true, Snapshots: snapshots, Volume: hangar.Volume{
			ID: id, State: hangar.VolumeCreated, AutoBackup: true, CreatedAt: epoch.Add(-day),
		}}
		if change != nil {
			change(rec)
		}
		return rec
	}
	daily := func(state hangar.SnapshotState, began, ended time.Duration) hangar.Snapshot {
		return hangar.Snapshot{State: state, Daily: true, CreatedAt: due.Add(began), FinishedAt: due.Add(ended)}
	}
	for name, tt := range map[string]struct {
		rec *journal.VolumeRecord
		due bool
	}{
		"none yet":            {usable(nil), true},
		"that of yesterday":   {usable(nil, daily(hangar.SnapshotCreated, -day, -day)), true},
		"that of today":       {usable(nil, daily(hangar.SnapshotCreated, 0, time.Minute)), false},
		"one on demand":       {usable(nil, hangar.Snapshot{State: hangar.SnapshotCreated, CreatedAt: now}), true},
		"one runs":            {usable(nil, hangar.Snapshot{State: hangar.SnapshotRunning, CreatedAt: now}), false},
		"one waits":           {usable(nil, hangar.Snapshot{State: hangar.SnapshotWaiting, CreatedAt: now}), false},
		"failed a while ago":  {usable(nil, daily(hangar.SnapshotFailed, 0, time.Hour)), true},
		"failed just now":     {usable(nil, daily(hangar.SnapshotFailed, 0, 2*time.Hour+time.Minute)), false},
		"not wanted":          {usable(func(r *journal.VolumeRecord) { r.Volume.AutoBackup = false }), false},
		"destroyed":           {usable(func(r *journal.VolumeRecord) { r.Volume.State = hangar.VolumePendingDestroy }), false},
		"never used":          {usable(func(r *journal.VolumeRecord) { r.Formatted = false }), false},
		"raw":                 {usable(func(r *journal.VolumeRecord) { r.Formatted, r.Volume.Wanted = false, hangar.FSRaw }), true},
		"damaged":             {usable(func(r *journal.VolumeRecord) { r.Damaged = "superblock" }), false},
		"clock was set back":  {usable(nil, daily(hangar.SnapshotCreated, 400*day, 400*day)), true},
		"clock was put right": {usable(nil, daily(hangar.SnapshotCreated, 3*time.Hour+time.Minute, 3*time.Hour+time.Minute)), false},
		"made in the future":  {usable(func(r *journal.VolumeRecord) { r.Volume.CreatedAt = due.Add(400 * day) }), true},
		"made after its turn": {usable(func(r *journal.VolumeRecord) { r.Volume.CreatedAt = due.Add(time.Second) }), false},
	} {
		if got := dueDaily(tt.rec, now); got != tt.due {
			t.Errorf("%s: due is %t", name, got)
		}
	}
}

// For any volume, a removed snapshot has expired or is the oldest daily one of too many; the rest
// is not too many unless nothing of it is daily.
func TestDispensable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := epoch.Add(100 * day)
		var list []hangar.Snapshot
		for i := range rapid.IntRange(0, hangar.MaxSnapshots+20).Draw(t, "snapshots") {
			s := hangar.Snapshot{
				ID:            hangar.SnapshotID(fmt.Sprintf("vs_%03d", i)),
				CreatedAt:     now.Add(-time.Duration(i) * time.Duration(rapid.IntRange(0, 40).Draw(t, "apart")) * time.Hour),
				RetentionDays: rapid.IntRange(hangar.MinSnapshotRetention, hangar.MaxSnapshotRetention).Draw(t, "retention"),
				Daily:         rapid.Bool().Draw(t, "daily"),
				State:         rapid.SampledFrom([]hangar.SnapshotState{hangar.SnapshotCreated, hangar.SnapshotCreated, hangar.SnapshotFailed}).Draw(t, "state"),
			}
			s.FinishedAt = s.CreatedAt
			list = append(list, s)
		}
		slices.SortStableFunc(list, func(a, b hangar.Snapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
		rec := &journal.VolumeRecord{Snapshots: slices.Clone(list)}
		gone := dispensable(list, now)
		discard(rec, gone...)
		if len(rec.Snapshots)+len(gone) != len(list) || !slices.Equal(rec.Discarded, gone) {
			t.Fatalf("%d stay, %d go, %d are discarded, of %d", len(rec.Snapshots), len(gone), len(rec.Discarded), len(list))
		}
		kept, daily, faulty, youngest := 0, 0, 0, time.Time{}
		for i := range list {
			s := &list[i]
			if s.State == hangar.SnapshotFailed {
				faulty++
			}
			switch {
			case s.State == hangar.SnapshotFailed && faulty > maxFailedKept:
				if !slices.Contains(gone, s.ID) {
					t.Fatalf("%+v is kept beside %d newer ones", s, faulty-1)
				}
			case slices.Contains(gone, s.ID):
				if !expired(s, now) && !s.Daily {
					t.Fatalf("%+v is removed at %s", s, now)
				}
				if !expired(s, now) && s.CreatedAt.After(youngest) {
					youngest = s.CreatedAt
				}
			case expired(s, now):
				t.Fatalf("%+v is kept at %s", s, now)
			case s.State == hangar.SnapshotCreated:
				if kept++; s.Daily {
					daily++
				}
			}
		}
		if kept > hangar.MaxSnapshots && daily > 0 {
			t.Fatalf("%d are kept, of which %d are daily", kept, daily)
		}
		if !youngest.IsZero() && kept < hangar.MaxSnapshots {
			t.Fatalf("one of %s was removed although only %d are kept", youngest, kept)
		}
		for i := range rec.Snapshots {
			if s := &rec.Snapshots[i]; s.Daily && s.State == hangar.SnapshotCreated && s.CreatedAt.Before(youngest) {
				t.Fatalf("one of %s was removed, and an older one of %s kept", youngest, s.CreatedAt)
			}
		}
	})
}

func TestRoomForSnapshot(t *testing.T) {
	full := func(daily bool) []hangar.Snapshot {
		return slices.Repeat([]hangar.Snapshot{{State: hangar.SnapshotCreated, Daily: daily}}, hangar.MaxSnapshots)
	}
	for name, tt := range map[string]struct {
		has             []hangar.Snapshot
		onDemand, daily bool
	}{
		"none":                     {nil, true, true},
		"one less":                 {full(false)[1:], true, true},
		"as many on demand":        {full(false), false, false},
		"as many daily":            {full(true), false, true},
		"failed ones do not count": {slices.Repeat([]hangar.Snapshot{{State: hangar.SnapshotFailed}}, hangar.MaxSnapshots), true, true},
	} {
		if got := roomForSnapshot(tt.has, false); got != tt.onDemand {
			t.Errorf("%s: room on demand is %t", name, got)
		}
		if got := roomForSnapshot(tt.has, true); got != tt.daily {
			t.Errorf("%s: room for a daily one is %t", name, got)
		}
	}
}

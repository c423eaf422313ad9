package volumes

import (
	"log/slog"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// TestClockThatIsSet: while the clock may be wrong, no snapshot expires and no key is destroyed; both are once the clock
// has run for an hour, whether or not it was right.
func TestClockThatIsSet(t *testing.T) {
	s, v, _ := oneVolume(t)
	wall, elapsed := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Duration(0)
	s.expiry = newExpiry(func() time.Time { return wall }, slog.New(slog.DiscardHandler))
	s.expiry.read = func() (time.Time, time.Duration) { return wall, elapsed }
	v.open.readers = 1 // so that the image stays
	_, err := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Volume.State, next.Volume.DestroyedAt, next.Key = hangar.VolumePendingDestroy, wall, []byte("key")
		next.Snapshots = []hangar.Snapshot{{ID: "vs_1", State: hangar.SnapshotCreated, CreatedAt: wall, RetentionDays: 1}}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name     string
		set, run time.Duration
		expires  bool
	}{
		{name: "wrong at the start", set: 48 * time.Hour},
		{name: "still wrong", run: 59 * time.Minute},
		{name: "right", set: -48 * time.Hour},
		{name: "right for an hour", run: time.Hour},
		{name: "wrong for a minute", set: 48 * time.Hour, run: time.Minute},
		{name: "right again", set: -48 * time.Hour, run: time.Minute},
		{name: "adjusted", set: 30 * time.Second, run: 21 * time.Hour},
		{name: "a day later", run: 2 * time.Hour, expires: true},
	} {
		wall, elapsed = wall.Add(step.set+step.run), elapsed+step.run
		if err := v.expire(); err != nil {
			t.Fatal(err)
		}
		if err := v.purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		rec := v.rec.Load()
		if expired, destroyed := len(rec.Snapshots) == 0, rec.Key == nil; expired != step.expires || destroyed != step.expires {
			t.Fatalf("%s: the snapshot expired is %t, the key destroyed %t, want %t", step.name, expired, destroyed, step.expires)
		}
	}
}

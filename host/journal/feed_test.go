package journal_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// fed appends events of a Machine and returns their ids.
func fed(tb testing.TB, j *journal.Journal, machine, n int) (ids []hangar.EventID) {
	tb.Helper()
	commit(tb, j, func(tx *journal.Tx) error {
		var events []hangar.Event
		for range n {
			events = append(events, hangar.Event{ID: hangar.NewEventID(time.Now()), Type: hangar.EventStart, Status: "started"})
		}
		ids = ids[:0]
		for _, e := range events {
			ids = append(ids, e.ID)
		}
		r := record(machineID(machine), "m")
		r.OrgID = "acme"
		return tx.AppendEvents(r, events)
	})
	return ids
}

// feedAfter reads the feed.
func feedAfter(tb testing.TB, j *journal.Journal, number uint64, limit int) (events []hangar.MachineEvent, last uint64) {
	tb.Helper()
	events, last, err := j.FeedAfter(number, limit)
	if err != nil {
		tb.Fatal(err)
	}
	return events, last
}

func feedIDs(events []hangar.MachineEvent) (ids []hangar.EventID) {
	for _, e := range events {
		ids = append(ids, e.Event.ID)
	}
	return ids
}

// TestFeed: it has the events of all Machines in the order of their commits, across a restart,
// until they are taken.
func TestFeed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j, err := journal.Open(path, journal.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	if events, last := feedAfter(t, j, 0, 10); len(events) != 0 || last != 0 {
		t.Errorf("an empty feed has %v up to %d", events, last)
	}
	want := slices.Concat(fed(t, j, 1, 2), fed(t, j, 2, 1), fed(t, j, 1, 1))
	select {
	case <-j.Fed():
	default:
		t.Error("there is no signal for new events")
	}
	err = j.Commit(func(tx *journal.Tx) error {
		return errors.Join(tx.AppendEvents(record(machineID(3), "m"), []hangar.Event{{ID: "x"}}), errors.New("refused"))
	})
	if err == nil {
		t.Fatal("no error")
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = reopen(t, path, journal.Options{NoSync: true})
	all, last := feedAfter(t, j, 0, 10)
	if !slices.Equal(feedIDs(all), want) || last != 4 {
		t.Fatalf("the feed has %v up to %d, want %v", feedIDs(all), last, want)
	}
	first := all[0]
	if first.Seq != 1 || first.Machine != machineID(1) || first.App != "app" || first.AppID != "app" || first.OrgID != "acme" || first.Event.Status != "started" {
		t.Errorf("the first is %+v", first)
	}
	if some, last := feedAfter(t, j, 1, 2); !slices.Equal(feedIDs(some), want[1:3]) || last != 3 {
		t.Errorf("two after the first: %v up to %d", feedIDs(some), last)
	}
	if none, last := feedAfter(t, j, 4, 2); len(none) != 0 || last != 4 {
		t.Errorf("after the last: %v up to %d", none, last)
	}
	if again, last := feedAfter(t, j, 99, 10); len(again) != 4 || last != 4 {
		t.Errorf("after a number of another journal: %v up to %d", again, last)
	}
	if err := j.FeedTaken(3); err != nil {
		t.Fatal(err)
	}
	if left, _ := feedAfter(t, j, 0, 10); !slices.Equal(feedIDs(left), want[3:]) {
		t.Errorf("left are %v", feedIDs(left))
	}
	if events, err := j.Events(machineID(1), 0); err != nil || len(events) != 3 {
		t.Errorf("the Machine has %d events, %v", len(events), err)
	}
}

// TestFeedIsBounded: the oldest untaken events are dropped, and numbers continue.
func TestFeedIsBounded(t *testing.T) {
	t.Parallel()
	j := open(t, journal.Options{NoSync: true})
	const more = 500
	for range journal.MaxFeed / more {
		fed(t, j, 1, more)
	}
	fed(t, j, 2, more)
	events, last := feedAfter(t, j, 0, journal.MaxFeed+more)
	if len(events) != journal.MaxFeed || events[0].Seq != more+1 || last != journal.MaxFeed+more {
		t.Errorf("%d events from %d up to %d", len(events), events[0].Seq, last)
	}
}

// BenchmarkFeed measures the cost of an event with and without the feed.
func BenchmarkFeed(b *testing.B) {
	for name, with := range map[string]bool{"with": true, "without": false} {
		b.Run(name, func(b *testing.B) {
			j := open(b, journal.Options{})
			r := record(machineID(1), "m")
			put(b, j, r)
			e := hangar.Event{ID: hangar.NewEventID(time.Now()), Type: hangar.EventStart, Status: "started", Source: hangar.SourceUser, Timestamp: 1786708800000}
			for b.Loop() {
				commit(b, j, func(tx *journal.Tx) error {
					if with {
						return errors.Join(tx.PutMachine(r), tx.AppendEvents(r, []hangar.Event{e}))
					}
					return errors.Join(tx.PutMachine(r), tx.AppendEvent(r.Machine.ID, e))
				})
			}
		})
	}
}

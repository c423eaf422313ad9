package catalog

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/hangar-platform/hangar"
)

// changes is a feed that ends.
type changes []hangar.MachineRowChange

func (c changes) WatchMachines(context.Context) iter.Seq2[hangar.MachineRowChange, error] {
	return func(yield func(hangar.MachineRowChange, error) bool) {
		for _, change := range c {
			if !yield(change, nil) {
				return
			}
		}
	}
}

// TestObserversBeforeAwait: while observers are notified of a change, also of a row that is gone, AwaitMachine does not
// return with it.
func TestObserversBeforeAwait(t *testing.T) {
	row := func(id hangar.MachineID) *hangar.MachineRow {
		return &hangar.MachineRow{Seq: 1, Network: 1, Machine: hangar.Machine{ID: id, App: "web", AppID: "app", State: hangar.MachineStarted}}
	}
	feed := changes{{ID: "1", Row: row("1")}, {ID: "2", Row: row("2")}, {ID: "1"}, {Synced: true}}
	c := New(feed, nil)
	var told []string
	c.Observe(func(old, now *hangar.MachineRow) {
		if c.settling.TryLock() {
			c.settling.Unlock()
			t.Errorf("a caller of AwaitMachine would go ahead of observers: %v, %v", old != nil, now != nil)
		}
		if now != nil {
			told = append(told, "+"+string(now.Machine.ID))
		} else {
			told = append(told, "-"+string(old.Machine.ID))
		}
	})
	_ = c.follow(t.Context())
	c.feed = changes{{Synced: true}} // 2 is gone when the feed is taken up again
	_ = c.follow(t.Context())
	if want := "[+1 +2 -1 -2]"; fmt.Sprint(told) != want || c.Len() != 0 {
		t.Errorf("told %v, want %s; %d rows", told, want, c.Len())
	}
}

// Package edgetest has the feeds of Apps and Machines that drive the edge in tests.
package edgetest

import (
	"context"
	"iter"
	"sync"

	"github.com/hangar-platform/hangar"
)

// Feed is a hangar.MachineFeed and a hangar.RouteFeed whose contents tests set. A watcher gets
// what came before, Synced, and every later change in order. Use NewFeed. A Feed is safe for
// concurrent use.
type Feed struct {
	machines changes[hangar.MachineRowChange]
	routes   changes[hangar.RouteChange]

	mu   sync.Mutex // guards what follows, and keeps changes in their order
	seq  uint64
	rows map[hangar.MachineID]*hangar.MachineRow
}

var (
	_ hangar.MachineFeed = (*Feed)(nil)
	_ hangar.RouteFeed   = (*Feed)(nil)
)

// NewFeed returns one without Apps and Machines.
func NewFeed() *Feed { return &Feed{rows: map[hangar.MachineID]*hangar.MachineRow{}} }

// PutRoute adds or changes an App, and sets Seq.
func (f *Feed) PutRoute(r hangar.AppRoute) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq++
	r.Seq = f.seq
	f.routes.add(hangar.RouteChange{App: r.ID, Route: &r})
}

// Put adds or changes a Machine, and returns the Seq that it sets.
func (f *Feed) Put(row hangar.MachineRow) (seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq++
	row.Seq = f.seq
	f.rows[row.Machine.ID] = &row
	f.machines.add(hangar.MachineRowChange{ID: row.Machine.ID, Row: &row})
	return f.seq
}

// Remove removes a Machine.
func (f *Feed) Remove(id hangar.MachineID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.rows, id)
	f.machines.add(hangar.MachineRowChange{ID: id})
}

// Row is the last row that was put for a Machine.
func (f *Feed) Row(id hangar.MachineID) (hangar.MachineRow, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if row := f.rows[id]; row != nil {
		return *row, true
	}
	return hangar.MachineRow{}, false
}

// Machines are the ids of the Machines.
func (f *Feed) Machines() []hangar.MachineID {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := make([]hangar.MachineID, 0, len(f.rows))
	for id := range f.rows {
		ids = append(ids, id)
	}
	return ids
}

// WatchMachines implements hangar.MachineFeed.
func (f *Feed) WatchMachines(ctx context.Context) iter.Seq2[hangar.MachineRowChange, error] {
	return f.machines.watch(ctx, hangar.MachineRowChange{Synced: true})
}

// WatchRoutes implements hangar.RouteFeed.
func (f *Feed) WatchRoutes(ctx context.Context) iter.Seq2[hangar.RouteChange, error] {
	return f.routes.watch(ctx, hangar.RouteChange{Synced: true})
}

// changes are all that there were.
type changes[C any] struct {
	mu    sync.Mutex // guards what follows
	all   []C
	added chan struct{} // closed by the next one; nil: no waiters
}

func (c *changes[C]) add(change C) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, change)
	if c.added != nil {
		close(c.added)
		c.added = nil
	}
}

// from returns the changes from the n-th on, and a channel that the next one closes.
func (c *changes[C]) from(n int) ([]C, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.added == nil {
		c.added = make(chan struct{})
	}
	return c.all[n:], c.added
}

func (c *changes[C]) watch(ctx context.Context, synced C) iter.Seq2[C, error] {
	return func(yield func(C, error) bool) {
		for n := 0; ; {
			news, added := c.from(n)
			for _, change := range news {
				if !yield(change, nil) {
					return
				}
			}
			if n == 0 && !yield(synced, nil) {
				return
			}
			n += len(news)
			select {
			case <-added:
			case <-ctx.Done():
				var none C
				yield(none, ctx.Err())
				return
			}
		}
	}
}

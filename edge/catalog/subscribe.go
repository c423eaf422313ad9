package catalog

import (
	"context"
	"slices"
	"sync"

	"github.com/hangar-platform/hangar"
)

// Subscribe returns a channel that receives a value after rows of app changed; an empty app means
// any. Changes that the subscriber has not received yet become one signal: subscribe, then read
// the rows, then wait. The channel is never closed. cancel ends the subscription and may be
// repeated.
func (c *Catalog) Subscribe(app hangar.AppID) (changed <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	c.subs.add(app, ch)
	return ch, func() { c.subs.remove(app, ch) }
}

// AwaitMachine implements hangar.MachineView: observers have been notified of the row, too.
func (c *Catalog) AwaitMachine(ctx context.Context, ref hangar.MachineRef, seq uint64) error {
	changed, cancel := c.Subscribe(ref.AppID)
	defer cancel()
	seen := false
	for {
		c.settling.Lock()
		row, ok := c.Machine(ref.ID)
		c.settling.Unlock()
		if ok && row.Seq >= seq || seen && !ok {
			return nil
		}
		seen = ok
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Observer is called for every change of a row, in order and one at a time, right after the
// change became visible: old is nil for a new row, row for one that is gone. Run calls it and
// continues when it returns.
type Observer func(old, row *hangar.MachineRow)

// Observe adds an Observer for as long as the Catalog lives. It is not notified of earlier
// changes.
func (c *Catalog) Observe(o Observer) {
	c.subs.mu.Lock()
	defer c.subs.mu.Unlock()
	c.subs.observers = append(slices.Clip(c.subs.observers), o)
}

func (c *Catalog) tell(old, row *hangar.MachineRow) {
	c.subs.mu.Lock()
	observers := c.subs.observers
	c.subs.mu.Unlock()
	for _, o := range observers {
		o(old, row)
	}
}

// subscriptions are grouped by App, so that a change costs only those that it
// concerns.
type subscriptions struct {
	mu    sync.Mutex
	byApp map[hangar.AppID]map[chan struct{}]struct{}

	observers []Observer // replaced, never altered
}

func (s *subscriptions) add(app hangar.AppID, ch chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byApp == nil {
		s.byApp = make(map[hangar.AppID]map[chan struct{}]struct{})
	}
	if s.byApp[app] == nil {
		s.byApp[app] = make(map[chan struct{}]struct{})
	}
	s.byApp[app][ch] = struct{}{}
}

func (s *subscriptions) remove(app hangar.AppID, ch chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byApp[app], ch)
	if len(s.byApp[app]) == 0 {
		delete(s.byApp, app)
	}
}

func (s *subscriptions) notify(app hangar.AppID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range [...]hangar.AppID{app, ""} {
		for ch := range s.byApp[id] {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
}

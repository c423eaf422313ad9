package proxy

import (
	"context"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
)

// stays are the requests that are in Machines. A Machine that was killed says nothing on its
// connections; who waits for it has to be told.
type stays struct {
	mu  sync.Mutex
	all map[hangar.MachineID]*stay // the last that came, and so on
}

// stay is the one of a request. It ends before that in another Machine begins.
type stay struct {
	of         *stays
	seat       *balance.Seat // nil: it is nowhere
	cut        func()        // ends what waits for the Machine; nil: nothing does
	over       bool          // the Machine's program has ended
	next, prev *stay
}

func newStays() *stays { return &stays{all: make(map[hangar.MachineID]*stay)} }

// enter begins a stay.
func (s *stays) enter(in *stay, seat *balance.Seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := seat.Row.Machine.ID
	*in = stay{of: s, seat: seat, next: s.all[id]}
	if in.next != nil {
		in.next.prev = in
	}
	s.all[id] = in
}

// attach has cut called when the Machine's program ends, or at once if it has.
func (in *stay) attach(cut func()) {
	in.of.mu.Lock()
	in.cut = cut
	over := in.over
	in.of.mu.Unlock()
	if over {
		cut()
	}
}

// leave ends a stay, and leaves the seat. It may be repeated.
func (in *stay) leave() {
	if in.seat == nil {
		return
	}
	in.unlink()
	in.seat.Leave()
	in.seat, in.cut = nil, nil
}

func (in *stay) unlink() {
	s, id := in.of, in.seat.Row.Machine.ID
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.next != nil {
		in.next.prev = in.prev
	}
	switch {
	case in.prev != nil:
		in.prev.next = in.next
	case in.next != nil:
		s.all[id] = in.next
	default:
		delete(s.all, id)
	}
}

// abandon is leave for a request that was given up in the middle.
func (in *stay) abandon() {
	if in.seat != nil && in.cut != nil {
		in.cut()
	}
	in.leave()
}

// end cuts what waits for a program that has ended.
func (s *stays) end(e balance.Ending) {
	var cuts []func()
	s.mu.Lock()
	for in := s.all[e.Machine]; in != nil; in = in.next {
		if e.Ends(in.seat.Row) && !in.over {
			in.over = true
			if in.cut != nil {
				cuts = append(cuts, in.cut)
			}
		}
	}
	s.mu.Unlock()
	for _, cut := range cuts {
		cut()
	}
}

// during returns a context that ends with the Machine's program, too.
func (in *stay) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	in.attach(func() { cancel(errEnded) })
	return ctx, func() { cancel(nil) }
}

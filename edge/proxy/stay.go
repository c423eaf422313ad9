package proxy

import (
	"context"

	"github.com/hangar-platform/hangar/edge/balance"
)

// stay is that of a request in a Machine. A Machine that was killed says nothing on its
// connections; who waits for it has to be told.
type stay struct {
	permit *balance.Permit // nil: it is nowhere
	cut    func()          // ends what waits for the Machine; nil: nothing does
}

// enter begins a stay. It ends before that in another Machine begins.
func (in *stay) enter(permit *balance.Permit) { *in = stay{permit: permit} }

// attach has cut called when the Machine's program ends, or has ended, in the place of what
// was attached before.
func (in *stay) attach(cut func()) {
	in.cut = cut
	in.permit.OnExit(cut)
}

// leave ends a stay, and leaves the seat. It may be repeated.
func (in *stay) leave() {
	if in.permit == nil {
		return
	}
	in.permit.Release()
	in.permit, in.cut = nil, nil
}

// abandon is leave for a request that was given up in the middle.
func (in *stay) abandon() {
	if in.permit != nil && in.cut != nil {
		in.cut()
	}
	in.leave()
}

// during returns a context that ends with the Machine's program, too.
func (in *stay) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	in.attach(func() { cancel(errEnded) })
	return ctx, func() { cancel(nil) }
}

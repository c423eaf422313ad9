package proxy

import (
	"context"

	"github.com/hangar-platform/hangar/edge/balance"
)

// admission is the presence of a request in a Machine. Connections to a killed Machine may stay
// silent, so the end of its program cancels what waits for them.
type admission struct {
	permit *balance.Permit // nil: none is held
	cancel func()          // cancels what waits for the Machine; nil: nothing waits
}

// begin holds a permit. The previous one has ended.
func (ad *admission) begin(permit *balance.Permit) { *ad = admission{permit: permit} }

// onExit registers cancel to be called when the Machine's program exits, or immediately if it has
// exited. It replaces an earlier cancel.
func (ad *admission) onExit(cancel func()) {
	ad.cancel = cancel
	ad.permit.OnExit(cancel)
}

// end releases the permit. It may be repeated.
func (ad *admission) end() {
	if ad.permit == nil {
		return
	}
	ad.permit.Release()
	ad.permit, ad.cancel = nil, nil
}

// refused ends the permit of a request that the host did not let in.
func (ad *admission) refused(err error) {
	ad.permit.Refused(err)
	*ad = admission{}
}

// abort is end for a request that was abandoned before its answer was complete.
func (ad *admission) abort() {
	if ad.permit != nil && ad.cancel != nil {
		ad.cancel()
	}
	ad.end()
}

// withExit returns a context that also ends when the Machine's program exits.
func (ad *admission) withExit(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	ad.onExit(func() { cancel(errExited) })
	return ctx, func() { cancel(nil) }
}

package mount

import (
	"context"
	"time"
)

// request is the context of a kernel request. A waiting request may be interrupted.
type request struct{ done <-chan struct{} }

// Deadline implements context.Context.
func (request) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (r request) Done() <-chan struct{} { return r.done }

// Err implements context.Context.
func (r request) Err() error {
	select {
	case <-r.done:
		return context.Canceled
	default:
		return nil
	}
}

// Value implements context.Context.
func (request) Value(any) any { return nil }

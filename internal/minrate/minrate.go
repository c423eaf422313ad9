// Package minrate ends transfers that are too slow.
//
// A Reader belongs to one goroutine.
package minrate

import (
	"context"
	"errors"
	"io"
	"time"
)

// ErrTooSlow is the error of a transfer that was ended, and the cancellation cause of its context.
var ErrTooSlow = errors.New("the transfer is too slow")

// Reader ends a transfer whose average rate within a window is below the minimum. Time between
// reads does not count.
type Reader struct {
	inner  io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	window time.Duration
	need   int64 // bytes in a window

	got    int64 // in this window
	waited time.Duration
}

// New returns a Reader that requires at least rate bytes a second. cancel must end ctx, which must
// end a read of inner in progress.
func New(ctx context.Context, cancel context.CancelCauseFunc, inner io.ReadCloser, rate int, window time.Duration) *Reader {
	r := &Reader{inner: inner, ctx: ctx, cancel: cancel, window: window, need: int64(float64(rate) * window.Seconds())}
	r.timer = time.AfterFunc(time.Hour, func() { cancel(ErrTooSlow) })
	r.timer.Stop()
	return r
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	began := time.Now()
	r.timer.Reset(max(r.window-r.waited, 0))
	n, err := r.inner.Read(p)
	r.timer.Stop()
	r.got, r.waited = r.got+int64(n), r.waited+time.Since(began)
	if r.got >= r.need {
		r.got, r.waited = 0, 0
	}
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(r.ctx), ErrTooSlow) {
		err = ErrTooSlow
	}
	return n, err
}

// Close implements io.Closer, and ends the context.
func (r *Reader) Close() error {
	r.timer.Stop()
	r.cancel(nil)
	return r.inner.Close()
}

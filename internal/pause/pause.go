// Package pause waits for a time or the end of a context, also between attempts.
package pause

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// For waits for d, and returns the error of ctx as soon as ctx ends. It returns at once if d is not
// positive.
func For(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Helps reports whether an attempt, such as one to accept a connection, failed for lack of descriptors or memory,
// which may be there again soon.
func Helps(err error) bool {
	e, _ := errors.AsType[syscall.Errno](err)
	return e == syscall.EMFILE || e == syscall.ENFILE || e == syscall.ENOBUFS || e == syscall.ENOMEM
}

// Backoff is how long the pauses between attempts are: they double from First to Most, and begin with First again
// after an attempt that took longer than Most.
type Backoff struct{ First, Most time.Duration }

// Feeds is for feeds of the daemon that break, which all do while the cluster state cannot be reached.
var Feeds = Backoff{First: 100 * time.Millisecond, Most: time.Second}

// repeatAfter is when Between reports an error again that has not changed.
const repeatAfter = time.Minute

// Between repeats work, such as following a feed that breaks, with pauses in between, until ctx ends, and returns the
// error of ctx. It reports an error of work when it differs from the one before, and otherwise once a minute.
func Between(ctx context.Context, b Backoff, work func(context.Context) error, report func(error)) error {
	var last string    // what was reported
	var when time.Time // it was
	for d := b.First; ; d = min(2*d, b.Most) {
		began := time.Now()
		err := work(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		ended := time.Now()
		if ended.Sub(began) > b.Most {
			d, last = b.First, ""
		}
		if err != nil && (err.Error() != last || ended.Sub(when) >= repeatAfter) {
			report(err)
			last, when = err.Error(), ended
		}
		if err := For(ctx, d); err != nil {
			return err
		}
	}
}

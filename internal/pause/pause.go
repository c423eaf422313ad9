// Package pause waits for a time or the end of a context, also between attempts.
package pause

import (
	"context"
	"time"
)

// For returns nil after d, and the context's error as soon as it ends. It does not wait for a
// d that is not positive.
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

// Between repeats work with a pause after each time, such as following a feed that breaks, until
// ctx ends. It calls failed with the result of work, and returns the context's error.
func Between(ctx context.Context, d time.Duration, work func(context.Context) error, failed func(error)) error {
	for {
		err := work(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed(err)
		if err := For(ctx, d); err != nil {
			return err
		}
	}
}

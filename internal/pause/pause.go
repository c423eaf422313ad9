// Package pause waits for a time or the end of a context, also between attempts.
package pause

import (
	"context"
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

// Between repeats work, such as following a feed that breaks, with pauses in between, until ctx ends.
// It calls failed with each result of work, and returns the error of ctx.
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

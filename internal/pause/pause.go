// Package pause waits, at most as long as a context lasts.
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

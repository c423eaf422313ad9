// Package flight shares the result of one call among concurrent callers.
package flight

import (
	"context"
	"errors"

	"golang.org/x/sync/singleflight"
)

// Do runs do for the first of concurrent callers with a key, and returns its result to all. If that
// caller's context ends, another caller runs its own do.
func Do[T any](ctx context.Context, group *singleflight.Group, key string, do func() (T, error)) (T, error) {
	for {
		mine := false
		got, err, _ := group.Do(key, func() (any, error) {
			mine = true
			return do()
		})
		cut := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
		if mine || !cut || ctx.Err() != nil {
			return got.(T), err
		}
	}
}

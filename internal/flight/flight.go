// Package flight shares the result of a call among those who ask for it at the same time.
package flight

import (
	"context"
	"errors"

	"golang.org/x/sync/singleflight"
)

// Do runs do for the first of those that call it with a key at the same time, and gives its
// result to all, but for the end of that one's context: then the next one runs its own.
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

package state

import (
	"context"
	"errors"
	"iter"
)

// Snapshots yields what read makes of a state, and again after every change below a prefix, until
// ctx ends. read returns the revision as of which that is; it is called again, too, where the
// changes since then are not known any more. Any other error of the store is yielded, in the words
// of HangarError, and ends it.
func Snapshots[T any](ctx context.Context, s Store, prefix string, read func(context.Context) (T, Revision, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for ctx.Err() == nil {
			v, revision, err := read(ctx)
			if err == nil && !yield(v, nil) {
				return
			}
			if err == nil {
				err = changed(ctx, s, prefix, revision+1)
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil && !errors.Is(err, ErrCompacted) {
				var none T
				yield(none, HangarError(err))
				return
			}
		}
	}
}

// changed returns when a key below a prefix has changed in the given revision or later.
func changed(ctx context.Context, s Store, prefix string, from Revision) error {
	for batch, err := range s.Watch(ctx, prefix, from) {
		if err != nil || len(batch.Changes) > 0 {
			return err
		}
	}
	return nil
}

package archive

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/logging"
)

// unlisted is for how long the library may try to list the files of a store that cannot be read. It
// would do so until its context ends, and let all others wait.
const unlisted = time.Minute

type operationKey struct{}

// operation returns the context of an operation on the archive. done ends it, and makes its error an
// ErrUnreachable if it was ended because the store could not be listed.
func (a *Archive) operation(ctx context.Context) (_ context.Context, done func(*error)) {
	ctx, end := context.WithCancelCause(a.logged(ctx))
	of := &listing{end: end}
	return context.WithValue(ctx, operationKey{}, of), func(err *error) {
		if cause := context.Cause(ctx); *err != nil && errors.Is(cause, ErrUnreachable) {
			*err = fmt.Errorf("%w (%w)", cause, *err)
		}
		end(nil)
	}
}

func (a *Archive) logged(ctx context.Context) context.Context {
	return logging.WithLogger(ctx, loggers(a.opts.Log))
}

// listing is since when an operation cannot list files.
type listing struct {
	end context.CancelCauseFunc // of the operation

	mu     sync.Mutex
	failed time.Time // zero: it can
}

// ListBlobs lists files. It ends the operation that it belongs to if the store cannot be listed for long.
func (s *store) ListBlobs(ctx context.Context, prefix blob.ID, each func(blob.Metadata) error) error {
	var refused error
	err := s.Storage.ListBlobs(ctx, prefix, func(m blob.Metadata) error {
		refused = each(m)
		return refused
	})
	of, ok := ctx.Value(operationKey{}).(*listing)
	if !ok || ctx.Err() != nil {
		return err
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	if err == nil || refused != nil {
		of.failed = time.Time{}
		return err
	}
	if of.failed.IsZero() {
		of.failed = time.Now()
	}
	err = fmt.Errorf("%w: %w", ErrUnreachable, err)
	if time.Since(of.failed) >= s.patience {
		of.end(err)
	}
	return err
}

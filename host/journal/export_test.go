package journal

import (
	"context"
	"time"
)

// Queued returns the number of commits that wait.
func Queued(j *Journal) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.queue)
}

// Tick receives soon.
func Tick() <-chan time.Time { return time.After(100 * time.Microsecond) }

// LimitSize makes the disk full: the file cannot grow beyond size.
func LimitSize(j *Journal, size int) { j.db.MaxSize = size }

// Break makes the journal treat a disk failure as one after which the new state is visible.
func Break(ctx context.Context, j *Journal, cause error) error {
	return j.Commit(func(*Tx) error { return j.afterFailure(0, cause) })
}

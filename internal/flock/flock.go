// Package flock waits for the lock of a file that other processes may hold.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/pause"
)

// retry is the time between two attempts. A context cannot interrupt flock(2).
const retry = 5 * time.Millisecond

// Wait takes the exclusive lock of an open file once no other open file has it. If ctx ends first,
// Wait returns its cause. The lock ends when the file is closed, here and in every process that has
// inherited it.
func Wait(ctx context.Context, f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if pause.For(ctx, retry) != nil {
			return fmt.Errorf("%s is still in use: %w", f.Name(), context.Cause(ctx))
		}
	}
}

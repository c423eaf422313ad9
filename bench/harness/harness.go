package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
)

// Undo is what remains to be removed, in the order in which it was made.
type Undo []func() error

// Add adds what removes something that was made.
func (u *Undo) Add(f func() error) { *u = append(*u, f) }

// Run removes everything, the last first.
func (u *Undo) Run() error {
	var errs []error
	for _, f := range slices.Backward(*u) {
		errs = append(errs, f())
	}
	*u = nil
	return errors.Join(errs...)
}

const (
	// idleShare is how idle the server must be before a measurement.
	idleShare = 0.8
	idleProbe = 50 * time.Millisecond
	// idlePatience bounds the waiting for it: a server that is never idle is
	// measured as it is.
	idlePatience = 3 * time.Second
)

// Quiet waits until the server does little else, up to three seconds, and reports
// whether it came to that.
func Quiet(ctx context.Context) (bool, error) {
	for deadline := time.Now().Add(idlePatience); time.Now().Before(deadline); {
		busy, err := Busy(ctx, idleProbe)
		if err != nil {
			return false, err
		}
		if busy <= 1-idleShare {
			return true, nil
		}
	}
	return false, nil
}

// Busy returns the share of the processors that is taken while it waits.
func Busy(ctx context.Context, wait time.Duration) (float64, error) {
	idle, total, err := processors()
	if err != nil {
		return 0, err
	}
	if err := pause.For(ctx, wait); err != nil {
		return 0, err
	}
	idleThen, totalThen, err := processors()
	return 1 - float64(idleThen-idle)/float64(max(1, totalThen-total)), err
}

// processors is what all processors have spent so far, in ticks.
func processors() (idle, total uint64, err error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	for i, word := range strings.Fields(line)[1:] {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		if i < 8 { // the rest is part of what comes before
			total += n
		}
		if i == 3 || i == 4 { // idle, and waiting for a disk
			idle += n
		}
	}
	return idle, total, nil
}

// Load says how busy the server was lately.
func Load() string {
	raw, _ := os.ReadFile("/proc/loadavg") // is always there
	lately, _, _ := strings.Cut(string(raw), " ")
	return "load average " + lately
}

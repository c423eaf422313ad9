package main

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
)

// readyWithin bounds how long a daemon may take to serve.
const readyWithin = 5 * time.Minute

// startDaemon starts a platform whose Machines are pretended: what is measured is the
// API and what is behind it, not sandboxes.
func startDaemon(ctx context.Context, program string) (*harness.Daemon, error) {
	return harness.Start(ctx, harness.Options{Program: program, Args: []string{"--driver", "fake"}, Ready: readyWithin})
}

// restart kills the daemon as a crash would, and returns how soon it serves again.
func restart(ctx context.Context, d *harness.Daemon) (time.Duration, error) {
	if err := d.Kill(); err != nil {
		return 0, err
	}
	return d.Up(ctx)
}

// pids returns the process of the daemon, which changes with a restart.
func pids(d *harness.Daemon) func() []int { return func() []int { return []int{d.PID()} } }

// Package racetest reports to tests whether the race detector runs.
package racetest

import "testing"

// Skip skips a test that takes minutes with the race detector, and whose code other tests run with
// it. `make test` runs the skipped test without it: its package is in NORACE or KILLED of the
// Makefile.
func Skip(tb testing.TB) {
	tb.Helper()
	if Enabled {
		tb.Skip("takes minutes with the race detector: run without")
	}
}

// Package racetest reports to tests whether the race detector runs.
package racetest

import "testing"

// Skip skips a test that takes minutes with the race detector, and whose code others run with
// it. `make test` runs the test without: its package is in NORACE or KILLED of the Makefile.
func Skip(tb testing.TB) {
	tb.Helper()
	if Enabled {
		tb.Skip("takes minutes with the race detector: run without")
	}
}

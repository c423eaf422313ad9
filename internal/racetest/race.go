//go:build race

package racetest

// Enabled reports whether the race detector runs.
const Enabled = true

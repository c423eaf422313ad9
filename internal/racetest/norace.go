//go:build !race

package racetest

// Enabled says whether the race detector runs.
const Enabled = false

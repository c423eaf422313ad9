//go:build race

package api_test

// underRace says that the race detector runs, with which everything takes eight times
// as long.
const underRace = true

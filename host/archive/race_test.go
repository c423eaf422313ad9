//go:build race

package archive_test

// underRace says that the race detector runs, with which the library is ten times as slow.
const underRace = true

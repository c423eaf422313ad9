//go:build !race

package archive_test

const underRace = false

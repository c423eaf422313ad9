// Package mounttest lists mounts for tests.
package mounttest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Mentioning returns the mounts whose description contains one of the words: in the mount point, the
// source or the options of proc_pid_mountinfo(5).
func Mentioning(words ...string) ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		line := fmt.Sprint(*m)
		return !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(line, word) }), false
	})
}

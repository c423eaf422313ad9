package store

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/cgroup"
)

// group is the directory of a cgroup that limits memory, or "" for none.
type group string

// makeGroup makes the group, or finds that of an earlier child, and limits the memory of its
// processes.
func makeGroup(name string, bytes int64) (group, error) {
	if name == "" {
		return "", nil
	}
	dir, err := cgroup.LimitMemory(name, bytes)
	return group(dir), err
}

// add moves a process into the group.
func (g group) add(pid int) error {
	if g == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(string(g), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600)
}

// RemoveGroup removes the cgroup of a Store that was closed, or whose daemon was killed. A missing
// group is not an error.
func RemoveGroup(name string) error {
	if name == "" {
		return nil
	}
	dir, _, err := cgroup.Memory(name)
	if err != nil {
		return err
	}
	// A process stays in the group for a moment after it was waited for.
	for range 100 {
		err = cgroup.Remove(dir)
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	return err
}

package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroup is the directory of a control group that bounds memory, or "" for none.
type cgroup string

// groupPath returns the directory of a group and the file of its bound, of whichever version of
// cgroups the host has.
func groupPath(name string) (dir, limit string, err error) {
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return "", "", fmt.Errorf("cgroup %q: must be one name", name)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &st); err != nil {
		return "", "", fmt.Errorf("look at %s: %w", cgroupRoot, err)
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		return filepath.Join(cgroupRoot, name), "memory.max", nil
	}
	return filepath.Join(cgroupRoot, "memory", name), "memory.limit_in_bytes", nil
}

// makeGroup makes the group, or finds the one that an earlier child was in, and bounds the memory
// of its processes to a number of bytes.
func makeGroup(name string, bytes int64) (cgroup, error) {
	if name == "" {
		return "", nil
	}
	dir, limit, err := groupPath(name)
	if err != nil {
		return "", err
	}
	if limit == "memory.max" {
		// Without it the group has no such file.
		if err := os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte("+memory"), 0o600); err != nil {
			return "", fmt.Errorf("enable the memory controller: %w", err)
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // as the others there
		return "", err
	}
	return cgroup(dir), os.WriteFile(filepath.Join(dir, limit), []byte(strconv.FormatInt(bytes, 10)), 0o600)
}

// add moves a process into the group.
func (g cgroup) add(pid int) error {
	if g == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(string(g), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600)
}

// RemoveGroup removes the cgroup of a Store that was closed, or whose daemon was killed. That
// there is none is no error.
func RemoveGroup(name string) error {
	if name == "" {
		return nil
	}
	dir, _, err := groupPath(name)
	if err != nil {
		return err
	}
	// A process is still in the group for a moment after it was waited for.
	for range 100 {
		err = unix.Rmdir(dir)
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Package cgroup knows how control groups are mounted on this server, and bounds the memory of a
// group below the root.
//
// Other settings of a group depend on its user; package gvisor has those of sandboxes.
package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is the mount point of control groups: of version 2, or of the hierarchies of version 1 below
// it.
const Root = "/sys/fs/cgroup"

// Unified reports whether Root is version 2.
func Unified() (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(Root, &st); err != nil {
		return false, fmt.Errorf("examine %s: %w", Root, err)
	}
	return st.Type == unix.CGROUP2_SUPER_MAGIC, nil
}

// Memory returns the directory of a group of the memory controller below the root, and the name of
// its limit file. name must be a single path element.
func Memory(name string) (dir, limit string, err error) {
	if name == "" || strings.Contains(name, "/") || strings.HasPrefix(name, ".") {
		return "", "", fmt.Errorf("cgroup %q: must be one name", name)
	}
	unified, err := Unified()
	if err != nil {
		return "", "", err
	}
	if unified {
		return filepath.Join(Root, name), "memory.max", nil
	}
	return filepath.Join(Root, "memory", name), "memory.limit_in_bytes", nil
}

// LimitMemory limits the memory of a group, in bytes, and returns its directory. It makes the group
// if necessary.
func LimitMemory(name string, bytes int64) (dir string, err error) {
	dir, limit, err := Memory(name)
	if err != nil {
		return "", err
	}
	if filepath.Dir(dir) == Root {
		// Without the memory controller, a group of version 2 has no such file. Enabling it again
		// does nothing.
		if err := os.WriteFile(filepath.Join(Root, "cgroup.subtree_control"), []byte("+memory"), 0o600); err != nil {
			return "", fmt.Errorf("enable the memory controller: %w", err)
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // as the others there
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, limit), []byte(strconv.FormatInt(bytes, 10)), 0o600)
}

// Remove removes a group by its directory; a missing one is not an error. The error is EBUSY,
// wrapped, while there are processes in it.
func Remove(dir string) error {
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove cgroup", Path: dir, Err: err}
	}
	return nil
}

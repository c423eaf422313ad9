package hostcheck

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// checkOverlay mounts an overlay of directories in dir, as the root of every Machine
// is mounted, and writes through it. The mount is in a namespace of its own.
func checkOverlay(dir string) Check {
	if err := tryOverlay(dir); err != nil {
		return fail("put the data directory on ext4 or xfs, not on another overlay, NFS or FAT; as root, modprobe overlay",
			"overlayfs cannot be used in %s: %v; every Machine's root file system is one", dir, err)
	}
	return ok("usable in %s, for the root file systems of Machines", dir)
}

func tryOverlay(dir string) (err error) {
	tmp, err := os.MkdirTemp(dir, ".hangar-doctor-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	path := func(elem ...string) string { return filepath.Join(tmp, filepath.Join(elem...)) }
	for _, d := range []string{"lower", "upper", "work", "root"} {
		if err := os.Mkdir(path(d), 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path("lower", "file"), []byte("lower"), 0o600); err != nil {
		return err
	}
	return apart(unix.CLONE_NEWNS, func() error {
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", path("lower"), path("upper"), path("work"))
		if err := unix.Mount("overlay", path("root"), "overlay", 0, options); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		return errors.Join(writeThrough(path("root", "file"), path("lower", "file")), unix.Unmount(path("root"), 0))
	})
}

func writeThrough(file, lower string) error {
	if err := os.WriteFile(file, []byte("upper"), 0o600); err != nil {
		return err
	}
	if b, err := os.ReadFile(lower); err != nil || string(b) != "lower" {
		return errors.Join(fmt.Errorf("a write changed the lower layer to %q", b), err)
	}
	return os.Remove(file) // makes a whiteout
}

// Below these the host soon cannot, or may soon not be able to, unpack an image.
const (
	minFree  = 1 << 30
	goodFree = 10 << 30
)

func checkDisk(dir string) Check {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fail("choose another directory with --dir", "free space of %s is unknown: %v", dir, err)
	}
	return verdictDisk(dir, st.Bavail*uint64(st.Bsize), st.Files, st.Ffree)
}

// verdictDisk takes bytes and inodes; a file system without inodes has none in all.
func verdictDisk(dir string, free, inodes, freeInodes uint64) Check {
	const fix = "free some space, or choose another directory with --dir"
	gib := float64(free) / (1 << 30)
	switch {
	case free < minFree:
		return fail(fix, "%.1f GiB are free in %s; images and volumes need more", gib, dir)
	case free < goodFree:
		return warn(fix, "%.1f GiB are free in %s; images and volumes soon need more", gib, dir)
	case inodes > 0 && freeInodes < 100_000:
		return warn(fix, "%d inodes are free in %s; an image may take tens of thousands", freeInodes, dir)
	}
	return ok("%.1f GiB are free in %s", gib, dir)
}

package hostcheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/ext4"
	"github.com/hangar-platform/hangar/internal/loopdev"
)

// checkOverlay mounts an overlay of directories in dir, as for the root of a Machine, and writes through it. The mount
// is in a namespace of its own.
func checkOverlay(dir string) Check {
	if err := tryOverlay(dir); err != nil {
		return fail("put the data directory on ext4 or xfs, not on another overlay, NFS or FAT; as root, modprobe overlay",
			"overlayfs cannot be used in %s: %v; the root file systems of Machines need it", dir, err)
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

// checkLayers creates a file system in a sparse file on a loop device, as for the writable layer of a Machine.
func checkLayers(dir string) Check {
	if err := tryLayer(dir); err != nil {
		return fail("apt-get install e2fsprogs; as root, modprobe -a loop ext4; in a container, give it /dev/loop-control and the loop devices; "+
			"`hangar up --rootfs-unbounded` does not need it, but lets every Machine fill the disk",
			"a file system cannot be mounted from a file in %s: %v; each Machine writes into one", dir, err)
	}
	return ok("ext4 on loop devices, in %s; each Machine writes into one", dir)
}

func tryLayer(dir string) (err error) {
	if err := lacksPrograms(ext4.Programs()...); err != nil {
		return err
	}
	image, err := os.CreateTemp(dir, ".hangar-doctor-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, image.Close(), os.Remove(image.Name())) }()
	const size = 64 << 20 // sparse
	if err := image.Truncate(size); err != nil {
		return err
	}
	if err := ext4.MakeCompact(context.Background(), image.Name()); err != nil {
		return err
	}
	device, err := loopdev.Open(image, loopdev.Config{BlockSize: 4096, Direct: true, AutoClear: true})
	if err != nil {
		return err
	}
	defer device.Close()
	mount, err := ext4.MountDetached(device.Name())
	if err != nil {
		return err
	}
	return mount.Close()
}

func writeThrough(file, lower string) error {
	if err := os.WriteFile(file, []byte("upper"), 0o600); err != nil {
		return err
	}
	if b, err := os.ReadFile(lower); err != nil || string(b) != "lower" {
		return errors.Join(fmt.Errorf("a write changed the lower layer to %q", b), err)
	}
	return os.Remove(file) // creates a whiteout
}

// Below these limits the host cannot, or may soon be unable to, unpack an image.
const (
	minFree  = 1 << 30
	goodFree = 10 << 30
)

func checkDisk(dir string) Check {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fail("choose another directory with --dir", "free space of %s is unknown: %v", dir, err)
	}
	if since, full := diskspace.FullSince(dir); full {
		return fail("remove images, volumes or Machines that are not needed, or enlarge the disk",
			"full since %s: %.1f GiB and %d of %d inodes are free in %s; used by %s",
			since.UTC().Format(time.RFC3339), float64(st.Bavail*uint64(st.Bsize))/(1<<30), st.Ffree, st.Files, dir, takenBy(dir))
	}
	return verdictDisk(dir, st.Type, st.Bavail*uint64(st.Bsize), st.Files, st.Ffree)
}

// takenBy lists what uses the disk of a data directory.
func takenBy(dir string) string {
	parts, err := diskspace.Parts(dir)
	if err != nil {
		return err.Error()
	}
	words := make([]string, 0, len(parts))
	for _, p := range parts {
		words = append(words, fmt.Sprintf("%s: %.1f GiB, %d inodes", p.Name, float64(p.Bytes)/(1<<30), p.Inodes))
	}
	return strings.Join(words, "; ")
}

// verdictDisk judges the free bytes and inodes. kind is the type from statfs(2). inodes is 0 for a file system
// without inodes.
func verdictDisk(dir string, kind int64, free, inodes, freeInodes uint64) Check {
	const fix = "free some space, or choose another directory with --dir"
	gib := float64(free) / (1 << 30)
	switch {
	case free < minFree:
		return fail(fix, "%.1f GiB are free in %s; images and volumes need more", gib, dir)
	case free < goodFree:
		return warn(fix, "%.1f GiB are free in %s; images and volumes soon need more", gib, dir)
	case inodes > 0 && freeInodes < 100_000:
		return warn(fix, "%d inodes are free in %s; an image may take tens of thousands", freeInodes, dir)
	case kind == unix.BTRFS_SUPER_MAGIC:
		return warn("put the data directory on ext4 or XFS",
			"%.1f GiB are free in %s, which is on btrfs: on a full disk the daemon may end, and cannot start until 128 MiB are free", gib, dir)
	}
	return ok("%.1f GiB are free in %s", gib, dir)
}

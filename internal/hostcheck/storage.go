package hostcheck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// checkCrypt asks the device mapper for the version of its target "crypt", which
// loads its module.
func checkCrypt(string) Check {
	const (
		getTargetVersion = 0xc138fd11 // _IOWR(DM_IOCTL, 17, struct dm_ioctl)
		headerSize       = 312        // of struct dm_ioctl
		nameOffset       = 48
		fix              = "as root, modprobe dm-crypt; in a cloud kernel install linux-modules-extra. Otherwise install qemu-storage-daemon"
	)
	fd, err := unix.Open("/dev/mapper/control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return warn(fix, "device mapper: %v; encrypted volumes then need qemu-storage-daemon and fuse, and are slower", err)
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, 16<<10)
	binary.NativeEndian.PutUint32(b, 4)                       // version of the interface
	binary.NativeEndian.PutUint32(b[12:], uint32(len(b)))     // data_size
	binary.NativeEndian.PutUint32(b[16:], uint32(headerSize)) // data_start
	copy(b[nameOffset:], "crypt")
	if err := ioctl(fd, getTargetVersion, b); err != nil {
		return warn(fix, "dm-crypt: %v; encrypted volumes then need qemu-storage-daemon and fuse, and are slower", err)
	}
	return ok("usable, for encrypted volumes")
}

func checkFuse(string) Check {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return warn("as root, modprobe fuse", "/dev/fuse: %v; encrypted volumes need it where there is no dm-crypt", err)
	}
	_ = unix.Close(fd)
	return ok("usable, for encrypted volumes where there is no dm-crypt")
}

func checkStorageDaemon(string) Check {
	path, err := exec.LookPath("qemu-storage-daemon")
	if err != nil {
		return warn("apt-get install qemu-system-common (or qemu-storage-daemon)",
			"qemu-storage-daemon is not installed; encrypted volumes need it where there is no dm-crypt")
	}
	return ok("%s, for encrypted volumes where there is no dm-crypt", path)
}

package storaged

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// fuseControl is the usual mount point of FUSE's control file system.
const fuseControl = "/sys/fs/fuse/connections"

// noHoles makes hole punching in the exported file fail. For encrypted images, QEMU reports success
// and does nothing. The loop driver clears blocks for ext4 by punching holes, so the old data would
// stay in place. After ENOSYS the kernel does not try again, and writes zeros itself.
const noHoles = "inject-error.0.event=none,inject-error.0.iotype=discard,inject-error.0.errno=38,inject-error.0.once=off"

// prepare makes the exported file safe to use, once.
func (s Spec) prepare() error {
	f, err := os.OpenFile(s.path(exportFile), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	const page = 4096
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, page)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("holes can be punched into the exported file: %w", err)
	}
	if s.Secret == nil {
		return s.serialize()
	}
	return nil
}

// serialize makes the kernel send the daemon one read or write of the exported file at a time.
//
// QEMU up to at least 7.2 receives every request into the same buffer. If a request arrives while an
// earlier write still waits for the disk, that write stores the later request's data. The driver of
// encrypted images copies its data before it waits. The driver of plain images does not, and loses
// data within a second of mkfs.
func (s Spec) serialize() error {
	var st unix.Stat_t
	if err := unix.Stat(s.path(exportFile), &st); err != nil {
		return err
	}
	connection := strconv.FormatUint(uint64(unix.Minor(st.Dev))|uint64(unix.Major(st.Dev))<<20, 10)
	limit := func(control string) error {
		return os.WriteFile(filepath.Join(control, connection, "max_background"), []byte("1"), 0)
	}
	err := limit(fuseControl)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	control := s.path(controlDir)
	if err := os.Mkdir(control, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.Mount("fusectl", control, "fusectl", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return errors.Join(fmt.Errorf("mount the control file system of FUSE: %w", err), os.Remove(control))
	}
	return errors.Join(limit(control), unix.Unmount(control, unix.MNT_DETACH), os.Remove(control))
}

package dm

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Control exists if the kernel has device mapper, and opens if that works.
const Control = "/dev/mapper/control"

// Resume makes the waiting table of a device its current one, at one moment: what was written
// before has gone through the old one. The kernel does it in one step, that no end of this
// process leaves half-way. Without a waiting table, it ends a suspension.
//
// The file system on the device cannot be frozen meanwhile, and writers wait. So this is the one
// thing that is asked of the kernel itself: dmsetup would have to be started, and would wait for
// udev.
func (m Mapper) Resume(name string) error {
	lock, err := m.shared()
	if err != nil {
		return err
	}
	defer lock.Close()
	control, err := os.OpenFile(Control, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	// The kernel names the request after suspending: without DM_SUSPEND_FLAG it resumes.
	request := unix.DmIoctl{Version: [3]uint32{4, 0, 0}, Flags: unix.DM_SKIP_LOCKFS_FLAG}
	if len(name) >= len(request.Name) {
		return fmt.Errorf("resume %s: %w", name, unix.ENAMETOOLONG)
	}
	copy(request.Name[:], name)
	request.Data_size = uint32(unsafe.Sizeof(request))
	request.Data_start = request.Data_size
	//nolint:gosec // the kernel writes into the request and nowhere else
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), unix.DM_DEV_SUSPEND, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return fmt.Errorf("resume %s: %w", name, errno)
	}
	return nil
}

package dm

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Control exists if the kernel has the device mapper, and can be opened if that works.
const Control = "/dev/mapper/control"

// Resume makes the waiting table of a device its current one: writes before that moment went through
// the old table. The kernel does it in one step, which the end of this process cannot interrupt.
// Without a waiting table, Resume ends a suspension.
//
// The file system on the device cannot be frozen meanwhile, and writers wait. So Resume calls the
// kernel directly, and nothing else does: dmsetup would first have to start, and would wait for udev.
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
	// The request is named after suspending; without DM_SUSPEND_FLAG it resumes.
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

// Package early does the job of gVisor's command umount before the packages of the
// sandbox have initialized.
//
// While a sandbox boots, its process starts itself again for a moment, with the
// arguments "umount --sync-fd=3 /proc", to be rid of /proc when that is no longer
// needed. In a program as large as the engine almost all of that process's time goes
// into the initialization of packages that it has no use for, at a time when both cores
// of a small server are busy with the boot. Go initializes packages in the order of
// their paths as soon as what they import is initialized; this one imports syscall
// alone, and comes before those of gVisor.
//
// It exits the process if it was started for that, as the command would, and does
// nothing in any other.
package early

import "syscall"

// What gVisor starts: see runsc/cmd/sandboxsetup.ExecProcUmounter.
const (
	arguments = "\x00umount\x00--sync-fd=3\x00/proc\x00"
	syncFD    = 3
	directory = "/proc"
)

func init() { //nolint:gochecknoinits // main comes too late
	if !started() {
		return
	}
	if err := unmount(); err != nil {
		syscall.Exit(128)
	}
	syscall.Exit(0)
}

// started reports whether the process has those arguments.
func started() bool {
	fd, err := syscall.Open("/proc/self/cmdline", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer syscall.Close(fd)
	var line [len("/proc/self/exe") + len(arguments) + 1]byte // longer ones are cut short
	n, err := syscall.Read(fd, line[:])
	return err == nil && n >= len(arguments) && string(line[n-len(arguments):n]) == arguments
}

// unmount waits for a byte and unmounts the directory.
func unmount() error {
	var b [1]byte
	for {
		n, err := syscall.Read(syncFD, b[:])
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return err
		case n == 0:
			return syscall.EPIPE
		default:
			return syscall.Unmount(directory, syscall.MNT_DETACH)
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/flag"

	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
)

// exitFD is above every number that runsc gives the sentry's descriptors.
const exitFD = 200

// bootCommand is runsc's boot, which also records how the guest ended.
type bootCommand struct{ sentrycmd.Boot }

// Execute runs the sandbox. The exit file is opened first: from inside its chroot
// and seccomp filter the sentry could not.
func (b *bootCommand) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	fd := openExitFile(bundle.ExitFile)
	status := b.Boot.Execute(ctx, f, args...)
	if fd >= 0 && status == subcommands.ExitSuccess {
		ws := args[1].(*unix.WaitStatus)
		record, err := json.Marshal(bundle.ExitRecord{WaitStatus: uint32(*ws), At: time.Now()})
		if err == nil {
			_, _ = unix.Write(fd, record)
		}
	}
	return status
}

func openExitFile(name string) int {
	fd, err := unix.Open(filepath.Join(bundleDir(), name), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1
	}
	defer func() { _ = unix.Close(fd) }()
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, exitFD)
	if err != nil {
		return -1
	}
	return high
}

// totalMemory returns what the bundle says of the guest's memory, or "".
func totalMemory() string {
	size, err := os.ReadFile(filepath.Join(bundleDir(), bundle.TotalMemFile))
	if err != nil {
		return ""
	}
	return string(size)
}

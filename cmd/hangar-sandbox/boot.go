package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/flag"

	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
)

// ownFD is above every number that runsc gives the sentry's descriptors.
const ownFD = 200

// bootCommand is runsc's boot, which also records how the guest ended, and keeps the
// guest's output open.
type bootCommand struct{ sentrycmd.Boot }

// Execute runs the sandbox. The exit file is opened first: from inside its chroot
// and seccomp filter the sentry could not.
func (b *bootCommand) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	fd := openExitFile(bundle.ExitFile)
	holdOutput()
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
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, ownFD)
	if err != nil {
		return -1
	}
	return high
}

// holdOutput opens the guest's output for reading and leaves it so: the guest then
// never meets a broken pipe, however often who reads it goes away and comes back. The
// guest itself gets it for writing alone, because gVisor empties every pipe that the
// guest could read when it makes a snapshot, and what was said before would be lost.
func holdOutput() {
	const stdio = "--stdio-fds="
	for _, arg := range os.Args {
		number, ok := strings.CutPrefix(arg, stdio)
		if !ok {
			continue
		}
		var st unix.Stat_t
		fd, err := strconv.Atoi(number)
		if err != nil || unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
			continue
		}
		held, err := unix.Open("/proc/self/fd/"+number, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		_, _ = unix.FcntlInt(uintptr(held), unix.F_DUPFD_CLOEXEC, ownFD)
		_ = unix.Close(held)
		return
	}
}

// totalMemory returns what the bundle says of the guest's memory, or "".
func totalMemory() string {
	size, err := os.ReadFile(filepath.Join(bundleDir(), bundle.TotalMemFile))
	if err != nil {
		return ""
	}
	return string(size)
}

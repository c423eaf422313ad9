package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/hangar-platform/hangar/internal/durable"
)

// ownFD is above every number that runsc gives the sentry's descriptors. It is that of the
// exit file; further ones follow it.
const ownFD = 200

// bootCommand is runsc's boot, which also records how the guest ended, and keeps the
// guest's output open.
type bootCommand struct{ sentrycmd.Boot }

// Execute runs the sandbox, with the exit file that was opened for it.
func (b *bootCommand) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	holdOutput()
	status := b.Boot.Execute(ctx, f, args...)
	if status == subcommands.ExitSuccess {
		ws := args[1].(*unix.WaitStatus)
		record, err := json.Marshal(bundle.ExitRecord{WaitStatus: uint32(*ws), At: time.Now()})
		if err == nil {
			_, _ = unix.Write(ownFD, record)
		}
	}
	return status
}

// openExitFile opens the exit file of a sandbox that is about to start, for the sentry to inherit, which executes
// itself more than once. The sentry cannot open it within its chroot and seccomp filter. Before that it could, but in
// its own mount namespace, where an open file keeps the copies of all the host's mounts busy until the sandbox ends,
// also those of other Machines' volumes.
//
// It allocates the room of the record, because the disk may be full when the sandbox ends.
func openExitFile(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("open the exit file: %w", err)
	}
	const room = 4096
	if err := durable.Allocate(fd, unix.FALLOC_FL_KEEP_SIZE, room); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return errors.Join(fmt.Errorf("allocate the exit file: %w", err), unix.Close(fd))
	}
	return errors.Join(unix.Dup3(fd, ownFD, 0), unix.Close(fd))
}

// holdOutput opens the guest's output for reading and leaves it open: the guest then
// never gets a broken pipe when the reader is replaced. The guest itself gets it only
// for writing, because gVisor empties every pipe that the guest could read when it
// makes a snapshot, and earlier output would be lost.
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

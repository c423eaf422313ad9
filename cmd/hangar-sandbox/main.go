// Command hangar-sandbox is the engine that hangar's gVisor driver starts: runsc
// with the commands that the driver needs, and nothing else.
//
// It promises what stock runsc does not: the sentry writes the exit status of the
// guest's main process into the bundle, so that it is known even without a waiter; a
// snapshot is complete or absent, because the engine itself checks and renames it; and
// a sandbox boots faster, because the seccomp program is compiled ahead of time and the
// garbage collector rests during the boot.
//
// The process is one of four, distinguished by how runsc starts it again: the command
// line tool, the sentry (runsc-sandbox), the gofer (runsc-gofer), a short-lived child
// for umounting. Only the first is started by the driver.
//
// Started as `runsc await`, the command line tool has initialized before its command
// arrives; see package bundle.
//
// `hangar-sandbox keep` is no sandbox: it holds the output of sandboxes while the
// daemon is away, see package keeper. This program does that because it is small and in
// memory anyway.
//
// It is not meant for people: the daemon is its only caller.
package main

import (
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	_ "github.com/hangar-platform/hangar/cmd/hangar-sandbox/early" // unmounts, and exits
	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
	"github.com/hangar-platform/hangar/internal/oomscore"
)

// How runsc names the processes that it starts from this binary.
const (
	argv0Sentry = "runsc-sandbox"
	argv0Gofer  = "runsc-gofer"
)

// bootGC is how long the sentry's garbage collector stays nearly off: long enough
// for every boot, short enough that an idle sandbox shrinks soon after.
const (
	bootGC        = time.Second
	bootGCPercent = 800
	restGCPercent = 100
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == commandKeep {
		keep()
	}
	// Before anything is started: the daemon's own score, which is inherited, would make the
	// kernel end everything else first.
	_ = oomscore.Set(oomscore.Machine) // a higher score than it has, which needs no right
	if len(os.Args) == 2 && os.Args[1] == bundle.AwaitArg && !await() {
		return
	}
	setVersion()
	switch argv0() {
	case argv0Sentry:
		debug.SetGCPercent(bootGCPercent)
		time.AfterFunc(bootGC, func() { debug.SetGCPercent(restGCPercent) })
		registerSeccomp()
		go seccheck.Initialize() // registers its protobufs while the rest boots
		overrideTotalMemory()
		overrideCPUs()
	case argv0Gofer:
		debug.SetGCPercent(bootGCPercent)
		_ = unix.Close(ownFD) // the sentry's
	default:
		debug.SetGCPercent(-1) // gone in a moment
		growFDTable()
	}
	cli.Run(nil, commands(), nil)
}

// commands are what the driver and runsc itself start.
func commands() map[util.SubCommand]string {
	return map[util.SubCommand]string{
		new(cmd.Debug):        "", // stacks and logs, for people who look into a fault
		new(startCommand):     "",
		new(suspendCommand):   "",
		new(resumeCommand):    "",
		new(bootCommand):      "internal",
		new(cmd.Gofer):        "internal",
		new(sentrycmd.Umount): "internal",
	}
}

func argv0() string {
	if len(os.Args) == 0 {
		return ""
	}
	return os.Args[0]
}

// growFDTable makes the descriptor table, which children inherit, large enough for
// the numbers that the sentry gives its stdio. Growing it there, with all threads
// running, waits for an RCU grace period: 8 to 16 ms.
func growFDTable() {
	_, _ = unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 255)
}

// bundleDir returns the bundle directory that the arguments of the sentry name.
func bundleDir() string {
	const flag = "--bundle="
	for _, arg := range os.Args {
		if strings.HasPrefix(arg, flag) {
			return arg[len(flag):]
		}
	}
	return ""
}

// overrideTotalMemory gives the guest the memory size that the bundle names,
// instead of the limit of the cgroup, which is larger by what the sentry needs for
// itself.
func overrideTotalMemory() {
	i := slices.Index(os.Args, "--total-memory")
	if i < 0 || i+1 >= len(os.Args) {
		return
	}
	if size := totalMemory(); size != "" {
		os.Args[i+1] = size
	}
}

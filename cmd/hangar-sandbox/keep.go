package main

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/keeper"
)

const (
	commandKeep = "keep"
	// keepFD is the listener that `hangar-sandbox keep` serves.
	keepFD = 3
	// keepFiles is the default limit of open files in the kernel.
	keepFiles = 1 << 20
)

// keep holds FIFOs until it is not needed any more, and ends the process. Its output
// has no reader; its clients notice that it ends.
func keep() {
	runtime.GOMAXPROCS(1)
	closeInherited()
	// Only root may raise the hard limit; otherwise the runtime's limit stays.
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: keepFiles, Max: keepFiles})
	debug.FreeOSMemory() // what the packages of the sandbox made at their start
	if err := serveKeeper(); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func serveKeeper() error {
	f := os.NewFile(keepFD, "listener")
	l, err := net.FileListener(f) // a copy
	if err != nil {
		return err
	}
	_ = f.Close()
	listener, ok := l.(*net.UnixListener)
	if !ok {
		return unix.ENOTSOCK
	}
	return keeper.Serve(listener)
}

// closeInherited closes what came from the daemon's own parents: a pipe whose end a
// process waits for must not live as long as this process. Our own files are recognized
// by close-on-exec.
func closeInherited() {
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return
	}
	for _, name := range names {
		fd, err := strconv.Atoi(filepath.Base(name))
		if err != nil || fd <= keepFD {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}

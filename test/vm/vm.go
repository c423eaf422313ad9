// Package vm runs tests of this module in a virtual machine with Debian's kernel, for features that
// the server's own kernel may lack or refuse: device mapper, and growing a mounted file system.
//
// `make vm` runs it; nothing else does. The kernel comes from the package mirror and is
// kept, unpacked and never installed, in the user's cache directory. The processor is
// emulated, so that a server without KVM will do. Nothing else is left behind: the disk of
// the machine is a file in a temporary directory, and QEMU ends when the test does.
//
// The machine has no network and only the system that Guest names: it is no place for tests of
// Machines.
package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Tools are the programs that a Run needs on this server, by Debian package.
var Tools = map[string]string{"qemu-system-x86_64": "qemu-system-x86", "dpkg": "dpkg", "apt-get": "apt", "busybox": "busybox-static"}

// Guest says what is in a machine.
type Guest struct {
	Modules  []string          // of the kernel; those that they need come along
	Programs map[string]string // of this server by name, and the Debian package that has it
	Files    []string          // of this server, by path
	Memory   int               // MiB
	Disk     int64             // bytes; ext4, mounted on /disk, where TMPDIR is
}

// Test is what runs in a machine.
type Test struct {
	Binary string   // of this server, linked statically
	Args   []string // for it
	Env    []string // NAME=value, beside PATH, HOME and TMPDIR
}

// Files of a machine.
const (
	testPath = "/test"
	doneMark = "hangar-vm-done " // before the exit code, as the last line
)

// ErrMachine is a failure of the machine itself: it crashed, hung, or did not boot.
var ErrMachine = errors.New("the machine failed")

// Run boots a machine that runs a test, writes what the test writes to out, and returns how
// it exited. cache is where kernels are kept, dir is for files of this run. ctx bounds all
// of it.
func Run(ctx context.Context, cache, dir string, g Guest, test Test, out io.Writer) (int, error) {
	if runtime.GOARCH != "amd64" {
		return 0, fmt.Errorf("%w: only amd64 is emulated, this is %s", errors.ErrUnsupported, runtime.GOARCH)
	}
	for tool, pkg := range Tools {
		if _, err := exec.LookPath(tool); err != nil {
			return 0, fmt.Errorf("%w: apt-get install %s", err, pkg)
		}
	}
	k, err := kernel(ctx, cache)
	if err != nil {
		return 0, fmt.Errorf("get a kernel: %w", err)
	}
	initrd, disk := filepath.Join(dir, "initrd"), filepath.Join(dir, "disk")
	if err := writeTree(ctx, initrd, k, g, test); err != nil {
		return 0, fmt.Errorf("build the machine's file system: %w", err)
	}
	if err := sparse(disk, g.Disk); err != nil {
		return 0, err
	}
	return boot(ctx, dir, g, k, initrd, disk, out)
}

// sparse makes a file of holes.
func sparse(name string, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := f.Truncate(size); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// boot runs QEMU until the machine powers off.
func boot(ctx context.Context, dir string, g Guest, k *image, initrd, disk string, out io.Writer) (int, error) {
	console := filepath.Join(dir, "console")
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", strconv.Itoa(g.Memory),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-nic", "none",
		"-kernel", k.vmlinuz, "-initrd", initrd, "-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on",
		"-drive", "if=virtio,format=raw,discard=unmap,cache=unsafe,file="+disk,
		"-serial", "file:"+console, "-serial", "stdio",
	)
	status := &statusWriter{out: out}
	complaint := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = status, complaint
	cmd.WaitDelay = 5 * time.Second
	// The machine dies with the thread that started it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	status.flush()
	if ctx.Err() != nil {
		err = fmt.Errorf("it had not ended: %w", context.Cause(ctx))
	} else if err == nil && status.exit == nil {
		err = errors.New("it ended before the test did")
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w\n%s%s", ErrMachine, err, complaint, tail(console))
	}
	return *status.exit, nil
}

// tail is the end of what a machine wrote to its console.
func tail(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.ReplaceAll(strings.TrimSpace(string(b)), "\r", ""), "\n")
	return "its console ended:\n" + strings.Join(lines[max(0, len(lines)-80):], "\n")
}

// statusWriter passes whole lines on until the one that says how the test exited.
type statusWriter struct {
	out  io.Writer
	rest []byte
	exit *int
}

func (s *statusWriter) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	for {
		line, after, ok := bytes.Cut(s.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		s.rest = after
		line = bytes.TrimRight(line, "\r")
		if code, ok := bytes.CutPrefix(line, []byte(doneMark)); ok {
			if n, err := strconv.Atoi(string(code)); err == nil {
				s.exit = &n
			}
			continue
		}
		if _, err := s.out.Write(append(bytes.Clone(line), '\n')); err != nil {
			return 0, err
		}
	}
}

func (s *statusWriter) flush() {
	if len(s.rest) > 0 {
		_, _ = s.Write([]byte("\n"))
	}
}

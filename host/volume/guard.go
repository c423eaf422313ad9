package volume

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/ext4"
)

// guardPatience is how long a guard waits for its parent's message before it thaws.
const guardPatience = 10 * freezeBudget

// Messages between a guard and its parent.
const (
	guardReady   = "ready\n"
	guardDismiss = "over\n"
)

// Guard is the job of the program in Options.Guard: it thaws the file system that is mounted on dir
// when in ends, or after a second. A message on in ends it earlier, when the freeze is over.
func Guard(dir string, in *os.File, out io.Writer) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if _, err := io.WriteString(out, guardReady); err != nil {
		return err
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(in.Fd()), Events: unix.POLLIN}}, int(guardPatience.Milliseconds()))
	for errors.Is(err, unix.EINTR) {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(in.Fd()), Events: unix.POLLIN}}, int(guardPatience.Milliseconds()))
	}
	// Thawing a file system that is not frozen does nothing, so the reason for waking up does not
	// matter.
	_, thawErr := ext4.Thaw(d)
	return errors.Join(err, thawErr)
}

// guardProcess is the guard of one freeze.
type guardProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

// guard starts a process that thaws a directory if this process dies.
func (v *Volumes) guard(dir string) (*guardProcess, error) {
	if len(v.o.Guard) == 0 {
		return nil, errors.New("no guard is configured that would thaw the file system")
	}
	argv := append(v.o.Guard[1:len(v.o.Guard):len(v.o.Guard)], dir)
	cmd := exec.Command(v.o.Guard[0], argv...) //nolint:noctx // it must thaw even if the caller stops waiting
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	g := &guardProcess{cmd: cmd, in: in}
	if said, err := bufio.NewReader(out).ReadString('\n'); said != guardReady {
		return nil, errors.Join(fmt.Errorf("the guard says %q: %w", said, err), g.dismiss())
	}
	return g, nil
}

// dismiss ends the guard and waits for it, because it has the directory open.
func (g *guardProcess) dismiss() error {
	_, err := io.WriteString(g.in, guardDismiss)
	if errors.Is(err, syscall.EPIPE) { // it has already ended
		err = nil
	}
	return errors.Join(err, g.in.Close(), g.cmd.Wait())
}

// throttledBytes bounds the unwritten data of a volume just before a freeze, which has to write it
// while writers wait.
const throttledBytes = 8 << 20

// throttle limits the unwritten data of writers until unthrottle, if the kernel supports it.
func throttle(device string) (err error) {
	return setDirtyLimits(device, [][2]string{{"max_bytes", strconv.Itoa(throttledBytes)}, {"strict_limit", "1"}})
}

// unthrottle undoes throttle, even an earlier process's: the limits belong to the device and outlive
// the process. Those of a loop device even outlive the volume.
func unthrottle(device string) error {
	return setDirtyLimits(device, [][2]string{{"strict_limit", "0"}, {"max_ratio", "100"}})
}

func setDirtyLimits(device string, limits [][2]string) error {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return &os.PathError{Op: "stat", Path: device, Err: err}
	}
	dir := fmt.Sprintf("/sys/class/bdi/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	var errs []error
	for _, limit := range limits {
		f, err := os.OpenFile(filepath.Join(dir, limit[0]), os.O_WRONLY, 0)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EROFS) { // before Linux 6.2, or in a container
			continue
		}
		if err == nil {
			_, err = f.WriteString(limit[1])
			err = errors.Join(err, f.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/internal/pidfd"
)

// maxRoot is the most bytes that the name of a control socket leaves for its directory.
const maxRoot = 70

// killedCode is the exit code after SIGKILL.
const killedCode = 128 + int(unix.SIGKILL)

// errClosed: the driver was closed, and the sandbox may still run.
var errClosed = errors.New("driver is closed")

// handle is the content of a driver.Handle.
type handle struct {
	ID     hangar.MachineID `json:"id"`
	Dir    string           `json:"dir"`
	Boot   string           `json:"boot"` // of the host
	Sentry process          `json:"sentry"`
	Gofer  process          `json:"gofer"`
	Socket string           `json:"socket"`
	Others int              `json:"others,omitempty"` // commands beside the main one
}

func (h handle) encode() (driver.Handle, error) { return json.Marshal(h) }

func decodeHandle(h driver.Handle) (handle, error) {
	var out handle
	if err := json.Unmarshal(h, &out); err != nil || out.ID == "" || out.Dir == "" {
		return handle{}, fmt.Errorf("%w: handle %q is not of this driver", driver.ErrNotFound, string(h))
	}
	return out, nil
}

// sandbox is a sandbox that was started or recovered and not yet destroyed.
type sandbox struct {
	handle
	done chan struct{} // closed when the sandbox has ended and exit is set
	exit driver.Exit   // valid once done is closed

	release func() // ends the watcher

	memory *semaphore.Weighted // held while the limit of its memory is not the usual one

	killed atomic.Bool // the driver killed the sentry, which then leaves no record
}

// ended reports whether the sandbox has ended.
func (s *sandbox) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// processes returns descriptors of the sentry and the gofer; nil: the process is gone.
func (h handle) processes() (sentry, gofer *os.File, err error) {
	boot, err := bootID()
	if err != nil || boot != h.Boot {
		return nil, nil, err
	}
	if sentry, err = h.Sentry.open(); err != nil && !errors.Is(err, errGone) {
		return nil, nil, err
	}
	if gofer, err = h.Gofer.open(); err == nil || errors.Is(err, errGone) {
		return sentry, gofer, nil
	}
	if sentry != nil {
		err = errors.Join(err, sentry.Close())
	}
	return nil, nil, err
}

// watch registers the sandbox and starts the goroutine that waits for its end. The sandbox may have
// ended already. An error says nothing about the sandbox.
func (d *Driver) watch(ctx context.Context, h handle) error {
	s := &sandbox{handle: h, done: make(chan struct{}), memory: semaphore.NewWeighted(1)}
	sentry, gofer, err := h.processes()
	if err != nil {
		return fmt.Errorf("watch the sandbox of machine %s: %w", h.ID, err)
	}
	closeAll := sync.OnceFunc(func() {
		for _, f := range []*os.File{sentry, gofer} {
			if f != nil {
				_ = f.Close()
			}
		}
	})
	s.release = closeAll
	if sentry != nil {
		d.lowerLimit(ctx, s)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.closing:
		closeAll()
	default:
	}
	d.sandboxes[h.ID] = s
	d.watchers.Go(func() {
		defer closeAll()
		if sentry != nil && pidfd.Await(sentry) != nil {
			return // closed
		}
		var ws *unix.WaitStatus
		if status, ok := reap(h.Sentry.PID); ok && sentry != nil {
			ws = &status
		}
		if gofer != nil { // useless from now on
			kill(gofer)
			if pidfd.Await(gofer) != nil {
				return
			}
			reap(h.Gofer.PID)
		}
		d.finish(s, ws)
	})
	return nil
}

// readPause is the time between attempts to read how a sandbox ended.
const readPause = 100 * time.Millisecond

// finish determines how a sandbox ended whose processes are gone, and closes done, unless the driver is
// closed first. ws is the wait status of the sentry, or nil if it was not a child.
func (d *Driver) finish(s *sandbox, ws *unix.WaitStatus) {
	for {
		exit, err := d.exitOf(s, ws)
		if err == nil {
			s.exit = exit
			close(s.done)
			return
		}
		select {
		case <-d.closing:
			return
		case <-time.After(readPause):
		}
	}
}

// exitOf is one attempt of finish. It fails only if a pause helps.
func (d *Driver) exitOf(s *sandbox, ws *unix.WaitStatus) (driver.Exit, error) {
	kills, err := d.cgroup.oomKills(string(s.ID))
	if pause.Helps(err) {
		return driver.Exit{}, err
	}
	oom := kills > 0
	at, err := awaitSnapshot(s.Dir)
	if err == nil {
		return driver.Exit{Suspended: true, At: at}, nil
	}
	if pause.Helps(err) {
		return driver.Exit{}, err
	}
	record, err := bundle.ReadExit(s.Dir)
	if pause.Helps(err) {
		return driver.Exit{}, err
	}
	if err == nil {
		guest := unix.WaitStatus(record.WaitStatus)
		if guest.Signaled() {
			sig := int(guest.Signal())
			return driver.Exit{
				Code: 128 + sig, Signal: sig, At: record.At,
				OOMKilled: oom && guest.Signal() == unix.SIGKILL,
			}, nil
		}
		return driver.Exit{Code: guest.ExitStatus(), At: record.At}, nil
	}
	e := driver.Exit{Code: killedCode, At: time.Now()}
	switch {
	case oom:
		e.Signal, e.OOMKilled = int(unix.SIGKILL), true
	case s.killed.Load(), ws != nil && ws.Signaled() && ws.Signal() == unix.SIGKILL:
		e.Signal = int(unix.SIGKILL)
	default:
		e.Unknown = true
	}
	return e, nil
}

// awaitSnapshot waits until no process writes a snapshot of the sandbox, and returns when it was
// complete. The error is fs.ErrNotExist if there is none.
func awaitSnapshot(dir string) (time.Time, error) {
	f, err := os.Open(filepath.Join(dir, bundle.SuspendFile))
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return time.Time{}, err
	}
	// The engine holds the lock until it has sealed the snapshot or failed.
	_ = conn.Control(func(fd uintptr) {
		for errors.Is(unix.Flock(int(fd), unix.LOCK_SH), unix.EINTR) {
		}
	})
	raw, err := os.ReadFile(f.Name())
	if err != nil {
		return time.Time{}, err
	}
	if len(raw) == 0 {
		return time.Time{}, fmt.Errorf("%s is empty: %w", f.Name(), fs.ErrNotExist)
	}
	info, err := os.Stat(filepath.Join(string(raw), bundle.MetaFile))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// lookup returns the sandbox of h, or driver.ErrNotFound.
func (d *Driver) lookup(h driver.Handle) (*sandbox, error) {
	want, err := decodeHandle(h)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sandboxes[want.ID]
	if s == nil || s.Sentry != want.Sentry {
		return nil, fmt.Errorf("machine %s: %w", want.ID, driver.ErrNotFound)
	}
	return s, nil
}

// running is lookup for a sandbox that has not ended.
func (d *Driver) running(h driver.Handle) (*sandbox, error) {
	s, err := d.lookup(h)
	if err != nil {
		return nil, err
	}
	if s.ended() {
		return nil, s.goneError()
	}
	return s, nil
}

// Wait implements driver.Driver.
func (d *Driver) Wait(ctx context.Context, h driver.Handle) (driver.Exit, error) {
	s, err := d.lookup(h)
	if err != nil {
		return driver.Exit{}, err
	}
	select {
	case <-s.done:
		return s.exit, nil
	default:
	}
	select {
	case <-s.done:
		return s.exit, nil
	case <-d.closing:
		return driver.Exit{}, errClosed
	case <-ctx.Done():
		return driver.Exit{}, ctx.Err()
	}
}

// Recover implements driver.Driver.
func (d *Driver) Recover(ctx context.Context, h driver.Handle) error {
	want, err := decodeHandle(h)
	if err != nil {
		return err
	}
	if _, err := d.lookup(h); err == nil {
		return nil
	}
	// Destroy removes the bundle first.
	_, err = os.Lstat(filepath.Join(want.Dir, bundle.ConfigFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("machine %s: %w", want.ID, driver.ErrNotFound)
	}
	if err != nil {
		return err
	}
	return d.watch(ctx, want)
}

package logs

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

const (
	// chunkSize is the most bytes that are copied at once.
	chunkSize = 64 << 10
	// fifoSize is how many bytes a Machine can write without a reader.
	fifoSize = 256 << 10
)

//nolint:gochecknoglobals // buffers are worth sharing between all Machines, most of which are silent
var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// capture copies a FIFO until it is stopped.
type capture struct {
	path string
	fifo *os.File
	raw  syscall.RawConn
	done chan struct{} // closed when the goroutine has ended

	stop     sync.Once
	stopping chan struct{} // closed by stop
}

// Capture makes the FIFO, unless it exists, and copies its content until Release. It may be repeated,
// even after a restart of the daemon or a failure to copy. With a keeper, no output that is written after
// Capture has returned is lost, whether the Machine or the daemon ends first.
func (s *Store) Capture(ref hangar.MachineRef, fifo string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.machine(ref)
	if err != nil {
		return err
	}
	m.app.mu.Lock()
	defer m.app.mu.Unlock()
	if m.capture != nil && !isClosed(m.capture.done) {
		if m.capture.path != fifo {
			return fmt.Errorf("output of machine %s is captured from %s already, not from %s", ref.ID, m.capture.path, fifo)
		}
		return nil
	}
	c, err := openCapture(fifo)
	if err != nil {
		return fmt.Errorf("capture output of machine %s: %w", ref.ID, err)
	}
	if err := c.resume(s.tap, m.left); err != nil {
		return errors.Join(fmt.Errorf("capture output of machine %s: %w", ref.ID, err), c.fifo.Close())
	}
	if failed := m.capture; failed != nil { // closed only now, so that the FIFO keeps its content
		failed.stop.Do(func() { close(failed.stopping); _ = failed.fifo.Close() })
		m.capture = nil
		_ = m.closeNote()
	}
	m.left = note{}
	if m.note, err = openNote(m.dir); err == nil {
		err = note{}.write(m.note)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("capture output of machine %s: %w", ref.ID, err), m.closeNote(), c.fifo.Close())
	}
	s.hold(ref, c)
	m.capture = c
	go func() {
		defer close(c.done)
		if err := c.copy(m); err != nil {
			s.log.Error("capture of a machine's output has ended", slog.String("app", string(ref.AppID)),
				slog.String("machine", string(ref.ID)), slog.Any("error", err))
		}
	}()
	return nil
}

// Release copies the rest of the FIFO and stops. An incomplete line becomes a line, because the
// Machine has stopped. It may be repeated.
func (s *Store) Release(id hangar.MachineID) error {
	s.mu.Lock()
	m, ok := s.machines[id]
	s.mu.Unlock()
	if !ok {
		return nil
	}
	err := m.endCapture(true)
	m.finish()
	return errors.Join(err, m.closeFile())
}

func openCapture(path string) (*capture, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	// Opened for writing, too, so that the file does not end when the sandbox ends. The sandbox does
	// the same, so it never waits for this process to open the FIFO.
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().Type() != fs.ModeNamedPipe {
		err = fmt.Errorf("%s is not a FIFO", path)
	}
	c := &capture{path: path, fifo: f, done: make(chan struct{}), stopping: make(chan struct{})}
	if err == nil {
		c.raw, err = f.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// A larger FIFO is better, but the default is enough.
	_ = c.raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, fifoSize) })
	return c, nil
}

// copy runs until endCapture, and then copies the rest of the FIFO.
func (c *capture) copy(m *machineLog) error {
	var err error
	for err == nil {
		var n int
		if n, err = c.read(m, true); n > 0 {
			c.pace(m.app, n)
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if err := c.fifo.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	var left int
	if err := c.raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
		return err
	}
	for err == nil && left > 0 {
		var n int
		n, err = c.read(m, false)
		left -= max(n, 1)
	}
	return err
}

// pace waits until the App may write n bytes more, or until endCapture.
func (c *capture) pace(a *appLog, n int) {
	wait := a.rate.ReserveN(time.Now(), n).Delay()
	if wait == 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.stopping:
	}
}

// read copies one chunk. It holds a buffer only while there is output to read.
func (c *capture) read(m *machineLog, wait bool) (n int, err error) {
	waitErr := c.raw.Read(func(fd uintptr) bool {
		chunk := chunks.Get().(*[chunkSize]byte)
		defer chunks.Put(chunk)
		n, err = m.store.tap.peek(int(fd), chunk[:])
		if errors.Is(err, unix.EAGAIN) {
			n, err = 0, nil
			return !wait
		}
		if err == nil {
			m.output(chunk[:n])
			err = take(int(fd), chunk[:n])
			m.settle()
		}
		return true
	})
	return n, errors.Join(waitErr, err)
}

// resume removes from the FIFO what a killed daemon had already written to the log.
func (c *capture) resume(t *tap, n note) error {
	if n.size == 0 || n.size > chunkSize {
		return nil
	}
	chunk := make([]byte, n.size)
	var err error
	return errors.Join(c.raw.Control(func(fd uintptr) {
		var size int
		size, err = t.peek(int(fd), chunk)
		switch {
		case errors.Is(err, unix.EAGAIN):
			err = nil
		case err == nil && n.describes(chunk[:size]):
			err = take(int(fd), chunk)
		}
	}), err)
}

// endCapture stops the capture, if there is one, and waits for its goroutine, which ends without
// waiting for output. With drop, the keeper closes the FIFO, too.
func (m *machineLog) endCapture(drop bool) error {
	m.app.mu.Lock()
	c := m.capture
	m.app.mu.Unlock()
	if c == nil {
		return nil
	}
	var err error
	c.stop.Do(func() {
		close(c.stopping)
		err = c.fifo.SetReadDeadline(time.Unix(1, 0))
		<-c.done
		err = errors.Join(err, c.fifo.Close())
	})
	m.app.mu.Lock()
	defer m.app.mu.Unlock()
	if m.capture == c {
		m.capture = nil
		err = errors.Join(err, m.closeNote())
		if drop {
			m.store.drop(hangar.MachineRef{AppID: m.app.id, ID: m.id})
		}
	}
	return err
}

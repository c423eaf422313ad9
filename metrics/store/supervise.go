package store

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/oomscore"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Pauses before a restart. There is none after the first crash of a child that has been ready.
const (
	minBackOff = time.Second
	maxBackOff = time.Minute
)

// steady is how long a child must run until earlier crashes are forgotten.
const steady = 5 * time.Minute

// stopGrace is how long a child may take to write what it has in memory.
const stopGrace = 30 * time.Second

// supervisor starts the child.
type supervisor struct {
	stop  context.CancelFunc
	ended chan struct{} // closed when the supervisor and the child have ended
}

// startSupervisor starts the supervisor unless there is one. s.mu is held.
func (s *Store) startSupervisor() {
	if s.supervisor != nil {
		return
	}
	ctx, stop := context.WithCancel(s.workers.Context)
	started := &supervisor{stop: stop, ended: make(chan struct{})}
	if !s.workers.Go(func() { defer close(started.ended); s.supervise(ctx) }) {
		stop() // the store is closed
		return
	}
	s.supervisor = started
}

// supervise runs children, one after another, until ctx ends.
func (s *Store) supervise(ctx context.Context) {
	// The kernel sends Pdeathsig when the thread that started the child ends. This thread lives as
	// long as the goroutine, or the process.
	runtime.LockOSThread()
	var backOff time.Duration
	for {
		began := time.Now()
		ready, err := s.runChild(ctx)
		if ctx.Err() != nil {
			if err != nil {
				s.opts.Log.ErrorContext(ctx, "Metrics store did not stop cleanly", "error", err)
			}
			return
		}
		s.crashes.Add(1)
		switch ran := time.Since(began); {
		case ready && (backOff == 0 || ran >= steady):
			backOff = minBackOff
			s.opts.Log.ErrorContext(ctx, "Metrics store ended; starting it again", "error", err, "ran", ran)
			continue
		case backOff == 0:
			backOff = minBackOff
		default:
			backOff = min(2*backOff, maxBackOff)
		}
		s.opts.Log.ErrorContext(ctx, "Metrics store keeps ending", "error", err, "next_start_in", backOff)
		s.setAway(err)
		if pause.For(ctx, backOff) != nil {
			return
		}
		s.setStarting()
	}
}

// setAway makes all requests fail, current and future ones.
func (s *Store) setAway(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = err
	s.end(err)
}

// setStarting makes requests wait for the child again.
func (s *Store) setStarting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = nil
	s.epoch, s.end = context.WithCancelCause(s.workers.Context)
}

func (s *Store) setPID(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = pid
}

// runChild runs one child until it ends; it stops the child when ctx ends. It reports whether the
// child has responded to a request.
func (s *Store) runChild(ctx context.Context) (ready bool, err error) {
	path, err := s.opts.Program(ctx)
	if err != nil {
		return false, err
	}
	group, err := makeGroup(s.opts.Group, s.opts.MemoryBytes)
	if err != nil {
		return false, err
	}
	listener, err := s.listener.File()
	if err != nil {
		return false, err
	}
	defer listener.Close()
	cmd := exec.CommandContext(ctx, path,
		"-dir", s.opts.Dir,
		"-retention", s.opts.Retention.String(),
		"-memory", strconv.FormatInt(s.opts.MemoryBytes, 10),
		"-min-free", strconv.FormatInt(s.opts.MinFreeBytes, 10),
		"-queries", strconv.Itoa(s.opts.Queries))
	cmd.Env = []string{} // the daemon's environment may contain credentials
	cmd.ExtraFiles = []*os.File{listener}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = stopGrace
	said, saying := io.Pipe()
	cmd.Stdout, cmd.Stderr = saying, saying
	if err := cmd.Start(); err != nil {
		return false, err
	}
	s.starts.Add(1)
	s.setPID(cmd.Process.Pid)
	defer s.setPID(0)
	last := make(chan string, 1)
	go func() { last <- s.relay(ctx, said) }()
	// The host can do without the child before anything else.
	err = errors.Join(group.add(cmd.Process.Pid), oomscore.SetChild(cmd.Process, oomscore.Machine))
	if err != nil {
		err = errors.Join(err, cmd.Process.Kill())
	}
	probing, stopProbing := context.WithCancel(ctx)
	defer stopProbing()
	answered := make(chan bool, 1)
	go func() { answered <- s.probe(probing) }()
	err = errors.Join(err, wait(cmd), saying.Close())
	stopProbing()
	// Connections to an ended process are useless to the next one.
	s.transport.CloseIdleConnections()
	words := <-last
	if err == nil && ctx.Err() == nil {
		err = errors.New("the program ended by itself")
	}
	if err != nil && words != "" {
		err = fmt.Errorf("%w: %s", err, words)
	}
	return <-answered, err
}

// wait waits for a child to end. A requested and successful end is not an error.
func wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	if errors.Is(err, context.Canceled) && cmd.ProcessState.Success() {
		return nil
	}
	return err
}

// probe reports whether the child responds before ctx ends.
func (s *Store) probe(ctx context.Context) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://store/ready", http.NoBody)
	if err != nil {
		return false
	}
	began := time.Now()
	resp, err := s.transport.RoundTrip(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	ok := resp.StatusCode == http.StatusNoContent
	if ok {
		s.opts.Log.InfoContext(ctx, "Metrics store is ready", "took", time.Since(began))
	}
	return ok
}

// maxLine bounds a line of the child's output.
const maxLine = 64 << 10

// relay logs the output of a child and returns its last error.
func (s *Store) relay(ctx context.Context, said io.Reader) string {
	last := ""
	lines := bufio.NewScanner(said)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		text := lines.Text()
		var entry struct{ Level, Msg string }
		if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg != "" {
			text = entry.Msg
		}
		if text = shorten(text); text == "" {
			continue
		}
		// After its message, a panic prints the stacks of goroutines.
		if entry.Level == "panic" || entry.Level == "fatal" || last == "" {
			last = text
		}
		s.opts.Log.DebugContext(ctx, "Output of the metrics store", "text", text)
	}
	_, _ = io.Copy(io.Discard, said) // an overlong line must not block the child
	return last
}

// maxWords bounds the quoted output of the child, in bytes.
const maxWords = 500

func shorten(text string) string {
	if len(text) > maxWords {
		return text[:maxWords]
	}
	return text
}

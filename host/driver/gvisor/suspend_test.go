package gvisor_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

var cycles = flag.Int("cycles", 10, "how often TestSuspendCycles suspends and resumes")

const step = time.Minute

// guestServer is a Machine that serves HTTP in a network of its own.
type guestServer struct {
	testing.TB
	d      *gvisor.Driver
	net    *network
	spec   driver.Spec
	handle driver.Handle
}

// serve boots the test guest's server with mb MiB of state.
func serve(tb testing.TB, d *gvisor.Driver, mb int) *guestServer {
	tb.Helper()
	s := &guestServer{TB: tb, d: d, net: newNetwork(tb), spec: newSpec(tb, "serve", strconv.Itoa(mb))}
	s.spec.NetNS = s.net.path
	s.spec.MemoryMB = max(256, 2*mb)
	discardOutput(tb, s.spec.Output)
	s.net.address(tb)
	var err error
	if s.handle, err = d.Start(tb.Context(), s.spec); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := d.Destroy(finishtest.Context(tb), s.spec.ID, s.spec.Dir); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// discardOutput reads the FIFO until the test ends.
func discardOutput(tb testing.TB, path string) {
	tb.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, f)
	}()
	tb.Cleanup(func() {
		_ = f.Close()
		<-done
	})
}

// dial connects to the server; while the sandbox boots there is no answer, so each attempt is
// short.
func (s *guestServer) dial() net.Conn {
	s.Helper()
	for began := time.Now(); ; {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(s.net.guest.String(), "8080"), 10*time.Millisecond)
		if err == nil {
			return c
		}
		if time.Since(began) > step {
			s.Fatal(err)
		}
	}
}

// ask sends a request over the connection and checks the state in the answer: the
// number of the request, the memory, the length of the file.
func (s *guestServer) ask(c net.Conn, want, length int) {
	s.Helper()
	if err := c.SetDeadline(time.Now().Add(step)); err != nil {
		s.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: guest\r\n\r\n"); err != nil {
		s.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		s.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.Fatal(err)
	}
	_ = r.Body.Close()
	if got, want := strings.TrimSpace(string(body)), fmt.Sprintf("%d true %d", want, length); got != want {
		s.Fatalf("state %q, want %q", got, want)
	}
}

func (s *guestServer) suspend() string {
	s.Helper()
	dir := filepath.Join(s.spec.Dir, "snapshot")
	if err := s.d.Suspend(s.Context(), s.handle, dir); err != nil {
		s.Fatal(err)
	}
	return dir
}

func (s *guestServer) resume(dir string) {
	s.Helper()
	s.net.address(s)
	var err error
	if s.handle, err = s.d.Resume(s.Context(), s.spec, dir); err != nil {
		s.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		s.Fatal(err)
	}
}

func open(tb testing.TB) *gvisor.Driver {
	tb.Helper()
	d, _ := newDriver(tb)
	tb.Cleanup(func() { _ = d.Close() })
	return d
}

// TestSuspendCycles: the memory, the root file system and a TCP connection survive many suspends.
func TestSuspendCycles(t *testing.T) {
	s := serve(t, open(t), 16)
	conn := s.dial()
	defer conn.Close()
	length := 0
	for i := 1; i <= *cycles; i++ {
		length += len(strconv.Itoa(i)) + 1
		s.ask(conn, i, length)
		s.resume(s.suspend())
	}
	fresh := s.dial() // the listening socket is there, too
	defer fresh.Close()
	length += len(strconv.Itoa(*cycles+1)) + 1
	s.ask(fresh, *cycles+1, length)
}

// TestResumeWithoutDescriptors: a resume for which the process may open no files can be repeated.
func TestResumeWithoutDescriptors(t *testing.T) {
	d := open(t)
	spec := newSpec(t, "count")
	m := boot(t, d, spec)
	snapshot := filepath.Join(spec.Dir, "snapshot")
	if err := d.Suspend(t.Context(), m.handle, snapshot); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := d.Resume(t.Context(), spec, snapshot)
	if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); restored != nil {
		t.Fatal(restored)
	}
	if !errors.Is(err, driver.ErrNotBegun) || errors.Is(err, driver.ErrSnapshotUnusable) {
		t.Errorf("resumed: %v", err)
	}
	if m.handle, err = d.Resume(t.Context(), spec, snapshot); err != nil {
		t.Fatal(err)
	}
	if err := d.Signal(t.Context(), m.handle, 10); err != nil {
		t.Error(err)
	}
}

// TestResumeThatTheEngineBegan: a resume that fails once the engine has its command cannot be repeated.
func TestResumeThatTheEngineBegan(t *testing.T) {
	opts := options(t)
	engine := opts.Engine
	opts.Engine = filepath.Join(t.TempDir(), "engine")
	if err := os.Symlink(engine, opts.Engine); err != nil {
		t.Fatal(err)
	}
	before := waiting(t)
	d := reopen(t, opts)
	spec := newSpec(t, "sleep")
	m := boot(t, d, spec)
	snapshot := filepath.Join(spec.Dir, "snapshot")
	if err := d.Suspend(t.Context(), m.handle, snapshot); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(newlyWaiting(t, before), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(opts.Engine), os.Symlink("/bin/true", opts.Engine)); err != nil {
		t.Fatal(err)
	}
	_, err := d.Resume(t.Context(), spec, snapshot)
	if err == nil || errors.Is(err, driver.ErrNotBegun) || errors.Is(err, driver.ErrSnapshotUnusable) {
		t.Errorf("resumed: %v", err)
	}
}

// TestResumeWithoutNetwork: a resume that fails in the engine before the memory was used can be
// repeated.
func TestResumeWithoutNetwork(t *testing.T) {
	d := open(t)
	spec := newSpec(t, "count")
	m := boot(t, d, spec)
	snapshot := filepath.Join(spec.Dir, "snapshot")
	if err := d.Suspend(t.Context(), m.handle, snapshot); err != nil {
		t.Fatal(err)
	}
	broken := spec
	broken.NetNS = "/proc/self/ns/uts"
	if _, err := d.Resume(t.Context(), broken, snapshot); !errors.Is(err, driver.ErrNotBegun) || errors.Is(err, driver.ErrSnapshotUnusable) {
		t.Errorf("resumed: %v", err)
	}
	var err error
	if m.handle, err = d.Resume(t.Context(), spec, snapshot); err != nil {
		t.Fatal(err)
	}
	if err := d.Signal(t.Context(), m.handle, 10); err != nil {
		t.Error(err)
	}
}

// TestResumeThatCannotBeRecorded: a resume that cannot be recorded for the next daemon has not begun, so that no Machine
// runs that would have to be ended.
func TestResumeThatCannotBeRecorded(t *testing.T) {
	d := open(t)
	spec := newSpec(t, "count")
	m := boot(t, d, spec)
	snapshot := filepath.Join(spec.Dir, "snapshot")
	if err := d.Suspend(t.Context(), m.handle, snapshot); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(spec.Dir, "result.tmp"), 0o700); err != nil { // in the way, until the resume is undone
		t.Fatal(err)
	}
	_, err := d.Resume(t.Context(), spec, snapshot)
	if !errors.Is(err, driver.ErrNotBegun) || errors.Is(err, driver.ErrSnapshotUnusable) {
		t.Errorf("resumed: %v", err)
	}
	if m.handle, err = d.Resume(t.Context(), spec, snapshot); err != nil {
		t.Fatal(err)
	}
	if err := d.Signal(t.Context(), m.handle, 10); err != nil {
		t.Error(err)
	}
}

// TestOutOfMemory: the exit of a Machine that runs out of memory says so.
func TestOutOfMemory(t *testing.T) {
	d := open(t)
	spec := newSpec(t, "eat", "400")
	discardOutput(t, spec.Output)
	h, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.Wait(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	e.At = time.Time{}
	if want := (driver.Exit{Code: 137, Signal: 9, OOMKilled: true}); e != want {
		t.Errorf("exit %+v, want %+v", e, want)
	}
	if err := d.Destroy(finishtest.Context(t), spec.ID, spec.Dir); err != nil {
		t.Error(err)
	}
}

// TestSuspendFullMachine: a Machine that uses nearly all of its memory survives.
func TestSuspendFullMachine(t *testing.T) {
	d := open(t)
	s := serve(t, d, 96)
	s.spec.MemoryMB = 256
	conn := s.dial()
	defer conn.Close()
	s.ask(conn, 1, 2)
	var out strings.Builder
	eaten := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer close(eaten)
		_, _ = d.Exec(ctx, s.handle, command("eat", "100"), hangar.ExecStreams{Stdout: writerFunc(func(p []byte) (int, error) {
			out.Write(p)
			if strings.Contains(out.String(), "ate 100") {
				cancel()
			}
			return len(p), nil
		})})
	}()
	<-eaten
	if !strings.Contains(out.String(), "ate 100") {
		t.Fatalf("the guest said %q", out.String())
	}
	s.resume(s.suspend())
	s.ask(conn, 2, 4)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

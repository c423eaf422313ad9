package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary a keeper.
const (
	roleEnv = "HANGAR_KEEPER_TEST"
	roleOld = "old" // one of the first version
)

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) == "" {
		goleak.VerifyTestMain(m)
		return
	}
	l, err := net.FileListener(os.NewFile(3, "listener"))
	must(err)
	if os.Getenv(roleEnv) == roleOld {
		serveOld(l.(*net.UnixListener))
		return
	}
	must(Serve(l.(*net.UnixListener)))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// host is where keepers are started.
type host struct {
	socket string
	role   string // of keepers that are started; empty: of this version

	mu      sync.Mutex
	started []*os.Process
	pids    []int
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{socket: filepath.Join(t.TempDir(), "run", "keeper", "socket")}
	t.Cleanup(func() { must(Quit(context.Background(), h.socket)) })
	return h
}

func (h *host) start(listener *os.File) (*os.Process, error) {
	p, err := os.StartProcess("/proc/self/exe", []string{"keeper"}, &os.ProcAttr{
		Env: []string{roleEnv + "=" + cmp.Or(h.role, "new")}, Files: []*os.File{nil, nil, os.Stderr, listener},
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.started, h.pids = append(h.started, p), append(h.pids, p.Pid)
	}
	return p, err
}

func (h *host) client(t *testing.T) *Client {
	t.Helper()
	c := New(Options{Socket: h.socket, Start: h.start, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	must(c.Open(t.Context()))
	t.Cleanup(func() { must(c.Close()) })
	return c
}

// paths returns the sorted paths that an earlier client left.
func paths(c *Client) (all []string) {
	for _, e := range c.Inherited() {
		all = append(all, e.Path)
	}
	slices.Sort(all)
	return all
}

// machine makes a FIFO with text in it.
func machine(t *testing.T, text string) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "output")
	must(unix.Mkfifo(path, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	must(err)
	_, err = f.WriteString(text)
	must(err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// content returns the current content of a FIFO.
func content(path string) string {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	must(err)
	defer f.Close()
	raw, err := f.SyscallConn()
	must(err)
	b := make([]byte, 1000)
	n := 0
	must(raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), b) }))
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		panic(err)
	}
	return string(b[:max(n, 0)])
}

func TestWhatIsHeldSurvives(t *testing.T) {
	h := newHost(t)
	c := h.client(t)
	kept, dropped := machine(t, "kept"), machine(t, "dropped")
	c.Hold("other", dropped.Name(), dropped)
	c.Hold("shop", dropped.Name(), dropped)
	c.Hold("shop", kept.Name(), kept) // instead
	c.Drop("other")
	c.Drop("unknown")
	must(c.Close())
	must(c.Close())
	must(kept.Close())
	must(dropped.Close())

	c = h.client(t)
	if got, want := c.Inherited(), (Entry{"shop", kept.Name()}); len(got) != 1 || got[0] != want {
		t.Fatalf("the keeper holds %v, want %v", got, want)
	}
	if got := content(dropped.Name()); got != "" {
		t.Errorf("dropped, but still there: %q", got)
	}
	if got := content(kept.Name()); got != "kept" {
		t.Errorf("kept is %q", got)
	}
	c.Drop("shop")
	if len(h.started) != 1 {
		t.Errorf("%d keepers were started", len(h.started))
	}
	ended, err := os.FindProcess(h.pids[0])
	must(err)
	must(c.Close())
	if _, err := ended.Wait(); err != nil { // by itself
		t.Error(err)
	}
}

// A keeper that is killed is replaced, and the new one has everything.
func TestKilledKeeperIsReplaced(t *testing.T) {
	h := newHost(t)
	c := h.client(t)
	const count = 300 // more than a socket takes at once
	files := make([]*os.File, count)
	for i := range files {
		files[i] = machine(t, fmt.Sprint("output ", i))
		c.Hold(fmt.Sprint(i), files[i].Name(), files[i])
	}
	must(h.started[0].Kill())
	awaitReplacement(t, c, h, 2)
	must(c.Close())
	for _, f := range files {
		must(f.Close())
	}
	c = h.client(t)
	if got := len(c.Inherited()); got != count {
		t.Errorf("the new keeper holds %d FIFOs, want %d", got, count)
	}
	for i, f := range files {
		if got := content(f.Name()); got != fmt.Sprint("output ", i) {
			t.Fatalf("output %d is %q", i, got)
		}
		c.Drop(fmt.Sprint(i))
	}
}

// awaitReplacement waits until a number of keepers was started and the client has one.
func awaitReplacement(t *testing.T, c *Client, h *host, n int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		h.mu.Lock()
		started := len(h.started)
		h.mu.Unlock()
		c.mu.Lock()
		connected := c.conn != nil
		c.mu.Unlock()
		if started >= n && connected {
			return
		}
	}
	t.Fatal("the keeper is not replaced")
}

// A keeper may be about to end when the next client connects, which then gets another one.
func TestClientsComeAndGo(t *testing.T) {
	h := newHost(t)
	for i := range 15 {
		c := h.client(t)
		if got := c.Inherited(); len(got) != 0 {
			t.Fatalf("round %d begins with %v", i, got)
		}
		f := machine(t, "text")
		c.Hold("name", f.Name(), f)
		must(c.Close())
		must(f.Close())
		c = h.client(t)
		if got := paths(c); len(got) != 1 || got[0] != f.Name() {
			t.Fatalf("round %d leaves %v", i, got)
		}
		if got := content(f.Name()); got != "text" {
			t.Fatalf("round %d leaves %q", i, got)
		}
		c.Drop("name")
		must(c.Close())
	}
}

func TestQuit(t *testing.T) {
	h := newHost(t)
	must(Quit(t.Context(), h.socket)) // there is no directory yet
	c := h.client(t)
	f := machine(t, "text")
	c.Hold("name", f.Name(), f)
	must(c.Close())
	must(f.Close())
	must(Quit(t.Context(), h.socket))
	if got := content(f.Name()); got != "" {
		t.Errorf("%q is left without a holder", got)
	}
	must(Quit(t.Context(), h.socket)) // the socket is left without a listener
	if got := h.client(t).Inherited(); len(got) != 0 {
		t.Errorf("another keeper holds %v", got)
	}
}

// patrolOften is how often the keeper of attended looks at what it holds.
const patrolOften = 500 * time.Millisecond

// attended is a connection to a keeper that existed before the keeper first looked for clients.
func attended(t *testing.T, patience time.Duration) (*net.UnixConn, <-chan error) {
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: socket, Net: network})
	must(err)
	conn, err := dial(t.Context(), socket)
	must(err)
	ended := make(chan error, 1)
	go func() { ended <- serve(l, patrolOften, patience) }()
	return conn, ended
}

func TestFIFOsThatWereRemovedAreNotHeld(t *testing.T) {
	conn, ended := attended(t, socketPatience)
	f := machine(t, "text")
	must(handOver(conn, "name", holding{wordHold, f.Name(), f}))
	for range 5 { // it stays while it has a name
		time.Sleep(patrolOften)
		if got, err := list(conn); err != nil || len(got) != 1 {
			t.Fatalf("held are %v, %v", got, err)
		}
	}
	must(conn.Close())
	must(os.Remove(f.Name()))
	select {
	case err := <-ended:
		must(err)
	case <-time.After(time.Minute):
		t.Fatal("the keeper does not end")
	}
}

// A keeper that has no descriptor for a connection keeps what it holds, and accepts the connection later.
func TestNoDescriptors(t *testing.T) {
	conn, ended := attended(t, socketPatience)
	f := machine(t, "text")
	must(handOver(conn, "name", holding{wordHold, f.Name(), f}))
	_, err := list(conn) // which shows that it is held
	must(err)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(err)
	next := os.NewFile(uintptr(fd), "socket")
	defer next.Close()
	var limit unix.Rlimit
	must(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	must(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}))
	must(conn.Close())
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: conn.RemoteAddr().String()})
	select {
	case ending := <-ended:
		t.Errorf("the keeper has ended: %v", ending)
	case <-time.After(acceptPause / 2): // it has tried by now
	}
	must(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	must(err)
	if t.Failed() {
		return
	}
	c, err := net.FileConn(next)
	must(err)
	if got, err := list(c.(*net.UnixConn)); err != nil || len(got) != 1 {
		t.Errorf("held are %v, %v", got, err)
	}
	must(send(c.(*net.UnixConn), message{wordQuit}, nil))
	must(c.Close())
	must(<-ended)
}

func TestRefusals(t *testing.T) {
	h := newHost(t)
	c := h.client(t)
	must(c.Close())
	keep := machine(t, "")
	c = h.client(t)
	c.Hold("keep", keep.Name(), keep)
	c.Hold("long", strings.Repeat("x", maxMessage), keep) // logged
	must(c.Close())

	conn, err := dial(t.Context(), h.socket)
	must(err)
	defer conn.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must(err)
	defer file.Close()
	for name, tt := range map[string]struct {
		send func() error
		want string
	}{
		"no FIFO":       {func() error { return handOver(conn, "x", holding{wordHold, "", file}) }, "not a FIFO"},
		"no descriptor": {func() error { return send(conn, message{wordHold, "x", "/x"}, nil) }, "no descriptor"},
		"unknown":       {func() error { return send(conn, message{"swap", "x"}, nil) }, "unknown request"},
		"empty words":   {func() error { return send(conn, message{"", ""}, nil) }, "unknown request"},
	} {
		must(tt.send())
		if m, err := receive(conn); err != nil || m[0] != wordFailed || !strings.Contains(m[2], tt.want) {
			t.Errorf("%s: answered %q, %v", name, m, err)
		}
	}
	if got, err := list(conn); err != nil || len(got) != 1 || got[0].Name != "keep" {
		t.Errorf("held are %v, %v", got, err)
	}
	must(send(conn, message{wordDrop, "keep"}, nil))
}

func TestKeeperCannotBeStarted(t *testing.T) {
	broken := errors.New("broken")
	c := New(Options{
		Socket: filepath.Join(t.TempDir(), "keeper", "socket"), Log: slog.New(slog.DiscardHandler),
		Start: func(*os.File) (*os.Process, error) { return nil, broken },
	})
	if err := c.Open(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Open: %v", err)
	}
}

func BenchmarkHold(b *testing.B) {
	socket := filepath.Join(b.TempDir(), "socket")
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: socket, Net: network})
	must(err)
	ended := make(chan error, 1)
	go func() { ended <- Serve(l) }()
	conn, err := dial(b.Context(), socket)
	must(err)
	path := filepath.Join(b.TempDir(), "output")
	must(unix.Mkfifo(path, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	must(err)
	for b.Loop() {
		must(handOver(conn, "name", holding{wordHold, path, f}))
	}
	must(send(conn, message{wordDrop, "name"}, nil))
	must(conn.Close())
	must(<-ended)
}

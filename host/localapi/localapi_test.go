package localapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench are sockets with one Machine, in a short directory.
type bench struct {
	testing.TB
	*Sockets
	dir string
	ref hangar.MachineRef
	run func(h http.Handler)
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "api") //nolint:usetesting // a TempDir is named after the test and too long
	if err != nil {
		t.Fatal(err)
	}
	parent, dir := dir, filepath.Join(dir, "local")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, Sockets: New(slog.New(slog.DiscardHandler)), dir: dir, ref: hangar.MachineRef{App: "web", AppID: "web", ID: "0123456789abcd"}}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	b.run = func(h http.Handler) {
		running.Go(func() {
			if err := b.Run(ctx, &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}); !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
		if err := errors.Join(b.End(), os.RemoveAll(parent)); err != nil {
			t.Error(err)
		}
	})
	b.open()
	return b
}

func (b *bench) open() {
	b.Helper()
	if err := b.Open(b.dir, hangar.OrgPersonal, "org0001", b.ref); err != nil {
		b.Fatal(err)
	}
}

// dial connects and sends a request.
func (b *bench) dial(request string) net.Conn {
	b.Helper()
	c, err := (&net.Dialer{}).DialContext(b.Context(), "unix", filepath.Join(b.dir, SocketName))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	_, _ = io.WriteString(c, request)
	return c
}

// patience is how long a test waits for what happens at once on a machine that is not busy.
const patience = time.Minute

const get = "GET / HTTP/1.1\r\nHost: anything\r\n\r\n"

// answer reads an answer.
func (b *bench) answer(c net.Conn) string {
	b.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		b.Fatal(err)
	}
	return string(body)
}

// who answers with the Machine that asks, and what that may do.
var who = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	ref, _ := hangar.SelfFrom(r.Context())
	p, err := hangar.PrincipalFrom(r.Context())
	fmt.Fprintln(w, ref, p.Subject, err)
})

func TestConnectionsBeforeRunWait(t *testing.T) {
	b := newBench(t)
	c := b.dial(get)
	b.run(who)
	if got := b.answer(c); got != "{web web 0123456789abcd} machine 0123456789abcd <nil>\n" {
		t.Errorf("answer %q", got)
	}
}

// TestDirectory: the socket takes the place of what is there, follows nothing and leaves
// nothing else.
func TestDirectory(t *testing.T) {
	b := newBench(t)
	b.run(who)
	b.Close(b.ref.ID)
	path, victim := filepath.Join(b.dir, SocketName), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func() error{
		"nothing": func() error { return nil },
		"socket":  func() error { return nil }, // of the time before
		"link": func() error {
			return errors.Join(os.Symlink(victim, path), os.Symlink(victim, b.dir+".api"))
		},
		"file": func() error { return os.WriteFile(path, nil, 0o666) },
		"fifo": func() error { return unix.Mkfifo(path, 0o666) },
		"what is left of a process that was killed": func() error { return os.WriteFile(b.dir+".api", nil, 0o666) },
	} {
		if name != "socket" {
			_ = os.Remove(path)
		}
		if err := put(); err != nil {
			t.Fatal(err)
		}
		b.open()
		if got := b.answer(b.dial(get)); !strings.Contains(got, "web") {
			t.Errorf("%s: %q", name, got)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%s: the socket is %v, %v", name, info, err)
		}
		for _, dir := range []string{b.dir, filepath.Dir(b.dir)} {
			if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
				t.Errorf("%s: left %v, %v", name, list, err)
			}
		}
		b.Close(b.ref.ID)
		if c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path); err == nil {
			_ = c.Close()
			t.Errorf("%s: a socket that is closed takes connections", name)
		}
	}
	if info, err := os.Stat(victim); err != nil || info.Mode() != 0o644 {
		t.Errorf("the target of a link is %v, %v", info, err)
	}
	if err := b.Open(filepath.Join(b.dir, "none"), hangar.OrgPersonal, "org0001", b.ref); err == nil {
		t.Error("a socket in a directory that is not there")
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("d", 200), "local")
	if err := errors.Join(os.MkdirAll(long, 0o755), b.Open(long, hangar.OrgPersonal, "org0001", b.ref)); err != nil {
		t.Errorf("long name: %v", err)
	}
}

// TestAccess: a socket has the mode and the owner of the one that it replaces, but of
// nothing else.
func TestAccess(t *testing.T) {
	b := newBench(t)
	path := filepath.Join(b.dir, SocketName)
	has := func(what string, mode, uid, gid uint32) {
		t.Helper()
		var got unix.Stat_t
		if err := unix.Lstat(path, &got); err != nil || got.Mode != unix.S_IFSOCK|mode || got.Uid != uid || got.Gid != gid {
			t.Errorf("%s: mode %o of %d:%d, %v", what, got.Mode, got.Uid, got.Gid, err)
		}
	}
	has("new", 0o600, 0, 0)
	if err := errors.Join(os.Chown(path, 1000, 2000), os.Chmod(path, os.ModeSetuid|0o666)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b.Close(b.ref.ID)
		b.open()
		has("changed", 0o666, 1000, 2000)
	}
	b.Close(b.ref.ID)
	other := filepath.Join(b.dir, "other")
	if err := errors.Join(os.Rename(path, other), os.Symlink("other", path)); err != nil {
		t.Fatal(err)
	}
	b.open()
	has("in place of a link", 0o600, 0, 0)
	b.Close(b.ref.ID)
	if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "full"), 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := b.Open(b.dir, hangar.OrgPersonal, "org0001", b.ref); !errors.Is(err, unix.EISDIR) {
		t.Errorf("in place of a directory: %v", err)
	}
	if list, err := os.ReadDir(filepath.Dir(b.dir)); err != nil || len(list) != 1 {
		t.Errorf("left %v, %v", list, err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	b.open()
	has("once the directory is gone", 0o600, 0, 0)
}

// TestManyConnections: one Machine cannot take more than its share, and what it takes
// becomes free.
func TestManyConnections(t *testing.T) {
	b := newBench(t)
	b.run(who)
	var held []net.Conn
	for range maxConns {
		c := b.dial(get)
		b.answer(c)
		held = append(held, c)
	}
	waiting := b.dial(get)
	_ = waiting.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := waiting.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("connection %d was served: %d, %v", maxConns+1, n, err)
	}
	other := &bench{TB: t, Sockets: b.Sockets, dir: t.TempDir(), ref: hangar.MachineRef{App: "web", AppID: "web", ID: "1123456789abcd"}}
	if len(other.dir) < 90 {
		other.open()
		other.answer(other.dial(get))
	}
	_ = held[0].Close()
	b.answer(waiting)
}

// TestSettle: it waits for requests and for answers that are not read, within bounds.
func TestSettle(t *testing.T) {
	b := newBench(t)
	release := make(chan struct{})
	b.run(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			<-release
		}
		_, _ = io.WriteString(w, "answered")
	}))
	settle := func() time.Duration {
		began := time.Now()
		b.Settle(t.Context(), b.ref.ID)
		return time.Since(began)
	}
	// quickest is how long that takes while nothing else stands still.
	quickest := func(bound time.Duration) (took time.Duration) {
		for range 10 {
			if took = settle(); took <= bound {
				break
			}
		}
		return took
	}
	if took := quickest(answerPatience / 2); took > answerPatience/2 {
		t.Errorf("without connections: %s", took)
	}
	b.Settle(t.Context(), "ffffffffffffff")
	for name, head := range map[string]string{"kept": "", "closed": "Connection: close\r\n", "old": "old"} {
		request := "GET / HTTP/1.1\r\nHost: x\r\n" + head + "\r\n"
		if head == "old" {
			request = "GET / HTTP/1.0\r\n\r\n"
		}
		for attempt := 1; ; attempt++ {
			c := b.dial(request)
			answered(t, b)
			type reading struct {
				began time.Time
				got   string
			}
			read := make(chan reading)
			go func() {
				<-time.After(100 * time.Millisecond)
				began := time.Now()
				read <- reading{began, b.answer(c)}
			}()
			took, settled := settle(), time.Now()
			r := <-read
			_ = c.Close()
			if r.got == "answered" && !settled.Before(r.began) && took <= readPatience {
				break
			}
			if r.got != "answered" || attempt == 10 { // a reader may stand still for longer than there is patience for
				t.Errorf("%s: %q, settled after %s, before the answer was read: %t", name, r.got, took, settled.Before(r.began))
				break
			}
		}
	}
	c := b.dial(get) // which is not read
	answered(t, b)
	if took := settle(); took < readPatience-look || took > patience {
		t.Errorf("an answer that is not read: settled after %s", took)
	}
	_ = c.Close()
	c = b.dial("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
	until(t, func() bool { return !b.socket().settled(0) })
	if took := quickest(readPatience); took < answerPatience-look || took > readPatience {
		t.Errorf("a request under way: settled after %s", took)
	}
	close(release)
	b.answer(c)
	until(t, func() bool { return b.socket().settled(0) })
}

func (b *bench) socket() *socket {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Sockets.open[b.ref.ID]
}

// answered waits until there is an answer to read.
func answered(t *testing.T, b *bench) {
	t.Helper()
	until(t, func() bool {
		k := b.socket()
		k.mu.Lock()
		defer k.mu.Unlock()
		for conn := range k.conns {
			if conn.unread() {
				return true
			}
		}
		return false
	})
}

func until(t *testing.T, true func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !true(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
	}
}

// TestEnd: requests under way see the end, and nothing is left.
func TestEnd(t *testing.T) {
	b := newBench(t)
	began := make(chan struct{})
	b.run(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		_, _ = io.WriteString(w, "ended")
	}))
	c := b.dial(get)
	<-began
	b.Close(b.ref.ID)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlived its socket")
	}
	b.Close(b.ref.ID)
	b.open()
}

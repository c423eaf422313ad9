package listen

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/keeper"
)

// roleEnv makes the test binary another program.
const roleEnv = "HANGAR_LISTEN_TEST"

// Those programs.
const (
	roleKeeper = "keeper"
	roleDaemon = "daemon" // followed by the socket of a keeper, a directory, the address of a backend, and two ports
)

func play(role string) {
	if role == roleKeeper {
		l, err := net.FileListener(os.NewFile(3, "listener"))
		must(err)
		must(keeper.Serve(l.(*net.UnixListener)))
		return
	}
	var socket, dir, backend string
	var httpPort, rawPort int
	_, err := fmt.Sscan(role, new(string), &socket, &dir, &backend, &httpPort, &rawPort)
	must(err)
	daemon(socket, dir, backend, httpPort, rawPort)
}

// daemon serves until it is terminated.
func daemon(socket, dir, backend string, httpPort, rawPort int) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	k := keeper.New(keeper.Options{Socket: socket, Start: startKeeper, Log: log})
	must(k.Open(ctx))
	w := newWorld()
	w.backends[1] = backend
	w.app("shop", []string{"shared_v4 127.0.0.1", "v4 " + dedicated}, service("tcp", 1, 80, "http"), service("tcp", 1, rawPort))
	r := start(w, log, func(o *Options) {
		o.HTTP, o.HTTPS, o.Keeper, o.Tickets = fmt.Sprintf(":%d", httpPort), "", k, filepath.Join(dir, "tickets")
		o.ServeConn, o.Drain, o.Limits.LastWords = serveOnce, patience, patience // a client is slow when the machine is
	})
	fmt.Println("ready")
	<-ctx.Done()
	r.stop()
	must(k.Close())
}

// serveOnce serves one request, slowly.
func serveOnce(_ context.Context, conn net.Conn, e Entry) {
	e.Taken()
	defer conn.Close()
	if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
		return
	}
	time.Sleep(5 * time.Millisecond)
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
}

func startKeeper(listener *os.File) (*os.Process, error) {
	return os.StartProcess("/proc/self/exe", []string{"keeper"}, &os.ProcAttr{
		Env: []string{roleEnv + "=" + roleKeeper}, Files: []*os.File{nil, nil, os.Stderr, listener},
	})
}

// startDaemon returns when the daemon accepts connections, or is about to.
func startDaemon(t *testing.T, role string) *os.Process {
	t.Helper()
	out, in, err := os.Pipe()
	must(err)
	defer out.Close()
	p, err := os.StartProcess("/proc/self/exe", []string{"daemon"}, &os.ProcAttr{
		Env: []string{roleEnv + "=" + role}, Files: []*os.File{nil, in, os.Stderr},
	})
	must(err)
	must(in.Close())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the daemon says %q, %v", line, err)
	}
	return p
}

// client connects again and again until stop is closed, and counts what goes wrong.
type client struct {
	served, refused, broken atomic.Int64
}

func (c *client) run(stop <-chan struct{}, try func() error) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		switch err := try(); {
		case err == nil:
			c.served.Add(1)
		case errors.Is(err, syscall.ECONNREFUSED):
			c.refused.Add(1)
		default:
			c.broken.Add(1)
		}
	}
}

// request asks for something over a connection of its own.
func request(address string) error {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: shop.apps.test\r\n\r\n"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && !strings.HasSuffix(string(answer), "ok") {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// echoed sends something to the backend and waits for it to come back.
func echoed(address string) error {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "text"); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && string(answer) != "text" {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// Daemons end and are killed while clients connect to a port of every App and to one of a single
// App. No client is ever refused, and daemons that end in order lose nothing.
func TestRestarts(t *testing.T) {
	w := newWorld()
	w.echo(t, 1, "")
	dir, httpPort, rawPort := t.TempDir(), freePort(t), freePort(t)
	socket := filepath.Join(dir, "run", "keeper", "socket")
	t.Cleanup(func() { must(keeper.Quit(context.Background(), socket)) })
	role := fmt.Sprintf("%s %s %s %s %d %d", roleDaemon, socket, dir, w.backend(1), httpPort, rawPort)
	running := startDaemon(t, role)
	must(dial(t, "tcp", at("127.0.0.1", httpPort)).Close())
	must(dial(t, "tcp", at(dedicated, rawPort)).Close())

	for _, tt := range []struct {
		name   string
		signal os.Signal
		rounds int
	}{{"orderly", syscall.SIGTERM, 4}, {"killed", syscall.SIGKILL, 4}} {
		var c client
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			wg.Go(func() { c.run(stop, func() error { return request(at("127.0.0.1", httpPort)) }) })
			wg.Go(func() { c.run(stop, func() error { return echoed(at(dedicated, rawPort)) }) })
		}
		for range tt.rounds {
			time.Sleep(100 * time.Millisecond)
			must(running.Signal(tt.signal))
			_, err := running.Wait()
			must(err)
			time.Sleep(50 * time.Millisecond) // no daemon runs
			running = startDaemon(t, role)
		}
		time.Sleep(100 * time.Millisecond)
		close(stop)
		wg.Wait()
		t.Logf("%s: %d served, %d broken", tt.name, c.served.Load(), c.broken.Load())
		if c.refused.Load() > 0 || c.served.Load() == 0 {
			t.Errorf("%s: %d were refused, %d served", tt.name, c.refused.Load(), c.served.Load())
		}
		if n := c.broken.Load(); tt.signal == syscall.SIGTERM && n > 0 {
			t.Errorf("%s: %d were lost", tt.name, n)
		}
	}
	must(running.Signal(syscall.SIGTERM))
	_, err := running.Wait()
	must(err)
}

// A daemon gets its addresses although what an earlier one has left is in the way.
func TestAddressesOfADaemonChange(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, 80, "http"))
	port := freePort(t)
	socket := filepath.Join(t.TempDir(), "keeper", "socket")
	t.Cleanup(func() { must(keeper.Quit(context.Background(), socket)) })
	for _, address := range []string{"127.0.0.1", dedicated, "", "127.0.0.1"} {
		k := keeper.New(keeper.Options{Socket: socket, Start: startKeeper, Log: slog.New(slog.DiscardHandler)})
		must(k.Open(t.Context()))
		r := newRig(t, w, func(o *Options) { o.HTTP, o.HTTPS, o.Keeper, o.Drain = at(address, port), "", k, time.Millisecond })
		if got := ask(t, dial(t, "tcp", at(cmp.Or(address, dedicated), port)), "any"); got.Port != 80 {
			t.Errorf("at %s told %+v", address, got)
		}
		r.stop()
		must(k.Close())
	}
}

// keepSockets leaves listeners at TCP addresses with a keeper, and returns a Client that has not taken
// them yet.
func keepSockets(t *testing.T, addresses ...string) *keeper.Client {
	t.Helper()
	o := keeper.Options{Socket: filepath.Join(t.TempDir(), "keeper", "socket"), Start: startKeeper, Log: slog.New(slog.DiscardHandler)}
	k := keeper.New(o)
	must(k.Open(t.Context()))
	t.Cleanup(func() { must(keeper.Quit(context.Background(), o.Socket)) })
	l := New(Options{Keeper: k})
	for _, address := range addresses {
		s, err := l.listen(t.Context(), "tcp "+address, address, 0)
		must(err)
		defer s.Close()
	}
	must(k.Close())
	k = keeper.New(o)
	must(k.Open(t.Context()))
	t.Cleanup(func() { must(k.Close()) })
	return k
}

// A socket that cannot be taken over is tried again, and its clients wait.
func TestInheritedSocketIsTriedAgain(t *testing.T) {
	w := newWorld()
	w.echo(t, 1, "")
	port := freePort(t)
	name := "tcp " + at(dedicated, port)
	k := keepSockets(t, at(dedicated, port))
	c := dial(t, "tcp", at(dedicated, port))
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, port))
	spoiled := make(chan struct{})
	r := newRig(t, w, func(o *Options) {
		o.Keeper = k
		o.Ready = func(context.Context) error {
			<-spoiled
			return nil
		}
	})
	f := r.inherited.sockets[name]
	whole, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must(err)
	null, err := os.Open(os.DevNull)
	must(err)
	must(unix.Dup3(int(null.Fd()), int(f.Fd()), unix.O_CLOEXEC))
	must(null.Close())
	close(spoiled)
	w.logged(t, "cannot listen on "+name)
	if err := unix.Dup3(whole, int(f.Fd()), unix.O_CLOEXEC); err != nil {
		t.Fatalf("the socket was given up after one attempt: %v", err)
	}
	must(unix.Close(whole))
	must(r.Await(t.Context()))
	if got := exchange(t, c, "waited"); got != "waited" {
		t.Errorf("the client received %q", got)
	}
}

// What no App needs is given up. A socket that could not be taken over yet is not.
func TestUnneededSocketsAreGivenUp(t *testing.T) {
	port := freePort(t)
	k := keepSockets(t, at(dedicated, port), at(dedicated2, port))
	f := newFollower(t.Context(), New(Options{Keeper: k}))
	f.inherited.take(k)
	defer f.inherited.close()
	pending := key{addr: netip.MustParseAddrPort(at(dedicated, port))}
	f.failed[pending] = "why"
	f.renounce()
	refuses(t, at(dedicated2, port))
	must(dial(t, "tcp", at(dedicated, port)).Close())
	delete(f.failed, pending)
	f.renounce()
	refuses(t, at(dedicated, port))
}

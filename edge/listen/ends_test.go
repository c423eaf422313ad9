package listen

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/keeper"
)

// A killed Machine says nothing to its clients. Their connections end nevertheless, and outlast a
// suspend.
func TestMachineIsKilled(t *testing.T) {
	w := newWorld()
	tcp, udp := freePort(t), freePort(t)
	w.echo(t, 1, "")
	w.udpEcho(t, 2, "")
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, tcp), service("udp", 2, udp))
	newRig(t, w, nil)
	raw := dial(t, "tcp", at(dedicated, tcp))
	echoes := func() {
		t.Helper()
		_, err := io.WriteString(raw, "x")
		must(err)
		if _, err := io.ReadFull(raw, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	echoes()
	say(t, dial(t, "udp", at(dedicated, udp)), "x")
	w.emptied(t, 2)
	for _, s := range []hangar.MachineState{hangar.MachineSuspending, hangar.MachineSuspended, hangar.MachineStarting, hangar.MachineStarted} {
		w.turn(s)
		time.Sleep(10 * time.Millisecond)
		echoes()
	}
	w.emptied(t, 2)
	w.turn(hangar.MachineStopped)
	if _, err := raw.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection ended with %v", err)
	}
	w.emptied(t, 0)
}

// arrive connects and waits until Listeners wait for the client to say something.
func (r *rig) arrive(t *testing.T) net.Conn {
	t.Helper()
	plain, _ := r.Addrs()
	conn := dial(t, "tcp", plain.String())
	for silent := 0; silent < 1; time.Sleep(time.Millisecond) {
		r.arrivals.mu.Lock()
		silent = len(r.arrivals.silent)
		r.arrivals.mu.Unlock()
	}
	return conn
}

// A client that was accepted and is still silent when Run is stopped may still send its request.
func TestLastWords(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 80, "http"))
	r := newRig(t, w, func(o *Options) {
		o.ServeConn, o.Drain, o.Limits.LastWords, o.Limits.FirstByte = serveOnce, time.Hour, time.Hour, time.Hour
	})
	speaks := r.arrive(t)
	stopped := r.stopping(t)
	_, err := io.WriteString(speaks, "GET / HTTP/1.1\r\nHost: shop.apps.test\r\n\r\n")
	must(err)
	if answer, err := io.ReadAll(speaks); err != nil || len(answer) == 0 {
		t.Errorf("the last request is answered %q, %v", answer, err)
	}
	<-stopped
	<-r.Handed()
}

// stopping begins to stop Listeners, waits until they accept nothing more, and returns what is
// closed when they have ended.
func (r *rig) stopping(t *testing.T) <-chan struct{} {
	t.Helper()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.stop()
	}()
	plain, _ := r.Addrs()
	refuses(t, plain.String())
	return stopped
}

// A client that stays silent after Run was stopped delays nothing.
func TestSilenceAtTheEnd(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 80, "http"))
	r := newRig(t, w, func(o *Options) {
		o.Drain, o.Limits.LastWords, o.Limits.FirstByte = time.Hour, time.Millisecond, time.Hour
	})
	silent := r.arrive(t)
	stopped := r.stopping(t)
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the silent connection ends with %v", err)
	}
	<-stopped
	<-r.Handed()
}

// When Await returns, an App that the edge has heard of can be connected to at once.
func TestAwait(t *testing.T) {
	w := newWorld()
	w.echo(t, 1, "")
	r := newRig(t, w, nil)
	must(r.Await(t.Context()))
	before, changed := r.Sockets()
	port := freePort(t)
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, port), service("udp", 1, port))
	must(r.o.Routes.Await(t.Context(), "shop", 1))
	route, _ := r.o.Routes.App("shop")
	for len(r.o.Balancer.Ports(route)) == 0 {
		time.Sleep(time.Millisecond)
	}
	must(r.Await(t.Context()))
	c, err := net.Dial("tcp", at(dedicated, port))
	if err != nil {
		t.Fatal(err)
	}
	must(c.Close())
	<-changed
	own := netip.MustParseAddrPort(at(dedicated, port))
	if got, _ := r.Sockets(); !slices.Contains(got, Socket{At: own}) || !slices.Contains(got, Socket{UDP: true, At: own}) || len(got) != len(before)+2 {
		t.Errorf("sockets are %v", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if r.Await(ended) == nil {
		t.Error("it does not end with its context")
	}
}

// Sockets left by a daemon with other addresses do not block a later daemon.
func TestAddressOfAnAppBecomesFree(t *testing.T) {
	w := newWorld()
	port := freePort(t)
	w.echo(t, 1, "")
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, port))
	socket := filepath.Join(t.TempDir(), "keeper", "socket")
	t.Cleanup(func() { must(keeper.Quit(context.Background(), socket)) })
	for _, address := range []string{at("", port), "127.0.0.1:0"} {
		k := keeper.New(keeper.Options{Socket: socket, Start: startKeeper, Log: slog.New(slog.DiscardHandler)})
		must(k.Open(t.Context()))
		r := newRig(t, w, func(o *Options) { o.HTTP, o.HTTPS, o.Keeper, o.Drain = address, "", k, time.Millisecond })
		must(r.Await(t.Context()))
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			err := echoed(at(dedicated, port))
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("with HTTP at %s: %v", address, err)
			}
		}
		r.stop()
		must(k.Close())
	}
}

// TestPendingDatagramsAreBounded: datagrams that wait for Machines do not fill the memory,
// whatever their source address, and those of one organization leave room for another's.
func TestPendingDatagramsAreBounded(t *testing.T) {
	const length = 1400
	l := New(Options{})
	l.sessions = connlimit.NewCount[hangar.OrgID](1<<20, 1<<20)
	d := &datagrams{l: l, sessions: map[netip.AddrPort]*session{}, clients: map[netip.Addr]int{}}
	var all []*session
	wait := func(org hangar.OrgID, sessions int) {
		for range sessions {
			s := &session{org: org}
			all = append(all, s)
			l.sessions.Take(org)
			for range maxPending {
				l.send(s, make([]byte, length))
			}
		}
	}
	wait("greedy", 10_000)
	if n := l.pending.Open(); n > maxPendingBytes/2 || n < maxPendingBytes/2-length {
		t.Errorf("%d bytes wait", n)
	}
	const sessions = 1000
	before := l.pending.Open()
	if wait("other", sessions); l.pending.Open() != before+sessions*maxPending*length {
		t.Errorf("of another organization, %d bytes wait", l.pending.Open()-before)
	}
	for _, s := range all {
		d.forget(s, netip.Addr{})
		l.send(s, make([]byte, length)) // too late
	}
	if n := l.pending.Open(); n != 0 || l.sessions.Open() != 0 {
		t.Errorf("%d bytes wait, of %d sessions", n, l.sessions.Open())
	}
}

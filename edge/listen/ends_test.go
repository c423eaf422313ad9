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
	"github.com/hangar-platform/hangar/internal/keeper"
)

// A Machine that is killed says nothing to those who are connected to it. Their connections
// end nevertheless, and outlast a suspend.
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

// Who was accepted and has not said anything when Run is told to end may say it for a moment,
// and holds nothing up after that.
func TestLastWords(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 80, "http"))
	r := newRig(t, w, func(o *Options) {
		o.ServeConn = serveOnce
	})
	plain, _ := r.Addrs()
	speaks, silent := dial(t, "tcp", plain.String()), dial(t, "tcp", plain.String())
	for accepted := 0; accepted < 2; time.Sleep(time.Millisecond) {
		r.arrivals.mu.Lock()
		accepted = len(r.arrivals.silent)
		r.arrivals.mu.Unlock()
	}
	began, stopped := time.Now(), make(chan struct{})
	go func() {
		defer close(stopped)
		r.stop()
	}()
	time.Sleep(lastWords / 4)
	_, err := io.WriteString(speaks, "GET / HTTP/1.1\r\nHost: shop.apps.test\r\n\r\n")
	must(err)
	if answer, err := io.ReadAll(speaks); err != nil || len(answer) == 0 {
		t.Errorf("the last request is answered %q, %v", answer, err)
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("who is silent gets an answer")
	}
	<-stopped
	if took := time.Since(began); took > 2*lastWords {
		t.Errorf("it took %s", took)
	}
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
	for len(r.o.Balancer.Ports(w.routes["shop"])) == 0 {
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

// What a daemon with other addresses has left is in nobody's way.
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
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
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

// Datagrams that wait for Machines do not fill the memory, whoever says that he sent them.
func TestPendingDatagramsAreBounded(t *testing.T) {
	l := &Listeners{}
	d := &datagrams{l: l, sessions: map[netip.AddrPort]*session{}, clients: map[netip.Addr]int{}}
	var all []*session
	for range 10_000 {
		s := &session{}
		all = append(all, s)
		l.sessions.Add(1)
		for range maxPending {
			l.send(s, make([]byte, 1400))
		}
	}
	if n := l.pending.Load(); n > maxPendingBytes || n < maxPendingBytes-1400 {
		t.Errorf("%d bytes wait", n)
	}
	for _, s := range all {
		d.forget(s, netip.Addr{})
		l.send(s, make([]byte, 1400)) // too late
	}
	if n := l.pending.Load(); n != 0 || l.sessions.Load() != 0 {
		t.Errorf("%d bytes wait, of %d sessions", n, l.sessions.Load())
	}
}

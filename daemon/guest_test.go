package daemon

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/control/oidc"
)

// ownNetwork moves this goroutine to a new network that has only a loopback with addresses, for as long
// as the goroutine lives. It returns a function that moves other goroutines there.
func ownNetwork(t *testing.T, addresses ...string) (enter func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a + "/128")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(lo, addr); err != nil {
			t.Fatal(err)
		}
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return func() error {
		runtime.LockOSThread()
		return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
	}
}

// TestPrivateSourcesAreBounded: a Machine takes only its share of the API's connections over all of its
// addresses, and other clients are not affected.
func TestPrivateSourcesAreBounded(t *testing.T) {
	t.Parallel()
	const one, same, other, outside = "fdaa:0:1:0:1:0:7:2", "fdaa:0:1:0:1:0:7:3", "fdaa:0:1:0:1:0:8:2", "fd00::1"
	enter := ownNetwork(t, one, same, other, outside)
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	address, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		if err := enter(); err != nil {
			ended <- err
			return
		}
		cfg := Config{
			Dir: dir, API: "[::]:0", Region: "loc", Domain: "hangar.localhost", Driver: DriverFake, Limits: limitsOff,
			Peers: wireguardOff, OIDCPeriod: oidc.DefaultPeriod,
		}
		ended <- Run(ctx, cfg, Options{Log: slog.New(slog.DiscardHandler), Ready: func(at string) error {
			address <- at
			return nil
		}})
	}()
	var port string
	select {
	case at := <-address:
		_, port, _ = net.SplitHostPort(at)
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})

	var held []net.Conn
	drop := func() {
		for _, c := range held {
			_ = c.Close()
		}
		held = nil
	}
	t.Cleanup(drop)
	// served opens a connection and reports whether it is answered.
	served := func(from string) bool {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
		c, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort(from, port))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = c.Write([]byte("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			_ = res.Body.Close()
		}
		if errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		return err == nil
	}
	for i := range maxSourceConns {
		if !served(one) {
			t.Fatalf("connection %d is refused", i)
		}
	}
	if served(one) || served(same) {
		t.Error("a source has more connections than it may have")
	}
	if !served(other) {
		t.Error("another source is refused")
	}
	for range maxSourceConns + 1 {
		if !served(outside) {
			t.Fatal("a source that is in no private network is bounded")
		}
	}
	drop()
	for deadline := time.Now().Add(time.Minute); !served(same); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("connections that are closed still count")
		}
	}
}

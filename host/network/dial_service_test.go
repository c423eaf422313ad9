package network

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/ownhost"
)

// TestDialService reaches services at either address, and remembers which address works.
func TestDialService(t *testing.T) {
	n := open(t, "dialsvc")
	e := endpointOf(5, 1)
	one := attach(t, n, e)
	listenKernel(t, one)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, on := range map[string]string{
		"every address": "[::]:0", "IPv4": "0.0.0.0:0", "the private address": netip.AddrPortFrom(one.IPv6, 0).String(),
	} {
		var l net.Listener
		within(t, one, func() (err error) {
			l, err = net.Listen("tcp", on)
			return err
		})
		ownhost.Serve(t, l)
		port := l.Addr().(*net.TCPAddr).Port
		for range 2 {
			c, err := n.DialService(ctx, e.ID, port)
			if err != nil {
				t.Fatalf("a port on %s: %v", name, err)
			}
			if b, err := io.ReadAll(c); err != nil || len(b) == 0 {
				t.Errorf("a port on %s says %q, %v", name, b, err)
			}
			if _, ok := c.(*net.TCPConn); !ok {
				t.Errorf("the connection is a %T", c)
			}
			_ = c.Close()
			if _, six, err := n.service(e.ID, port); err != nil || six != (name == "the private address") {
				t.Errorf("a port on %s: IPv6 is remembered: %t, %v", name, six, err)
			}
		}
	}
	if _, err := n.DialService(ctx, endpointOf(5, 2).ID, 80); err == nil {
		t.Error("a machine that is not there was reached")
	}
	c, err := n.DialDatagrams(ctx, e.ID, 53)
	if err != nil {
		t.Fatal(err)
	}
	if to := c.RemoteAddr().(*net.UDPAddr).AddrPort().Addr(); to != one.IPv4 {
		t.Errorf("datagrams go to %s", to)
	}
	_ = c.Close()
}

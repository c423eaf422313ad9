package network

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/ownhost"
)

// TestDial reaches programs that listen on one of a Machine's addresses or on both.
func TestDial(t *testing.T) {
	n := open(t, "dial")
	e := endpointOf(5, 1)
	one := attach(t, n, e)
	listenKernel(t, one) // what the kernel answers for; see there
	for name, on := range map[string]string{
		"every address": "[::]:0", "IPv4": "0.0.0.0:0", "the private address": netip.AddrPortFrom(one.IPv6, 0).String(),
	} {
		var l net.Listener
		within(t, one, func() (err error) {
			l, err = net.Listen("tcp", on)
			return err
		})
		ownhost.Serve(t, l)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c, err := n.Dial(ctx, e.ID, l.Addr().(*net.TCPAddr).Port)
		if err != nil {
			t.Errorf("a port on %s: %v", name, err)
		} else {
			if b, err := io.ReadAll(c); err != nil || len(b) == 0 {
				t.Errorf("a port on %s says %q, %v", name, b, err)
			}
			_ = c.Close()
		}
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.Dial(ctx, e.ID, 1); err == nil || !strings.HasSuffix(err.Error(), "connect: connection refused") {
		t.Errorf("a port on which nothing listens: %v", err)
	}
	if _, err := n.Dial(ctx, endpointOf(5, 2).ID, 80); err == nil {
		t.Error("a machine that is not there was reached")
	}
}

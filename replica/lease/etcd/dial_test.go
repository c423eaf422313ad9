package etcd

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLostConnectionsAreNoticed: the kernel probes a silent connection, and gives it up soon.
func TestLostConnectionsAreNoticed(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := dialer().DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	option := func(level, name int) (value int) {
		t.Helper()
		var failed error
		if err := raw.Control(func(fd uintptr) { value, failed = unix.GetsockoptInt(int(fd), level, name) }); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		return value
	}
	if option(unix.SOL_SOCKET, unix.SO_KEEPALIVE) == 0 {
		t.Fatal("it is not probed")
	}
	idle, interval, count := option(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE), option(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL), option(unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
	if lost := time.Duration(idle+count*interval) * time.Second; lost > lostAfter {
		t.Errorf("it is given up after %s", lost)
	}
}

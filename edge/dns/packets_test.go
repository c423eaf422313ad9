package dns

import (
	"net"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDuplicateDoesNotBlock: a socket stays non-blocking while its descriptor is duplicated. A
// reader that started at such a moment did not notice the end of the server.
func TestDuplicateDoesNotBlock(t *testing.T) {
	t.Parallel()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var made, blocking atomic.Bool
	ended := make(chan error, 1)
	go func() {
		ended <- raw.Control(func(fd uintptr) {
			for !made.Load() && !blocking.Load() {
				flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
				blocking.Store(err != nil || flags&unix.O_NONBLOCK == 0)
			}
		})
	}()
	for range 2000 {
		again, err := duplicate(conn)
		if err != nil {
			t.Fatal(err)
		}
		_ = again.Close()
	}
	made.Store(true)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if blocking.Load() {
		t.Error("the socket blocks")
	}
}

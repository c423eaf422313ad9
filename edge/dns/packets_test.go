package dns

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
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

// TestReadersEndTogether: if a socket cannot get all its readers, those that it has end first.
func TestReadersEndTogether(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))))
	reading, failed, ended := make(chan struct{}), make(chan struct{}), atomic.Bool{}
	s := serverOf(t, nil)
	s.config.Owner = func(netip.Addr) (hangar.MachineID, hangar.NetworkID, bool) {
		close(reading)
		<-failed
		for range 1000 {
			runtime.Gosched() // a reader that is not awaited loses the race
		}
		ended.Store(true)
		return "", 0, false
	}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.WriteTo([]byte("question"), conn.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("no descriptor is left")
	err = s.servePackets(t.Context(), conn, func(*net.UDPConn) (*net.UDPConn, error) {
		<-reading
		close(failed)
		return nil, broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("ended with %v", err)
	}
	if !ended.Load() {
		t.Error("a reader is left")
	}
}

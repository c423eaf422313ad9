package splice_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar/internal/splice"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both ends of a TCP connection, closed with the test.
func pair(tb testing.TB) (one, other *net.TCPConn) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// joined has the outer ends of two connections that a Join connects, and the result of Join.
func joined(ctx context.Context, t *testing.T) (left, right *net.TCPConn, ended <-chan error) {
	t.Helper()
	left, a := pair(t)
	right, b := pair(t)
	err := make(chan error, 1)
	go func() {
		err <- splice.Join(ctx, a, b)
		_, _ = a.Close(), b.Close()
	}()
	return left, right, err
}

func TestHalfCloses(t *testing.T) {
	left, right, ended := joined(t.Context(), t)
	for _, way := range [][2]*net.TCPConn{{left, right}, {right, left}} {
		if _, err := io.WriteString(way[0], "words"); err != nil {
			t.Fatal(err)
		}
		if err := way[0].CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(way[1]); err != nil || string(got) != "words" {
			t.Errorf("read %q, %v", got, err)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestResets(t *testing.T) {
	for _, both := range []bool{false, true} {
		left, right, ended := joined(t.Context(), t)
		if both { // the other direction has ended
			if err := right.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if _, err := left.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		_ = left.SetLinger(0)
		_ = left.Close()
		_, err := right.Read(make([]byte, 1))
		if !both && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the other end reads %v", err)
		}
		if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the join ends with %v", err)
		}
	}
}

func TestContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	left, right, ended := joined(ctx, t)
	enough := errors.New("enough")
	cancel(enough)
	if err := <-ended; !errors.Is(err, enough) {
		t.Errorf("the join ends with %v", err)
	}
	for _, c := range []net.Conn{left, right} {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("an end reads %v", err)
		}
	}
}

// TestNobodyReads: a blocked direction does not block the other.
func TestNobodyReads(t *testing.T) {
	left, right, ended := joined(t.Context(), t)
	full := make(chan error, 1)
	go func() {
		_, err := io.Copy(left, strings.NewReader(strings.Repeat("x", 64<<20)))
		full <- errors.Join(err, left.CloseWrite())
	}()
	for range 100 {
		if _, err := right.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(left, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-full:
		t.Fatalf("64 MiB were taken without a reader, %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if n, err := io.Copy(io.Discard, right); n != 64<<20 || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if err := errors.Join(<-full, right.CloseWrite(), <-ended); err != nil {
		t.Error(err)
	}
}

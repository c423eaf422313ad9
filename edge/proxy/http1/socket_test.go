package http1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// tcpPair returns both ends of a connection.
func tcpPair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); d.Close() })
	return c.(*net.TCPConn), d.(*net.TCPConn)
}

// TestTransferLikeConn does the same through a transfer and through the connection.
func TestTransferLikeConn(t *testing.T) {
	p := make([]byte, 16)
	tests := map[string]struct {
		prepare func(a, b *net.TCPConn)
		op      string
		want    error
	}{
		"end":            {func(_, b *net.TCPConn) { b.CloseWrite() }, "read", io.EOF},
		"read deadline":  {func(a, _ *net.TCPConn) { a.SetReadDeadline(longAgo) }, "read", os.ErrDeadlineExceeded},
		"soon":           {func(a, _ *net.TCPConn) { a.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) }, "read", os.ErrDeadlineExceeded},
		"write deadline": {func(a, _ *net.TCPConn) { a.SetWriteDeadline(longAgo) }, "write", os.ErrDeadlineExceeded},
		"read closed":    {func(a, _ *net.TCPConn) { a.Close() }, "read", net.ErrClosed},
		"write closed":   {func(a, _ *net.TCPConn) { a.Close() }, "write", net.ErrClosed},
		"shut":           {func(a, _ *net.TCPConn) { a.CloseWrite() }, "write", syscall.EPIPE},
		"reset": {func(a, b *net.TCPConn) {
			b.SetLinger(0)
			b.Close()
			time.Sleep(10 * time.Millisecond)
		}, "read", syscall.ECONNRESET},
		"data": {func(_, b *net.TCPConn) { io.WriteString(b, "hello") }, "read", nil},
		"sent": {func(*net.TCPConn, *net.TCPConn) {}, "write", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got [2]string
			for i := range got {
				a, b := tcpPair(t)
				var rx, tx *transfer
				if i == 1 {
					rx, tx = receiver(a), sender(a)
				}
				tt.prepare(a, b)
				n, err := 0, error(nil)
				if tt.op == "read" {
					n, err = readFrom(a, rx, p)
				} else {
					n, err = writeTo(a, tx, p)
				}
				if !errors.Is(err, tt.want) {
					t.Errorf("%d: %v, want %v", i, err, tt.want)
				}
				text := fmt.Sprint(err)
				if op, ok := errors.AsType[*net.OpError](err); ok {
					text = fmt.Sprintf("%s %s %t %t %T %v", op.Op, op.Net, op.Source.String() == a.LocalAddr().String(), op.Addr.String() == a.RemoteAddr().String(), op.Err, op.Err)
				}
				got[i] = fmt.Sprintf("%d %s", n, text)
			}
			if got[0] != got[1] {
				t.Errorf("the connection says %q, the transfer %q", got[0], got[1])
			}
		})
	}
}

// TestTransferWaits sends more than the kernel buffers to a peer that reads late.
func TestTransferWaits(t *testing.T) {
	a, b := tcpPair(t)
	sent := make([]byte, 0, 16<<20)
	got := make(chan []byte)
	go func() {
		time.Sleep(20 * time.Millisecond)
		var all []byte
		rx, p := receiver(b), make([]byte, 7000)
		for {
			n, err := readFrom(b, rx, p)
			all = append(all, p[:n]...)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Error(err)
				}
				got <- all
				return
			}
		}
	}()
	tx := sender(a)
	for i := 0; len(sent) < cap(sent); i++ {
		part := bytes.Repeat([]byte{byte(i)}, min(maxTransfer-i%3, cap(sent)-len(sent)))
		n, err := writeTo(a, tx, part)
		if err != nil || n != len(part) {
			t.Fatal(n, err)
		}
		sent = append(sent, part...)
	}
	a.CloseWrite()
	if !bytes.Equal(<-got, sent) {
		t.Error("what has come is not what was sent")
	}
}

// TestTransferCut: the deadline passes during a partial write.
func TestTransferCut(t *testing.T) {
	a, _ := tcpPair(t)
	a.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	tx := sender(a)
	for {
		n, err := writeTo(a, tx, make([]byte, maxTransfer))
		if err == nil {
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || n < 0 || n >= maxTransfer {
			t.Errorf("%d, %v", n, err)
		}
		return
	}
}

package remote_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// tcpPair is a connection of a Machine: the end of the host, and that of the program in it.
func tcpPair(tb testing.TB) (host, program *net.TCPConn) {
	tb.Helper()
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	dialled, err := (&net.Dialer{}).DialContext(tb.Context(), "tcp", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = accepted.Close() })
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

// dialled is a connection from another host, and the program's end of it.
func dialled(tb testing.TB) (w *world, caller net.Conn, program *net.TCPConn) {
	tb.Helper()
	hostEnd, program := tcpPair(tb)
	s := &stub{id: other, dial: func(_ context.Context, port int) (net.Conn, error) {
		if port != 80 {
			return nil, hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonConnectionRefused, "refused")
		}
		return hostEnd, nil
	}}
	w = newWorld(tb, s, s)
	ctx, cancel := context.WithCancel(tb.Context())
	caller, err := w.agent().DialMachine(ctx, hangar.MachineRef{ID: "1"}, 80)
	cancel() // of the dialing alone
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = caller.Close() })
	return w, caller, program
}

func TestDialRefused(t *testing.T) {
	w, _, _ := dialled(t)
	if _, err := w.agent().DialMachine(t.Context(), hangar.MachineRef{}, 81); hangar.ReasonOf(err) != hangar.ReasonConnectionRefused {
		t.Errorf("got %v", err)
	}
}

func TestConnectionCarriesBothWays(t *testing.T) {
	_, caller, program := dialled(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	go func() {
		_, _ = io.Copy(program, program)
		_ = program.CloseWrite()
	}()
	go func() {
		_, _ = caller.Write(data)
		_ = caller.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(caller)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("got %d bytes of %d, %v", len(got), len(data), err)
	}
}

// TestCloseDelivers: bytes written before a close arrive.
func TestCloseDelivers(t *testing.T) {
	_, caller, program := dialled(t)
	data := bytes.Repeat([]byte("x"), 300_000)
	go func() {
		_, _ = caller.Write(data)
		_ = caller.Close()
	}()
	got, err := io.ReadAll(program)
	if err != nil || len(got) != len(data) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if _, err := caller.Write(data); err == nil {
		t.Error("a closed connection takes more")
	}
	if _, err := caller.Read(data); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestProgramCloses(t *testing.T) {
	_, caller, program := dialled(t)
	_, _ = program.Write([]byte("bye"))
	_ = program.Close()
	got, err := io.ReadAll(caller)
	if err != nil || string(got) != "bye" {
		t.Errorf("got %q %v", got, err)
	}
}

// TestResetTravels in both directions.
func TestResetTravels(t *testing.T) {
	_, caller, program := dialled(t)
	_ = program.SetLinger(0)
	_ = program.Close()
	if _, err := io.ReadAll(caller); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the caller sees %v", err)
	}
	_, caller, program = dialled(t)
	caller.(interface{ Abort(error) }).Abort(syscall.ECONNRESET)
	if _, err := io.ReadAll(program); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the program sees %v", err)
	}
}

// TestCauseTravels: why the platform ends a connection.
func TestCauseTravels(t *testing.T) {
	near, far := net.Pipe()
	t.Cleanup(func() { _ = far.Close() })
	s := &stub{id: other, dial: func(context.Context, int) (net.Conn, error) { return &ending{near}, nil }}
	w := newWorld(t, s, s)
	caller, err := w.agent().DialMachine(t.Context(), hangar.MachineRef{}, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	if _, err := io.ReadAll(caller); hangar.ReasonOf(err) != hangar.ReasonWrongState {
		t.Errorf("got %v", err)
	}
}

// ending is a connection that the platform has ended.
type ending struct{ net.Conn }

func (ending) Read([]byte) (int, error) {
	return 0, hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonWrongState, "the machine is stopped")
}
func (ending) CloseWrite() error { return nil }

// TestReadDeadline does not harm the connection.
func TestReadDeadline(t *testing.T) {
	_, caller, program := dialled(t)
	b := make([]byte, 8)
	for range 2 {
		if err := caller.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := caller.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	}
	reading := make(chan error, 1)
	if err := caller.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := caller.Read(make([]byte, 8))
		reading <- err
	}()
	if err := caller.SetReadDeadline(time.Unix(1, 0)); err != nil { // of a Read that is under way, or about to be
		t.Fatal(err)
	}
	if err := <-reading; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := caller.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	_, _ = program.Write([]byte("later"))
	if n, err := caller.Read(b); err != nil || string(b[:n]) != "later" {
		t.Errorf("got %q %v", b[:n], err)
	}
}

func TestWriteDeadline(t *testing.T) {
	_, caller, _ := dialled(t)
	if err := caller.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var err error
	for err == nil { // no one reads
		_, err = caller.Write(make([]byte, 1<<20))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// TestSlowReadersHoldUpNoOthers: programs that do not read leave calls over the same connection alone.
func TestSlowReadersHoldUpNoOthers(t *testing.T) {
	hostEnds := make(chan net.Conn, 1)
	s := &stub{
		id: other, dial: func(context.Context, int) (net.Conn, error) { return <-hostEnds, nil },
		room: func() (hangar.HostRoom, error) { return hangar.HostRoom{}, nil },
	}
	w := newWorld(t, s, s)
	const callers, window = 10, 160 << 10 // together more than the window that a connection has by default
	var sent [callers]atomic.Int64
	for i := range callers {
		hostEnd, program := tcpPair(t)
		if err := errors.Join(hostEnd.SetWriteBuffer(4096), program.SetReadBuffer(4096)); err != nil {
			t.Fatal(err)
		}
		hostEnds <- hostEnd
		caller, err := w.agent().DialMachine(t.Context(), hangar.MachineRef{ID: "1"}, 80)
		if err != nil {
			t.Fatal(err)
		}
		var writing sync.WaitGroup
		writing.Go(func() {
			for piece := make([]byte, 16<<10); ; {
				n, err := caller.Write(piece)
				if sent[i].Add(int64(n)); err != nil {
					return
				}
			}
		})
		t.Cleanup(func() {
			_ = program.Close()
			_ = caller.Close()
			writing.Wait()
		})
	}
	for i := range sent {
		await(t, func() bool { return sent[i].Load() > window })
	}
	for range 20 {
		if _, err := w.agent().Room(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConnectionIsLost(t *testing.T) {
	w, caller, program := dialled(t)
	w.line.cut()
	if _, err := io.ReadAll(caller); err == nil {
		t.Error("a lost connection looks like one that has ended")
	}
	if _, err := io.ReadAll(program); err == nil {
		t.Error("the program takes a lost connection for one that has ended")
	}
}

func TestConnectionIsLostDuringDial(t *testing.T) {
	hostEnd, program := tcpPair(t)
	s := &stub{id: other}
	w := newWorld(t, s, s)
	s.dial = func(ctx context.Context, _ int) (net.Conn, error) {
		w.line.cut()
		<-ctx.Done()
		return hostEnd, nil
	}
	if _, err := w.agent().DialMachine(t.Context(), hangar.MachineRef{ID: "1"}, 80); err == nil {
		t.Error("a call whose connection was lost succeeds")
	}
	if _, err := io.ReadAll(program); err == nil {
		t.Error("the program takes a lost connection for one that has ended")
	}
}

func TestDatagrams(t *testing.T) {
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	s := &stub{id: other, dial: func(context.Context, int) (net.Conn, error) {
		return net.DialUDP("udp", nil, server.LocalAddr().(*net.UDPAddr))
	}}
	w := newWorld(t, s, s)
	caller, err := w.gate().DialDatagrams(t.Context(), hangar.MachineRef{}, 53)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<16)
	for _, size := range []int{1, 512, 9000} {
		if _, err := caller.Write(bytes.Repeat([]byte("q"), size)); err != nil {
			t.Fatal(err)
		}
		n, from, err := server.ReadFromUDPAddrPort(b)
		if err != nil || n != size {
			t.Fatalf("got %d bytes, %v", n, err)
		}
		if _, err := server.WriteToUDPAddrPort(b[:n], from); err != nil {
			t.Fatal(err)
		}
		if n, err = caller.Read(b); err != nil || n != size {
			t.Errorf("got %d bytes back, %v", n, err)
		}
	}
	if err := caller.Close(); err != nil {
		t.Error(err)
	}
}

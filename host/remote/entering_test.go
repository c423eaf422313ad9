package remote_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/hangar-platform/hangar"
)

// entering is a connection from another host, over which requests enter, and the program's end of it.
func entering(
	tb testing.TB, d *door, newWorld func(testing.TB, hangar.Agent, hangar.MachineGate) *world,
) (w *world, caller hangar.EnteringConn, program *net.TCPConn) {
	tb.Helper()
	hostEnd, program := tcpPair(tb)
	s := &stub{id: other, enter: d.enter, dial: func(context.Context, int) (net.Conn, error) { return &noted{TCPConn: hostEnd, closed: &d.closed}, nil }}
	w = newWorld(tb, s, s)
	conn, err := w.gate().DialService(tb.Context(), hangar.MachineRef{ID: "1"}, 80)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return w, conn.(hangar.EnteringConn), program
}

// noted is a connection to a Machine that notes its end.
type noted struct {
	*net.TCPConn
	closed *atomic.Bool
}

func (c *noted) Close() error {
	c.closed.Store(true)
	return c.TCPConn.Close()
}

func enter(tb testing.TB, c hangar.EnteringConn) (leave func()) {
	tb.Helper()
	leave, err := c.EnterMachine()
	if err != nil {
		tb.Fatal(err)
	}
	return leave
}

// says writes to one end and reads at the other.
func says(tb testing.TB, from, to net.Conn, text string) {
	tb.Helper()
	if _, err := io.WriteString(from, text); err != nil {
		tb.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != text {
		tb.Fatalf("got %q, %v, want %q", got, err, text)
	}
}

func TestEnterOverConnection(t *testing.T) {
	d := &door{}
	w, caller, program := entering(t, d, newWorld)
	for range 5 {
		leave := enter(t, caller)
		says(t, caller, program, "request")
		if d.inside() != 1 {
			t.Fatalf("%d are in", d.inside())
		}
		says(t, program, caller, "answer")
		leave()
		leave()
		w.await(func() bool { return d.inside() == 0 })
	}
	left := enter(t, caller)
	says(t, caller, program, "request")
	enter(t, caller) // before the one before has left
	left()
	says(t, caller, program, "next")
	if d.inside() != 1 || d.most != 1 {
		t.Errorf("%d are in, %d were at once", d.inside(), d.most)
	}
	_ = caller.Close() // it leaves when its client has gone, whatever the Machine still does
	w.await(func() bool { return d.inside() == 0 })
	if d.closed.Load() {
		t.Error("it left as late as the Machine")
	}
}

func TestRefusedOverConnection(t *testing.T) {
	d := &door{limit: 1}
	w, caller, program := entering(t, d, newWorld)
	leave, err := w.gate().EnterMachine(hangar.MachineRef{ID: "1"}, 80)
	if err != nil {
		t.Fatal(err)
	}
	enter(t, caller)
	for range 2 {
		_, _ = io.WriteString(caller, "request")
	}
	_, err = caller.Read(make([]byte, 1))
	if refused, ok := errors.AsType[*hangar.RefusedError](err); !ok || hangar.ReasonOf(refused.Err) != hangar.ReasonAtLimit {
		t.Errorf("got %v", err)
	}
	_ = caller.Close()
	if got, err := io.ReadAll(program); len(got) > 0 || err != nil {
		t.Errorf("the Machine got %q, %v", got, err)
	}
	leave()
	w.await(func() bool { return d.inside() == 0 })
	if d.most != 1 {
		t.Errorf("%d were in at once", d.most)
	}
}

// TestSilentOverConnection: a host that does not answer ends the connection, with an error that leaves open whether
// the Machine has got anything. Others are not sent to it.
func TestSilentOverConnection(t *testing.T) {
	d := &door{}
	w, caller, _ := entering(t, d, newWorldOfVisits)
	stuck := make(chan struct{})
	d.setStuck(stuck)
	enter(t, caller)
	_, _ = io.WriteString(caller, "request")
	_, err := caller.Read(make([]byte, 1))
	if _, refused := errors.AsType[*hangar.RefusedError](err); refused || hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	if _, err := w.gate().EnterMachine(hangar.MachineRef{ID: "1"}, 80); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	d.setStuck(nil)
	close(stuck)
	w.await(func() bool { return d.inside() == 0 })
}

// TestHostLostOverConnection: the end of all connections is the end of all visits.
func TestHostLostOverConnection(t *testing.T) {
	d := &door{}
	w, caller, program := entering(t, d, newWorld)
	leave := enter(t, caller)
	says(t, caller, program, "request")
	w.line.cut()
	w.await(func() bool { return d.inside() == 0 })
	if _, err := caller.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	leave()
	if _, err := caller.EnterMachine(); err == nil {
		if _, err := io.WriteString(caller, "request"); err == nil {
			t.Error("written to a lost connection")
		}
	}
}

package contract

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// echoing makes a Machine that sends back what arrives at EchoPort.
func (h Harness) echoing(t *testing.T) *hangar.Machine {
	t.Helper()
	if h.EchoPort == 0 {
		t.Skip("Machines have no network")
	}
	config := h.config()
	config.Init.Exec = h.Echo
	m := h.create(t, h.newApp(t), hangar.MachineCreate{Config: config})
	h.wait(t, m.Ref(), hangar.MachineStarted)
	return m
}

// dial connects to the echo of a Machine, which may be about to listen. The connection
// is closed at the end of the test.
func (h Harness) dial(t *testing.T, ref hangar.MachineRef) halfCloser {
	t.Helper()
	ctx, cancel := context.WithTimeout(h.Context(t), patience)
	defer cancel()
	for {
		conn, err := h.Machines.DialMachine(ctx, ref, h.EchoPort)
		if hangar.ReasonOf(err) == hangar.ReasonConnectionRefused && ctx.Err() == nil {
			continue
		}
		must(t, "dial", err)
		t.Cleanup(func() { _ = conn.Close() })
		c, ok := conn.(halfCloser)
		if !ok {
			t.Fatalf("a %T cannot be closed in one direction", conn)
		}
		return c
	}
}

// halfCloser is what DialMachine returns.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// echo sends a text and expects it back.
func echo(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	must(t, "write", err)
	got := make([]byte, len(text))
	_, err = io.ReadFull(c, got)
	must(t, "read", err)
	if string(got) != text {
		t.Errorf("%q came back as %q", text, got)
	}
}

func machineDial(t *testing.T, h Harness) {
	m := h.echoing(t)
	// Several at once, by a context that ends with the dialing.
	var conns []halfCloser
	for range 4 {
		conns = append(conns, h.dial(t, m.Ref()))
	}
	for i, c := range conns {
		echo(t, c, string(rune('a'+i)))
	}
	for _, c := range conns {
		must(t, "close", c.Close())
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a closed connection can be read from")
		}
		if _, err := c.Write([]byte("x")); err == nil {
			t.Error("a closed connection can be written to")
		}
	}
}

func machineDialHalf(t *testing.T, h Harness) {
	m := h.echoing(t)
	c := h.dial(t, m.Ref())
	_, err := io.WriteString(c, "the last words")
	must(t, "write", err)
	must(t, "close for writing", c.CloseWrite())
	got, err := io.ReadAll(c)
	must(t, "read", err)
	if string(got) != "the last words" {
		t.Errorf("read %q", got)
	}
	if _, err := c.Write([]byte("more")); err == nil {
		t.Error("wrote after the end")
	}
	must(t, "close", c.Close())
}

// machineDialMuch sends more than all buffers on the way hold before it reads.
func machineDialMuch(t *testing.T, h Harness) {
	m := h.echoing(t)
	c := h.dial(t, m.Ref())
	sent := make([]byte, 16<<20)
	_, _ = rand.Read(sent)
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		if err == nil {
			err = c.CloseWrite()
		}
		written <- err
	}()
	got, err := io.ReadAll(c)
	must(t, "read", err)
	must(t, "write", <-written)
	if !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back as %d others", len(sent), len(got))
	}
}

func machineDialRefused(t *testing.T, h Harness) {
	m := h.echoing(t)
	h.dial(t, m.Ref())
	for _, port := range []int{-1, 0, hangar.MaxPort + 1} {
		_, err := h.Machines.DialMachine(h.Context(t), m.Ref(), port)
		wantError(t, "dial a port that is none", err, hangar.CodeInvalid, "")
	}
	_, err := h.Machines.DialMachine(h.Context(t), m.Ref(), 1)
	wantError(t, "dial a port on which nothing listens", err, hangar.CodeUnavailable, hangar.ReasonConnectionRefused)
	_, err = h.Machines.DialMachine(h.Context(t), hangar.MachineRef{App: m.App, ID: "ffffffffffffff"}, h.EchoPort)
	wantError(t, "dial a missing machine", err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	stopped := h.stopped(t, m.App)
	_, err = h.Machines.DialMachine(h.Context(t), stopped.Ref(), h.EchoPort)
	wantError(t, "dial a stopped machine", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
}

// machineDialEnds: a connection to a Machine that stops does not hang.
func machineDialEnds(t *testing.T, h Harness) {
	m := h.echoing(t)
	c := h.dial(t, m.Ref())
	echo(t, c, "ping")
	must(t, "stop", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{Timeout: time.Millisecond}))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes from a machine that is stopped", n)
	}
}

func machineDialSuspended(t *testing.T, h Harness) {
	if !h.Suspend {
		t.Skip("Machines cannot be suspended")
	}
	m := h.echoing(t)
	c := h.dial(t, m.Ref())
	echo(t, c, "before")
	must(t, "suspend", h.Machines.SuspendMachine(h.Context(t), m.Ref()))
	h.wait(t, m.Ref(), hangar.MachineSuspended)
	_, err := h.Machines.DialMachine(h.Context(t), m.Ref(), h.EchoPort)
	wantError(t, "dial a suspended machine", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	_, err = h.Machines.StartMachine(h.Context(t), m.Ref())
	must(t, "resume", err)
	h.wait(t, m.Ref(), hangar.MachineStarted)
	echo(t, c, "after")
}

// machineDialNotAllowed: a token that only reads, or may only execute one command, does not reach
// the programs of a Machine.
func machineDialNotAllowed(t *testing.T, h Harness) {
	m := h.echoing(t)
	h.dial(t, m.Ref())
	apps := []hangar.AppName{m.App}
	for _, in := range []hangar.TokenCreate{
		{Kind: hangar.TokenReadOnly, Org: hangar.OrgPersonal},
		{Kind: hangar.TokenMachineExec, Apps: apps, Commands: []hangar.CommandRule{{Args: []string{"cat"}}}},
	} {
		holder := h.with(t, in)
		_, err := holder.Machines.DialMachine(holder.Context(t), m.Ref(), h.EchoPort)
		wantError(t, "dial with a token of kind "+string(in.Kind), err, hangar.CodeForbidden, "")
	}
	holder := h.with(t, hangar.TokenCreate{Kind: hangar.TokenCustom, Apps: apps, Actions: hangar.ActionControl})
	echo(t, holder.dial(t, m.Ref()), "allowed")
}

package machines_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/machines"
)

// loopback is a network in which every Machine is this computer.
type loopback struct{ machines.NoNetwork }

func (loopback) Dial(ctx context.Context, _ hangar.MachineID, port int) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String())
}

// silent is a program that accepts connections and sends nothing.
func silent(t *testing.T) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var taken []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			taken = append(taken, c)
		}
		for _, c := range taken {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).Port
}

// TestLosses: the row of a Machine shows that its connections are lost, even if a state between two
// processes is never published, and that a suspend keeps them.
func TestLosses(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	published := func() uint64 {
		t.Helper()
		r.until(func() bool {
			m, err := r.Machine(t.Context(), ref)
			r.must(err)
			return r.rows.row(ref.ID).Machine.UpdatedAt.Equal(m.UpdatedAt) && r.rows.state(ref.ID) == m.State
		})
		return r.rows.row(ref.ID).Losses
	}
	r.wait(ref, hangar.MachineStarted)
	before := published()
	r.suspend(ref)
	r.start(ref)
	if now := published(); now != before {
		t.Errorf("%d losses after a suspend, want %d", now, before)
	}
	r.rows.setAway(true)
	r.must(r.RestartMachine(t.Context(), ref, hangar.MachineRestart{}))
	r.wait(ref, hangar.MachineStarted)
	r.rows.setAway(false)
	r.until(func() bool { return r.rows.row(ref.ID).Losses == before+1 })
	r.crash()
	r.open()
	r.wait(ref, hangar.MachineStarted)
	if now := published(); now != before+1 {
		t.Errorf("%d losses after the daemon was killed, want %d", now, before+1)
	}
}

// TestCrashes: the row of a Machine counts how often its program has ended by itself.
func TestCrashes(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "3@1s"}, func(s *hangar.MachineSpec) {
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo}
	})
	r.wait(ref, hangar.MachineStarted, hangar.MachineStopped)
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	r.start(ref)
	r.wait(ref, hangar.MachineStopped)
	events, err := r.MachineEvents(t.Context(), ref, 50)
	r.must(err)
	var want uint64 // 1, or 2 if it has ended before it was stopped
	for _, e := range events {
		if e.Type == hangar.EventExit && !e.Request.ExitEvent.RequestedStop {
			want++
		}
	}
	r.published(ref, hangar.MachineStopped)
	r.until(func() bool { return r.rows.row(ref.ID).Crashes >= want })
	if got := r.rows.row(ref.ID).Crashes; got != want || want == 0 {
		t.Errorf("%d crashes, want %d", got, want)
	}
}

// TestConnectionsEnd: a connection to a silent program ends with the Machine's sandbox or the
// agent, and not with a suspend unless its memory is lost. The error has the reason.
func TestConnectionsEnd(t *testing.T) {
	r := newRig(t)
	r.close()
	r.net = loopback{}
	r.open()
	port := silent(t)
	ctx := t.Context()
	dial := func(ref hangar.MachineRef) net.Conn {
		t.Helper()
		c, err := r.DialMachine(ctx, ref, port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ends := func(c net.Conn, code hangar.Code, messages ...string) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(patience)) // fails if it is closed already
		_, err := c.Read(make([]byte, 1))
		if hangar.CodeOf(err) != code || !slices.Contains(messages, err.Error()) {
			t.Errorf("the connection ends with %v, want %q", err, messages)
		}
		if _, err := c.Write([]byte("x")); hangar.CodeOf(err) != code {
			t.Errorf("a write after the end: %v", err)
		}
	}

	m := r.create(nil)
	r.wait(m, hangar.MachineStarted)
	stopped := dial(m)
	if err := r.StopMachine(ctx, m, hangar.MachineStop{}); err != nil {
		t.Fatal(err)
	}
	ends(stopped, hangar.CodeUnavailable, "the machine is stopped")
	_, err := r.DialMachine(ctx, m, port)
	if hangar.ReasonOf(err) != hangar.ReasonWrongState {
		t.Errorf("dialled a stopped machine: %v", err)
	}

	r.start(m)
	kept := dial(m)
	r.suspend(m)
	r.start(m)
	if _, err := kept.Write([]byte("still there")); err != nil {
		t.Errorf("the connection did not outlive a suspend: %v", err)
	}
	if _, err := r.DialMachine(ctx, m, 0); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("dialled port 0: %v", err)
	}
	closed := dial(m)
	if err := errors.Join(closed.Close(), closed.Close()); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := closed.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a read after the close: %v", err)
	}

	// The memory cannot be resumed, and its connections are lost.
	r.suspend(m)
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op == fake.OpResume {
			return 0, driver.ErrSnapshotUnusable
		}
		return 0, nil
	})
	r.start(m)
	r.inject(nil)
	ends(kept, hangar.CodeUnavailable, "the machine has started afresh", "the machine is starting")

	last := dial(m)
	r.close()
	ends(last, hangar.CodeUnavailable, "the server is shutting down")
}

package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
)

// unanswering is a connection to a Machine of a host that answers nothing.
func unanswering(t *testing.T) (c *serviceConn, hostEnd *io.PipeWriter) {
	t.Helper()
	p := newPeer(t.Context(), hangar.Host{ID: "0000bbbb"}, nil)
	t.Cleanup(p.close)
	in, hostEnd := io.Pipe()
	c = &serviceConn{gate: newGate(p, DefaultEnterTimeout)}
	c.conn = newConn(in, &frameWriter{w: io.Discard}, "", false, p.work.Context.Done(), func() {}, func() { _ = in.Close() })
	c.entries = c.handle
	p.work.Go(c.pump)
	return c, hostEnd
}

// TestClosedBeforeTheAnswer: a client that gives up at once says nothing about the host, to which the
// requests of all others go.
func TestClosedBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, hostEnd := unanswering(t)
		defer hostEnd.Close()
		if _, err := c.EnterMachine(); err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("request"))
		_ = c.Close()
		time.Sleep(DefaultEnterTimeout + minCircuitPause/2)
		if c.gate.silent.open() {
			t.Error("the host counts as silent")
		}
	})
}

// stuck is a writer that takes nothing before it is free.
type stuck struct {
	begin func()
	free  chan struct{}
}

func (s stuck) Write(p []byte) (int, error) {
	s.begin()
	<-s.free
	return len(p), nil
}

// TestLeavesDuringTheNextRequest: a request that has ended does not wait for the next one over its connection, which
// the Machine may not read.
func TestLeavesDuringTheNextRequest(t *testing.T) {
	c, hostEnd := unanswering(t)
	defer hostEnd.Close()
	leave, err := c.EnterMachine()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("request")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnterMachine(); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	w := stuck{sync.OnceFunc(func() { close(begun) }), make(chan struct{})}
	c.out.w = w
	written := make(chan error, 1)
	go func() { _, err := c.Write([]byte("next")); written <- err }()
	<-begun
	left := make(chan struct{})
	go func() { leave(); close(left) }()
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("it waits")
	}
	close(w.free)
	<-left
	if err := <-written; err != nil {
		t.Error(err)
	}
	_ = c.Close()
}

// TestEntersOverAnEndedConnection: a kept connection that has ended says nothing about the host either.
func TestEntersOverAnEndedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, hostEnd := unanswering(t)
		_ = hostEnd.Close()
		synctest.Wait()
		if _, err := c.EnterMachine(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("request")); err == nil {
			t.Error("written to a connection that has ended")
		}
		time.Sleep(DefaultEnterTimeout + minCircuitPause/2)
		if c.gate.silent.open() {
			t.Error("the host counts as silent")
		}
		_ = c.Close()
	})
}

// TestFailureIsNoEnd: data that arrives while a connection fails is not lost without an error.
func TestFailureIsNoEnd(t *testing.T) {
	for range 100 { // of two things that are ready, one is taken by chance
		synctest.Test(t, func(t *testing.T) {
			c, hostEnd := unanswering(t)
			_ = writeFrame(hostEnd, kindData, []byte("answer"))
			synctest.Wait()
			c.fail(errSilent)
			got, err := io.ReadAll(c)
			if !errors.Is(err, errSilent) || len(got) > 0 && string(got) != "answer" {
				t.Errorf("got %q, %v", got, err)
			}
			_ = hostEnd.Close()
			_ = c.Close()
			time.Sleep(2 * linger)
		})
	}
}

// TestAllEnterAgain: over a new connection, however many are in.
func TestAllEnterAgain(t *testing.T) {
	g := newGate(newPeer(t.Context(), hangar.Host{ID: "0000bbbb"}, nil), DefaultEnterTimeout)
	const visits = peerStreams
	for id := range uint64(visits) {
		g.inside[id] = entry{ID: id, Ref: hangar.MachineRef{ID: "00000000000001", App: "web", AppID: "app_1"}, Port: 8080}
	}
	out := newBatch(&frameWriter{w: io.Discard})
	if err := g.connected(out); err != nil {
		t.Fatal(err)
	}
	frames, _ := out.take()
	entered := 0
	for r := bytes.NewReader(frames); ; entered++ {
		if _, _, err := readFrame(r, maxCall); err != nil {
			break
		}
	}
	if entered != visits {
		t.Errorf("%d of %d enter again", entered, visits)
	}
}

// dialing is a transport that connects until its caller gives up.
type dialing struct{}

func (dialing) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestGivingUpIsNoFailure: a caller that gives up, for whatever cause, says nothing about the host.
func TestGivingUpIsNoFailure(t *testing.T) {
	for _, test := range []struct {
		cause error
		fails bool
	}{{context.Canceled, false}, {errors.New("the client has gone"), false}, {context.DeadlineExceeded, true}} {
		synctest.Test(t, func(t *testing.T) { // it counts so for a short time
			p := newPeer(t.Context(), hangar.Host{ID: "0000bbbb", Address: "127.0.0.1:1"}, dialing{})
			defer p.close()
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(test.cause)
			if _, err := p.both(ctx, "DialMachine"); err == nil {
				t.Error("connected")
			}
			if p.circuit.open() != test.fails {
				t.Errorf("%v: the host counts as away: %v", test.cause, p.circuit.open())
			}
		})
	}
}

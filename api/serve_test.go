package api_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
)

// idle is a MachineService in which nothing happens, so that waits do not end.
type idle struct {
	hangar.MachineService
	waits atomic.Int64
}

func (s *idle) WaitMachine(ctx context.Context, _ hangar.MachineRef, _ hangar.MachineWait) (hangar.MachineReached, error) {
	s.waits.Add(1)
	<-ctx.Done()
	return hangar.MachineReached{}, ctx.Err()
}

func (s *idle) AwaitMachine(context.Context, hangar.MachineRef, hangar.MachineWait, func(hangar.MachineReached, error)) (func(), error) {
	s.waits.Add(1)
	return func() {}, nil
}

// TestEveryWaitIsToldOfTheEnd: also waits without a goroutine, before Serve returns.
func TestEveryWaitIsToldOfTheEnd(t *testing.T) {
	t.Parallel()
	const waits = 600 // more than have a goroutine
	const patience = time.Minute
	machines := &idle{}
	handler := newAPI(func(c *api.Config) { c.Machines = machines })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(ctx, listener, handler, patience) }()
	conns := make([]net.Conn, waits)
	for i := range conns {
		c, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		const text = "GET /v1/apps/web/machines/d8912340000002/wait?timeout=60 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n"
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		conns[i] = c
	}
	for deadline := time.Now().Add(patience); machines.waits.Load() < waits; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d wait", machines.waits.Load(), waits)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// All lines are sent by now: a missing one does not come.
	lost := 0
	for _, c := range conns {
		r := bufio.NewReader(c)
		if !saidAlready(c, r) {
			lost++
		} else if res, err := http.ReadResponse(r, nil); err != nil {
			lost++
		} else if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "shutting down") {
			t.Fatalf("answered %d %s, %v", res.StatusCode, body, err)
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d waits end without an answer", lost, waits)
	}
}

// saidAlready reports whether something can be read. Attempts bound that, not time: a deadline may also
// pass because this process does not run.
func saidAlready(c net.Conn, r *bufio.Reader) bool {
	err := os.ErrDeadlineExceeded
	for attempt := 0; attempt < 50 && errors.Is(err, os.ErrDeadlineExceeded); attempt++ {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err = r.Peek(1)
	}
	_ = c.SetReadDeadline(time.Time{})
	return err == nil
}

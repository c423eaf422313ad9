package api_test

import (
	"context"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
)

// flood never stops writing until it is ended, and says when it is.
type flood struct {
	hangar.MachineService
	hangar.LogService
	ended chan error
}

func (f flood) FollowLogs(ctx context.Context, _ hangar.AppName, _ hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	return func(yield func(hangar.LogEntry, error) bool) {
		for yield(hangar.LogEntry{Message: strings.Repeat("x", 1<<10)}, nil) {
		}
		f.ended <- ctx.Err()
	}
}

func (f flood) ExecMachine(ctx context.Context, _ hangar.MachineRef, _ hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	var err error
	for err == nil {
		_, err = streams.Stdout.Write(make([]byte, 32<<10))
	}
	f.ended <- ctx.Err()
	return hangar.ExecResult{}, err
}

// TestTokenEndsUnread: a client that does not read cannot hold a stream for longer than
// its token lives.
func TestTokenEndsUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		defer end()
		f := flood{ended: make(chan error, 1)}
		server := api.Server(newAPI(func(c *api.Config) { c.Logs, c.Auth = f, mortal{life} }))
		l := oneConn{make(chan net.Conn, 1), make(chan struct{})}
		near, far := net.Pipe()
		l.conns <- far
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(l)
		}()
		if _, err := io.WriteString(near, "GET /v1/apps/web/logs?follow=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // before a sign of life is due
		end()
		ended := time.Now()
		if err := <-f.ended; err == nil || time.Since(ended) > 2*time.Second {
			t.Errorf("ended after %s with %v", time.Since(ended), err)
		}
		_ = near.Close()
		_ = server.Close()
		<-served
	})
}

func TestTokenEndsUnreadCommand(t *testing.T) {
	life, end := context.WithCancel(t.Context())
	defer end()
	f := flood{ended: make(chan error, 1)}
	server := httptest.NewServer(newAPI(func(c *api.Config) { c.Machines, c.Auth = f, mortal{life} }))
	t.Cleanup(server.Close)
	ws, res, err := websocket.Dial(t.Context(), server.URL+"/v1/apps/web/machines/d8912340000002/exec?command=yes",
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer t"}}})
	if err != nil {
		t.Fatal(err)
	}
	if res.Body != nil {
		_ = res.Body.Close()
	}
	defer func() { _ = ws.CloseNow() }()
	time.Sleep(50 * time.Millisecond)
	end()
	ended := time.Now()
	if err := <-f.ended; err == nil || time.Since(ended) > 12*time.Second { // a client that does not answer is noticed after 15 s
		t.Errorf("ended after %s with %v", time.Since(ended), err)
	}
}

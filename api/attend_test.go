package api_test

import (
	"bufio"
	"context"
	"io"
	"iter"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
)

// flood writes until it is ended, and reports its end.
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

// TestTokenEndsUnread: a client that does not read cannot keep a stream or a command open after its
// token ends.
func TestTokenEndsUnread(t *testing.T) {
	const head = " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\n"
	for name, sent := range map[string]string{
		"a stream": "GET /v1/apps/web/logs?follow=true" + head + "\r\n",
		"a command": "GET /v1/apps/web/machines/d8912340000002/exec?command=yes" + head +
			"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testTokenEndsUnread(t, sent) }) })
	}
}

func testTokenEndsUnread(t *testing.T, sent string) {
	t.Helper()
	life, end := context.WithCancel(t.Context())
	defer end()
	f := flood{ended: make(chan error, 1)}
	server := api.Server(newAPI(func(c *api.Config) { c.Logs, c.Machines, c.Auth = f, f, mortal{life} }))
	l := oneConn{make(chan net.Conn, 1), make(chan struct{})}
	near, far := net.Pipe()
	l.conns <- far
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	if _, err := io.WriteString(near, sent); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReaderSize(near, 16), nil)
	if err != nil || res.StatusCode >= http.StatusBadRequest {
		t.Fatalf("%+v, %v", res, err)
	}
	time.Sleep(time.Second) // before a sign of life is due
	end()
	ended := time.Now() // of the clock of the bubble, which does not know how busy the server is
	if err := <-f.ended; err == nil || time.Since(ended) > 2*time.Second {
		t.Errorf("ended after %s with %v", time.Since(ended), err)
	}
	_ = near.Close()
	_ = server.Close()
	<-served
}

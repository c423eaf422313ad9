package api_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/internal/pause"
)

// oneConn is a listener with a single connection.
type oneConn struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l oneConn) Close() error   { close(l.closed); return nil }
func (l oneConn) Addr() net.Addr { return &net.UnixAddr{} }

// slow has slow operations, and a few fast ones.
type slow struct {
	hangar.AppService
	hangar.MachineService
	hangar.LogService
	killed chan time.Duration // how long a command ran that was killed
	input  chan error         // how the input of a command that was killed ended; nil: it was complete
}

func (slow) CreateApp(_ context.Context, in hangar.AppCreate) (*hangar.App, error) {
	return &hangar.App{Name: in.Name}, nil
}

func (slow) Logs(context.Context, hangar.AppName, hangar.LogQuery) (hangar.LogPage, error) {
	return hangar.LogPage{}, nil
}

// ExecMachine is a sleep.
func (s slow) ExecMachine(ctx context.Context, _ hangar.MachineRef, in hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	began := time.Now()
	d, err := time.ParseDuration(in.Command[1] + "s")
	if err != nil {
		return hangar.ExecResult{}, err
	}
	if err := pause.For(ctx, d); err != nil {
		s.killed <- time.Since(began)
		_, end := io.Copy(io.Discard, streams.Stdin)
		s.input <- end
		return hangar.ExecResult{}, err
	}
	return hangar.ExecResult{}, nil
}

// WaitMachine waits for something that never happens.
func (slow) WaitMachine(ctx context.Context, _ hangar.MachineRef, in hangar.MachineWait) (hangar.MachineReached, error) {
	if err := pause.For(ctx, in.Timeout); err != nil {
		return hangar.MachineReached{}, err
	}
	return hangar.MachineReached{}, hangar.Errorf(hangar.CodeTimeout, hangar.ReasonWaitTimeout, "machine failed to reach desired state")
}

func newSlow() (http.Handler, slow) {
	s := slow{killed: make(chan time.Duration, 1), input: make(chan error, 1)}
	return newAPI(func(c *api.Config) { c.Apps, c.Machines, c.Logs = s, s, s }), s
}

// talk serves one connection on which the client writes a text and then nothing. It returns the answer
// (nil: there was none) and how long the connection lived.
func talk(t *testing.T, text string) (status int, lived time.Duration) {
	t.Helper()
	l := oneConn{make(chan net.Conn, 1), make(chan struct{})}
	near, far := net.Pipe()
	l.conns <- far
	handler, _ := newSlow()
	server := api.Server(handler)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	began := time.Now()
	if _, err := io.WriteString(near, text); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(near)
	if res, err := http.ReadResponse(r, nil); err == nil {
		status = res.StatusCode
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
	_, _ = io.Copy(io.Discard, r)
	lived = time.Since(began)
	_ = near.Close()
	_ = server.Close()
	<-served
	return status, lived
}

func TestSlowClients(t *testing.T) {
	const auth = "Host: x\r\nAuthorization: Bearer " + token + "\r\n"
	for name, test := range map[string]struct {
		sent   string
		status int
		lives  time.Duration
	}{
		"headers that do not end": {"GET /v1/apps HTTP/1.1\r\nHost: x\r\n", 0, 15 * time.Second},
		"a body that stops":       {"POST /v1/apps HTTP/1.1\r\n" + auth + "Content-Length: 100\r\n\r\n{", http.StatusRequestTimeout, time.Minute},
		"an unread body":          {"POST /v1/nothing HTTP/1.1\r\n" + auth + "Content-Length: 100\r\n\r\n{", http.StatusNotFound, time.Minute},
		"an unread body, and a stream": {
			"POST /v1/apps HTTP/1.1\r\n" + auth + "Content-Length: 14\r\n\r\n" + `{"name":"web"}` +
				"GET /v1/apps/web/logs HTTP/1.1\r\n" + auth + "Content-Length: 100\r\n\r\n{",
			http.StatusCreated, time.Minute,
		},
		"an upload that stops": {"PUT /v2/x HTTP/1.1\r\n" + auth + "Content-Length: 100\r\n\r\n{", http.StatusTeapot, time.Minute},
		"silence afterwards":   {"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusOK, 3 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				status, lived := talk(t, test.sent)
				if status != test.status || lived > test.lives {
					t.Errorf("answered %d, and the connection lived for %s; want %d and at most %s", status, lived, test.status, test.lives)
				}
			})
		})
	}
}

// TestSteadyUpload sends a body for longer than other routes allow. An upload to the registry only
// needs steady progress.
func TestSteadyUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := oneConn{make(chan net.Conn, 1), make(chan struct{})}
		near, far := net.Pipe()
		l.conns <- far
		server := api.Server(newAPI())
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(l)
		}()
		go func() {
			_, _ = io.WriteString(near, "PUT /v2/x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
			for range 10 {
				time.Sleep(20 * time.Second)
				_, _ = io.WriteString(near, "x")
			}
		}()
		res, err := http.ReadResponse(bufio.NewReader(near), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusTeapot {
			t.Errorf("a steady upload is answered %d", res.StatusCode)
		}
		_ = near.Close()
		_ = server.Close()
		<-served
	})
}

// TestLongWait waits for longer than a body may take. The bound on reading must not end a request that
// has been read.
func TestLongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const auth = "Host: x\r\nAuthorization: Bearer " + token + "\r\n"
		l := oneConn{make(chan net.Conn, 1), make(chan struct{})}
		near, far := net.Pipe()
		l.conns <- far
		handler, _ := newSlow()
		server := api.Server(handler)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(l)
		}()
		r := bufio.NewReader(near)
		for _, step := range []struct {
			sent   string
			status int
		}{
			{"POST /v1/apps/web/machines/d8912340000002/exec HTTP/1.1\r\n" + auth + "Content-Length: 39\r\n\r\n" + `{"command":["sleep","50"],"timeout":90}`, http.StatusOK},
			{"GET /v1/apps/web/machines/d8912340000002/wait?state=stopped&timeout=60 HTTP/1.1\r\n" + auth + "\r\n", http.StatusRequestTimeout},
		} {
			if _, err := io.WriteString(near, step.sent); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if res.StatusCode != step.status || len(body) == 0 {
				t.Errorf("%s\nis answered %d %s, want %d", step.sent, res.StatusCode, body, step.status)
			}
		}
		_ = near.Close()
		_ = server.Close()
		<-served
	})
}

// TestLostClientOfExec: if a client has sent more than the command reads and then leaves, its command
// is killed, although the connection is not read, and does not see the end of its input.
func TestLostClientOfExec(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := oneConn{make(chan net.Conn, 1), make(chan struct{})}
		near, far := net.Pipe()
		l.conns <- far
		handler, platform := newSlow()
		server := api.Server(handler)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(l)
		}()
		const auth = "Host: x\r\nAuthorization: Bearer " + token + "\r\n"
		r := bufio.NewReader(near)
		const exec = "GET /v1/apps/web/machines/d8912340000002/exec?command=sleep&command=100000 HTTP/1.1\r\n" + auth +
			"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
		if _, err := io.WriteString(near, exec); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%v, %v", res, err)
		}
		_ = res.Body.Close()
		const size = 32<<10 + 1 // of a message: a byte for the stream, stdin, and the rest
		frame := append([]byte{0x82, 0xff, 0, 0, 0, 0, 0, 0, size >> 8 & 0xff, size & 0xff, 0, 0, 0, 0}, make([]byte, size)...)
		flooded := make(chan struct{})
		go func() {
			defer close(flooded)
			for {
				if _, err := near.Write(frame); err != nil {
					return
				}
			}
		}()
		synctest.Wait() // until the server takes no more
		_ = near.Close()
		<-flooded
		if d := <-platform.killed; d > time.Minute {
			t.Errorf("the command was killed %s after its client was lost", d)
		}
		if <-platform.input == nil {
			t.Error("the input of the command was complete")
		}
		_ = server.Close()
		<-served
	})
}

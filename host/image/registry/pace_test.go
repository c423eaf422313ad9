package registry_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar/host/image/registry"
)

// pipes is a listener that gets its connections from dial.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p pipes) dial() net.Conn {
	near, far := net.Pipe()
	p <- far
	return near
}

// TestSlowDownloads: a client that reads a blob a few bytes at a time, or stops reading, is
// disconnected; one that is slow but fast enough gets all of it.
func TestSlowDownloads(t *testing.T) {
	const size, rate, stall = 4 << 20, 16 << 10, time.Minute
	s := serve(t, registry.Options{})
	blob := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	at := s.begin(t, "a", "a/app")
	s.status(t, http.StatusCreated, "", "a", http.MethodPut, at+"?digest="+digestOf(blob), blob)
	for _, c := range []struct {
		name  string
		piece int           // bytes of one read
		every time.Duration // pause before each read
		after int           // bytes that are read at once before
		cut   bool          // it does not get everything
	}{
		{"at once", size, 0, 0, false},
		{"slow", 20 << 10, time.Second, 0, false},
		{"in bursts", 512 << 10, 25 * time.Second, 0, false},
		{"a byte a second", 1, time.Second, 0, true},
		{"nothing", 1, time.Hour, 0, true},
		{"nothing more after half", 1, time.Hour, size / 2, true},
		{"a byte a second after half", 1, time.Second, size / 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := registry.New(registry.Options{Dir: s.dir, MinRate: rate, MaxStall: stall, Log: slog.New(slog.DiscardHandler)})
				if err := r.Open(t.Context()); err != nil {
					t.Fatal(err)
				}
				var took time.Duration // duration of the handler
				handler := r.Handler(access{})
				server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					began := time.Now()
					defer func() { took = time.Since(began) }()
					handler.ServeHTTP(w, req)
				})}
				clients := make(pipes)
				served := make(chan error, 1)
				go func() { served <- server.Serve(clients) }()
				conn := clients.dial()
				fmt.Fprintf(conn, "GET /v2/a/app/blobs/%s HTTP/1.1\r\nHost: registry\r\nAuthorization: Basic YTpzZWNyZXQ=\r\nConnection: close\r\n\r\n", digestOf(blob))
				answer, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil)
				if err != nil || answer.StatusCode != http.StatusOK {
					t.Fatalf("answered %+v, %v", answer, err)
				}
				got, err := io.CopyN(io.Discard, answer.Body, int64(c.after))
				for b := make([]byte, c.piece); err == nil; {
					time.Sleep(c.every)
					var n int
					n, err = io.ReadFull(answer.Body, b)
					got += int64(n)
				}
				_ = conn.Close()
				close(clients)
				if err := <-served; err == nil {
					t.Error("the server ended well")
				}
				_ = server.Close()
				synctest.Wait()
				if (got < size) != c.cut || c.cut && took > 4*stall {
					t.Errorf("got %d bytes of %d in %s: %v", got, size, took, err)
				}
			})
		})
	}
}

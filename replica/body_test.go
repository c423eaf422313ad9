package replica

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// oneConn is a listener with one connection.
type oneConn struct {
	net.Listener

	conns chan net.Conn
}

func (l oneConn) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l oneConn) Close() error   { return nil }
func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestStalledBody: a body may take as long as it needs while its bytes keep coming, and what is done with it
// as well. One that stalls ends.
func TestStalledBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error)
		server := http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body := steadyBody{r.Body, http.NewResponseController(w)}
			if _, err := io.ReadFull(body, make([]byte, 3)); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Hour)
			if r.Context().Err() != nil {
				t.Error("the request ended while its body was not read")
			}
			_, err := io.ReadFull(body, make([]byte, 3))
			ended <- err
		})}
		client, conn := net.Pipe()
		defer client.Close()
		l := oneConn{conns: make(chan net.Conn, 1)}
		l.conns <- conn
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(l) })
		serving.Go(func() { _, _ = io.Copy(io.Discard, client) })
		for _, part := range []string{"POST / HTTP/1.1\r\nHost: node\r\nContent-Length: 6\r\n\r\n", "a", "b", "c", "d"} {
			if _, err := io.WriteString(client, part); err != nil {
				t.Fatal(err)
			}
			time.Sleep(importPatience - time.Second)
		}
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
		close(l.conns)
		_ = client.Close()
		_ = server.Shutdown(context.WithoutCancel(t.Context()))
		serving.Wait()
	})
}

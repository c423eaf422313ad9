package http1

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick is a server with timeouts that no test waits for.
func quick(h http.HandlerFunc) *Server {
	return &Server{Handler: h, HeaderTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute, BodyTimeout: 2 * time.Minute}
}

// listen serves on loopback until the test has ended, and returns where.
func listen(tb testing.TB, s *Server) string {
	tb.Helper()
	return accept(tb, func(c net.Conn) { s.ServeConn(context.Background(), c) })
}

// accept serves each connection with f, and closes the remaining ones at the end of the test.
func accept(tb testing.TB, f func(net.Conn)) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Go(func() {
				f(c)
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	tb.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

// piped returns the client's end of a connection that is served without a socket, as required in a
// synctest bubble.
func piped(t *testing.T, s *Server) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	var serving sync.WaitGroup
	serving.Go(func() { s.ServeConn(context.Background(), server) })
	t.Cleanup(func() {
		client.Close()
		serving.Wait()
	})
	return client
}

func dial(tb testing.TB, addr string) *net.TCPConn {
	tb.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	return c.(*net.TCPConn)
}

// ask sends bytes, then nothing more, and returns all answers with their bodies.
func ask(tb testing.TB, addr, request string) (answers []*http.Response, bodies []string, rest error) {
	tb.Helper()
	c := dial(tb, addr)
	if _, err := io.WriteString(c, request); err != nil {
		tb.Log("write:", err) // the server may have refused already
	}
	c.CloseWrite()
	br := bufio.NewReader(c)
	for {
		if _, err := br.Peek(1); err != nil {
			return answers, bodies, err
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			return answers, bodies, err
		}
		body, err := io.ReadAll(resp.Body)
		answers, bodies = append(answers, resp), append(bodies, string(body))
		if err != nil {
			return answers, bodies, err
		}
	}
}

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// serve runs a handler on a socket until the test ends, and records the connections.
func serve(t *testing.T, handler http.HandlerFunc) (p *connections, made func() []net.Conn) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []net.Conn
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ConnState: func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, c)
		}
	}}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }() // it ends with Close
	p = &connections{address: l.Addr().String(), most: 2}
	t.Cleanup(func() { p.CloseIdleConnections(); _ = server.Close(); <-ended })
	return p, func() []net.Conn {
		mu.Lock()
		defer mu.Unlock()
		return append([]net.Conn{}, all...)
	}
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // a client that has gone misses nothing
	_, _ = w.Write(body)
}

func ask(ctx context.Context, p *connections, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://store/x", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return p.RoundTrip(r)
}

func answered(t *testing.T, p *connections, body string) {
	t.Helper()
	resp, err := ask(t.Context(), p, body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != body {
		t.Fatalf("%d bytes come back as %d, %v", len(body), len(got), err)
	}
}

// TestConnectionsAreUsedAgain by consecutive requests with bodies of any size.
func TestConnectionsAreUsedAgain(t *testing.T) {
	p, made := serve(t, echo)
	for _, n := range []int{0, 1, 1000, readRoom, 1 << 20, 3} {
		answered(t, p, strings.Repeat("x", n))
	}
	if n := len(made()); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// TestNoMoreAreKept: after many concurrent requests, only the permitted number of connections is
// kept, until they have been idle for long.
func TestNoMoreAreKept(t *testing.T) {
	var inside sync.WaitGroup
	inside.Add(5)
	p, made := serve(t, func(http.ResponseWriter, *http.Request) { inside.Done(); inside.Wait() })
	var asking sync.WaitGroup
	for range 5 {
		asking.Go(func() {
			resp, err := ask(t.Context(), p, "x")
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		})
	}
	asking.Wait()
	if n := len(made()); n != 5 || len(p.idle) != 2 || p.closer == nil {
		t.Errorf("of %d connections %d are kept", n, len(p.idle))
	}
	p.idle[0].free = time.Now().Add(-idleTime)
	p.closeOld()
	if len(p.idle) != 1 || p.closer == nil {
		t.Errorf("when one was idle for long %d are kept", len(p.idle))
	}
	p.CloseIdleConnections()
	if len(p.idle) != 0 || p.closer != nil {
		t.Errorf("in the end %d are kept", len(p.idle))
	}
}

// TestClosedConnectionsAreReplaced: the server has closed the idle connections.
func TestClosedConnectionsAreReplaced(t *testing.T) {
	p, made := serve(t, echo)
	answered(t, p, "first")
	for _, c := range made() {
		_ = c.Close()
	}
	answered(t, p, strings.Repeat("second", writeRoom))
	if n := len(made()); n != 2 {
		t.Errorf("%d connections were made", n)
	}
}

// TestHalfAnAnswerIsNotAskedForAgain: on a reused connection, the server ends after the answer has
// begun.
func TestHalfAnAnswerIsNotAskedForAgain(t *testing.T) {
	asked := 0
	p, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 1 {
			return
		}
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	answered(t, p, "")
	resp, err := ask(t.Context(), p, "x")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) || string(got) != "half" {
		t.Errorf("half an answer is %q, %v", got, err)
	}
	if asked != 2 || len(p.idle) != 0 {
		t.Errorf("it was asked %d times, and %d connections are kept", asked, len(p.idle))
	}
}

// TestAnErrorComesBeforeTheRequestIsRead: the server does not look at a large body.
func TestAnErrorComesBeforeTheRequestIsRead(t *testing.T) {
	p, made := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	for range 3 {
		resp, err := ask(t.Context(), p, strings.Repeat("x", 4<<20))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("the answer is %s, %v", resp.Status, err)
		}
	}
	if n := len(made()); n != 3 {
		t.Errorf("%d connections were made", n)
	}
}

// TestAnswersThatAreNotReadEndTheirConnection: otherwise the rest would be taken for the next
// answer.
func TestAnswersThatAreNotReadEndTheirConnection(t *testing.T) {
	p, made := serve(t, echo)
	resp, err := ask(t.Context(), p, strings.Repeat("x", 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := resp.Body.Read(make([]byte, 10)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(resp.Body.Close(), resp.Body.Close()); err != nil {
		t.Error(err)
	}
	if n, err := resp.Body.Read(make([]byte, 10)); n != 0 || err == nil {
		t.Errorf("after Close %d bytes are read", n)
	}
	answered(t, p, "next")
	if n := len(made()); n != 2 {
		t.Errorf("%d connections were made", n)
	}
}

// TestTheEndOfAContextEndsItsRequest: before an answer has begun, and inside one, with the cause of
// the context.
func TestTheEndOfAContextEndsItsRequest(t *testing.T) {
	cause := errors.New("not wanted any more")
	for _, begun := range []bool{false, true} {
		t.Run(fmt.Sprint("begun ", begun), func(t *testing.T) {
			inside, release := make(chan struct{}), make(chan struct{})
			p, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if begun {
					_, _ = io.WriteString(w, "half")
					_ = http.NewResponseController(w).Flush()
				}
				close(inside)
				<-release
			})
			defer close(release)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() { <-inside; cancel(cause) }()
			resp, err := ask(ctx, p, "x")
			if begun && err == nil {
				_, err = io.ReadAll(resp.Body)
			}
			if !errors.Is(err, cause) || len(p.idle) != 0 {
				t.Errorf("the request ends with %v; %d connections are kept", err, len(p.idle))
			}
		})
	}
}

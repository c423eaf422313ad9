package wsconn_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/wsconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair connects a client to a server. Both are closed with the test.
func pair(t *testing.T) (client, server *wsconn.Conn) {
	t.Helper()
	accepted := make(chan *websocket.Conn, 1)
	done := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
		if err != nil {
			t.Error(err)
		}
		accepted <- ws
		<-done
	}))
	ws, _, err := websocket.Dial(t.Context(), s.URL, &websocket.DialOptions{HTTPClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	client, server = wsconn.New(ws, "there"), wsconn.New(<-accepted, "here")
	t.Cleanup(func() {
		go client.Close() // each waits for the other
		_ = server.Close()
		close(done)
		s.Close()
	})
	return client, server
}

func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if n, err := io.WriteString(c, text); n != len(text) || err != nil {
		t.Fatalf("wrote %d bytes of %q, %v", n, text, err)
	}
}

func read(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v, want %q", got, err, want)
	}
}

func TestHalfCloses(t *testing.T) {
	client, server := pair(t)
	for _, way := range [][2]*wsconn.Conn{{client, server}, {server, client}} {
		from, to := way[0], way[1]
		write(t, from, "last words")
		for range 2 { // it may be repeated
			if err := from.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := from.Write([]byte("more")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("a write after the end: %v", err)
		}
		for range 2 {
			if got, err := io.ReadAll(to); err != nil || len(got) > 0 && string(got) != "last words" {
				t.Errorf("read %q, %v", got, err)
			}
		}
	}
	closed := make(chan error)
	go func() { closed <- client.Close() }()
	<-server.Gone()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestMuch sends in both directions at once, in pieces of all sizes.
func TestMuch(t *testing.T) {
	client, server := pair(t)
	sent := make([]byte, 3<<20)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = io.Copy(server, struct{ io.Reader }{server})
		_ = server.CloseWrite()
	}()
	written := make(chan error, 1)
	go func() {
		var err error
		for rest, size := sent, 0; len(rest) > 0 && err == nil; size = size*3 + 1 {
			n := min(size, len(rest))
			_, err = client.Write(rest[:n])
			rest = rest[n:]
		}
		written <- errors.Join(err, client.CloseWrite())
	}()
	got, err := io.ReadAll(client)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back as %d others, %v", len(sent), len(got), err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// TestAbort: the peer reads everything sent before, and then the reason for the end.
func TestAbort(t *testing.T) {
	long := strings.Repeat("ä", 100)
	for _, test := range []struct {
		cause error
		check func(error) bool
	}{
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, func(err error) bool { return errors.Is(err, syscall.ECONNRESET) }},
		{syscall.EPIPE, func(err error) bool { return errors.Is(err, syscall.ECONNRESET) }},
		{hangar.Errorf(hangar.CodeUnavailable, "", "the machine is stopped"), func(err error) bool {
			return hangar.CodeOf(err) == hangar.CodeUnavailable && err.Error() == "the machine is stopped"
		}},
		{hangar.Errorf(hangar.CodeUnavailable, "", "%s", long), func(err error) bool { return strings.HasPrefix(long, err.Error()) && len(err.Error()) > 100 }},
		{hangar.Unauthenticated(), func(err error) bool { return hangar.CodeOf(err) == hangar.CodeUnauthenticated }},
		{context.Canceled, func(err error) bool { return err.Error() == "the connection was ended" }},
	} {
		client, server := pair(t)
		write(t, server, "before")
		aborted := make(chan struct{})
		go func() {
			defer close(aborted)
			server.Abort(test.cause)
		}()
		read(t, client, "before")
		for range 2 {
			if _, err := client.Read(make([]byte, 1)); err == nil || !test.check(err) {
				t.Errorf("aborted for %v: %v", test.cause, err)
			}
		}
		<-aborted
		if _, err := client.Write([]byte("x")); err == nil || !test.check(err) {
			t.Errorf("aborted for %v: a write: %v", test.cause, err)
		}
	}
}

// TestPeerIsLost: a lost connection is not a clean end.
func TestPeerIsLost(t *testing.T) {
	accepted := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
		}
		<-accepted
		_ = ws.CloseNow()
	}))
	defer s.Close()
	ws, _, err := websocket.Dial(t.Context(), s.URL, &websocket.DialOptions{HTTPClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	c := wsconn.New(ws, "there")
	close(accepted)
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the loss of the peer reads as %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestDeadlines(t *testing.T) {
	client, server := pair(t)
	past, future := time.Unix(1, 0), time.Now().Add(time.Hour)
	for _, set := range []func(time.Time) error{client.SetDeadline, client.SetReadDeadline} {
		if err := set(past); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a read after the deadline: %v", err)
		}
		if err := set(future); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.SetWriteDeadline(past); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a write after the deadline: %v", err)
	}
	if err := client.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	write(t, client, "there is no deadline any more")
	read(t, server, "there is no deadline any more")

	if err := client.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := client.Read(make([]byte, 1))
	timeout, ok := err.(net.Error) //nolint:errorlint // as callers ask
	if !ok || !timeout.Timeout() {
		t.Errorf("a read until the deadline: %v", err)
	}
}

// TestNobodyReads: without a reader the writer and its pings block, and nothing breaks.
func TestNobodyReads(t *testing.T) {
	client, server := pair(t)
	const most = 64 << 20
	ctx, cancel := context.WithCancel(t.Context())
	alive := make(chan error, 1)
	go func() { alive <- server.KeepAlive(ctx, time.Millisecond) }()
	sent, full := make(chan int, most/wsconn.MaxPiece), make(chan struct{})
	written := make(chan error, 1)
	go func() {
		piece := make([]byte, wsconn.MaxPiece)
		for n := 0; n < most; n += len(piece) {
			if _, err := server.Write(piece); err != nil {
				written <- err
				return
			}
			sent <- n
		}
		written <- server.CloseWrite()
	}()
	go func() {
		defer close(full)
		for last := -1; last != len(sent); <-time.After(50 * time.Millisecond) {
			last = len(sent)
		}
	}()
	<-full
	if n := len(sent) * wsconn.MaxPiece; n == most {
		t.Errorf("%d bytes were taken without a reader", n)
	}
	got, err := io.Copy(io.Discard, client)
	if err != nil || got != most {
		t.Errorf("read %d bytes, %v", got, err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
	if err := <-alive; err != nil {
		t.Errorf("signs of life end with %v", err)
	}
	cancel()
}

func TestClose(t *testing.T) {
	client, server := pair(t)
	write(t, client, "all of it")
	closed := make(chan error, 1)
	go func() { closed <- client.Close() }()
	if got, err := io.ReadAll(server); err != nil || string(got) != "all of it" {
		t.Errorf("read %q, %v", got, err)
	}
	<-server.Gone()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("read from what is closed")
	}
	if err := client.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

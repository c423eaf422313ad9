package splice_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"

	"github.com/hangar-platform/hangar/internal/splice"
	"github.com/hangar-platform/hangar/internal/wsconn"
)

// tunnelled returns the ends of a connection that goes through a WebSocket and then over TCP again,
// as with `hangar proxy` and the API.
func tunnelled(b *testing.B) (client, program *net.TCPConn) {
	b.Helper()
	client, near := pair(b)
	far, program := pair(b)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{}, 2)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
		if err == nil {
			_ = splice.Join(ctx, wsconn.New(ws, ""), far) // it ends with the benchmark
		}
		ended <- struct{}{}
	}))
	ws, _, err := websocket.Dial(ctx, s.URL, &websocket.DialOptions{HTTPClient: s.Client()})
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		_ = splice.Join(ctx, near, wsconn.New(ws, "")) // it ends with the benchmark
		ended <- struct{}{}
	}()
	b.Cleanup(func() {
		cancel()
		<-ended
		<-ended
		s.Close()
	})
	return client, program
}

// BenchmarkThroughput sends 1 MiB at a time, to a program and from it, directly and
// through a tunnel.
func BenchmarkThroughput(b *testing.B) {
	for name, connect := range map[string]func(*testing.B) (_, _ *net.TCPConn){
		"direct": func(b *testing.B) (_, _ *net.TCPConn) { b.Helper(); return pair(b) },
		"tunnel": tunnelled,
	} {
		for _, way := range []string{"up", "down"} {
			b.Run(name+"/"+way, func(b *testing.B) {
				from, to := connect(b)
				if way == "down" {
					from, to = to, from
				}
				piece := make([]byte, 1<<20)
				b.SetBytes(int64(len(piece)))
				received := make(chan struct{})
				go func() {
					defer close(received)
					_, _ = io.Copy(io.Discard, to) // until the end
				}()
				for b.Loop() {
					if _, err := from.Write(piece); err != nil {
						b.Fatal(err)
					}
				}
				if err := from.CloseWrite(); err != nil {
					b.Fatal(err)
				}
				<-received
			})
		}
	}
}

// BenchmarkRoundTrip sends a byte and waits until it returns.
func BenchmarkRoundTrip(b *testing.B) {
	for name, connect := range map[string]func(*testing.B) (_, _ *net.TCPConn){
		"direct": func(b *testing.B) (_, _ *net.TCPConn) { b.Helper(); return pair(b) },
		"tunnel": tunnelled,
	} {
		b.Run(name, func(b *testing.B) {
			client, program := connect(b)
			go func() { _, _ = io.Copy(program, struct{ io.Reader }{program}) }()
			one := []byte{1}
			for b.Loop() {
				if _, err := client.Write(one); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(client, one); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

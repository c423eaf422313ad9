package state

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"
)

// TestMembersAreTriedAgainSoon: a member that refuses connections is retried without growing
// pauses: with those of gRPC, ten attempts take more than two minutes.
func TestMembersAreTriedAgainSoon(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	tried := make(chan struct{})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				close(tried)
				return
			}
			_ = conn.Close()
			tried <- struct{}{}
		}
	}()
	s := &Seats{cfg: SeatsConfig{Log: slog.New(slog.DiscardHandler)}}
	client, err := s.dial([]string{"http://" + listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { _, _ = client.Get(ctx, "/k") }() // the first call connects
	for n := range 10 {
		select {
		case <-tried:
		case <-ctx.Done():
			t.Fatalf("%d attempts in a minute", n)
		}
	}
	_ = listener.Close()
	for range tried { // until the goroutine has ended
	}
}

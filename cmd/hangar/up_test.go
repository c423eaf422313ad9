package main

import (
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// TestStoppingTakesAsLongAsDrain: systemd, which kills what does not end in time, is told that a
// longer --drain is meant.
func TestStoppingTakesAsLongAsDrain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	_ = socket.SetDeadline(time.Now().Add(30 * time.Second))
	t.Setenv("NOTIFY_SOCKET", path)
	notify(slog.New(slog.DiscardHandler), stopping(time.Hour))
	got := make([]byte, 100)
	n, err := socket.Read(got)
	if want := "STOPPING=1\nEXTEND_TIMEOUT_USEC=3630000000"; err != nil || string(got[:n]) != want {
		t.Errorf("told %q, %v", got[:n], err)
	}
}

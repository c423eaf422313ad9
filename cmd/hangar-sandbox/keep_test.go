package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == commandKeep {
		keep()
	}
	os.Exit(m.Run())
}

// The keeper inherits only the listener, holds the descriptors that it receives, and ends with its last
// client.
func TestKeep(t *testing.T) {
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "socket"), Net: "unixpacket"}
	l, err := net.ListenUnix(addr.Net, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	listener, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.DialUnix(addr.Net, nil, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	inherited, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	p, err := os.StartProcess("/proc/self/exe", []string{"hangar-sandbox", commandKeep}, &os.ProcAttr{
		Env: []string{}, Files: []*os.File{nil, nil, os.Stderr, listener, other},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Kill() }()
	_ = other.Close()

	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("list")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	if n, err := conn.Read(answer); err != nil || !strings.HasPrefix(string(answer[:n]), "end") {
		t.Fatalf("answered %q, %v", answer, err)
	}
	if err := inherited.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := inherited.Read(answer); n != 0 || err == nil || os.IsTimeout(err) {
		t.Errorf("a pipe of others is still open: %d, %v", n, err)
	}
	_ = conn.Close()
	state, err := p.Wait()
	if err != nil || !state.Success() {
		t.Errorf("ended with %v, %v", state, err)
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); !ok || ws.Signaled() {
		t.Errorf("ended by a signal: %v", state)
	}
}

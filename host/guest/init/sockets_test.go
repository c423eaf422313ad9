package guestinit

import (
	"bytes"
	"cmp"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// TestSockets asks the program about sockets of this process.
func TestSockets(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("looking into another process needs root")
	}
	committed := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(committed, Binary(), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Run("committed", func(t *testing.T) { testSockets(t, committed) })
	t.Run("source", func(t *testing.T) { testSockets(t, rebuild(t)) })
}

func testSockets(t *testing.T, program string) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	everywhere, err := net.ListenPacket("udp6", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer everywhere.Close()
	connected, err := net.Dial("udp4", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer connected.Close()
	local, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()

	var ask []byte
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for i := range int32(len(fds) + 100) { // among them many that are not open, or no sockets
		ask = AppendFile(ask, File{PID: int32(os.Getpid()), FD: i})
	}
	ask = AppendFile(ask, File{PID: 1 << 30, FD: 0})
	args := SocketsArgs(program)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Stdin = bytes.NewReader(ask)
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("program: %v", err)
	}

	type socket struct {
		proto   string
		address netip.AddrPort
	}
	var got []socket
	for _, s := range ListeningSockets(append(printed, 1, 2, 3)) {
		if s.PID != int32(os.Getpid()) || s.FD < 0 {
			t.Errorf("socket of %+v", s.File)
		}
		got = append(got, socket{s.Proto, s.Address})
	}
	slices.SortFunc(got, func(a, b socket) int { return cmp.Compare(a.proto, b.proto) })
	want := []socket{
		{"tcp", netip.MustParseAddrPort(listener.Addr().String())},
		{"udp", netip.MustParseAddrPort(everywhere.LocalAddr().String())},
	}
	if !slices.Equal(got, want) {
		t.Errorf("listening %v, want %v", got, want)
	}
}

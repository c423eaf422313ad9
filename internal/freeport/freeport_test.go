package freeport_test

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/internal/freeport"
)

const many = 200

// TestPortIsOnesOwn: the ports of two concurrent processes all differ, and can be listened on.
func TestPortIsOnesOwn(t *testing.T) {
	if os.Getenv("FREEPORT_CHILD") != "" {
		for range many {
			address, err := freeport.Address(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			os.Stdout.WriteString("port " + address + "\n")
		}
		_, _ = os.Stdin.Read(make([]byte, 1)) // it keeps them
		return
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "TestPortIsOnesOwn$")
	child.Env = append(os.Environ(), "FREEPORT_CHILD=1")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	taken := map[string]bool{}
	for range many {
		address, err := freeport.Address(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		taken[address] = true
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	var said strings.Builder
	for buffer := make([]byte, 4096); strings.Count(said.String(), "\n") < many; {
		n, err := out.Read(buffer)
		said.Write(buffer[:n])
		if err != nil {
			t.Fatalf("%v after %q", err, said.String())
		}
	}
	for line := range strings.Lines(said.String()) {
		if address, ok := strings.CutPrefix(strings.TrimSpace(line), "port "); ok {
			taken[address] = true
		}
	}
	if len(taken) != 2*many {
		t.Errorf("%d ports of %d are different", len(taken), 2*many)
	}
	_ = in.Close()
	_ = child.Wait()
}

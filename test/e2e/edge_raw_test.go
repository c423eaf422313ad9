package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// TestEdgeJoinsRawConnections: an address of an App is served when it is given, also for
// Machines, and a connection ends with its Machine, although one that is killed says nothing.
func TestEdgeJoinsRawConnections(t *testing.T) {
	p := start(t)
	const port = 7001
	m := p.run(t, "nginx", hangar.MachineConfig{
		Image:    p.push(t, build(t, nginx().recipe), "nginx:1"),
		Services: []hangar.Service{{Protocol: "tcp", InternalPort: 80, Ports: []hangar.ServicePort{{Port: port}}}},
	})
	m.serves(t, 80, "/numbers.txt")
	neighbour := p.shell(t, "neighbour")
	at := p.address(t, hangar.AddressV6)
	idle, err := net.Dial("tcp", net.JoinHostPort(at.String(), fmt.Sprint(port)))
	if err != nil {
		t.Fatalf("right after the address was given: %v", err)
	}
	defer idle.Close()
	if _, err := idle.Write([]byte("GET /")); err != nil { // and now the program waits for more
		t.Fatal(err)
	}
	if out := neighbour.exec(t, "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d && echo reached", at, port)); out != "reached\n" {
		t.Errorf("another Machine gets %q", out)
	}
	if _, code, err := neighbour.tryExec(t.Context(), "timeout", "2", "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", at, port+1)); err == nil && code == 0 {
		t.Error("another Machine gets to a port that is not served")
	}
	m.suspend(t)
	m.resume(t)
	if _, err := idle.Write([]byte("numbers")); err != nil {
		t.Fatal(err)
	}
	if err := idle.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("after a suspend: %v", err)
	}
	m.killSandbox(t)
	if err := idle.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := idle.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the kill: %v", err)
	}
}

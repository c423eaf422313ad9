package network

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/internal/ownhost"
)

func TestParseCounters(t *testing.T) {
	got, err := parseCounters(" 1 2 3 4 5 6 7 8  9 10 11 12 13 14 15 16\n")
	want := Counters{Received: Direction{9, 10, 11, 12, 13, 16}, Sent: Direction{1, 2, 3, 4, 5, 7}}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"", "1 2 3", strings.Repeat("x ", 16)} {
		if _, err := parseCounters(text); err == nil {
			t.Errorf("%q is parsed", text)
		}
	}
}

// Each Machine's counters show exactly what it has sent.
func TestCounters(t *testing.T) {
	n := open(t, "count")
	e, quiet := endpointOf(5, 1), endpointOf(5, 2)
	one := attach(t, n, e)
	attach(t, n, quiet)
	listenKernel(t, one)
	var l net.Listener
	within(t, one, func() (err error) {
		l, err = net.Listen("tcp", "[::]:0")
		return err
	})
	ownhost.Serve(t, l)
	before, err := n.Counters()
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.Dial(t.Context(), e.ID, l.Addr().(*net.TCPAddr).Port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	said, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	after, err := n.Counters()
	if err != nil {
		t.Fatal(err)
	}
	sent, received := after[e.ID].Sent, after[e.ID].Received
	if sent.Bytes < before[e.ID].Sent.Bytes+uint64(len(said)) || sent.Packets <= before[e.ID].Sent.Packets || received.Packets <= before[e.ID].Received.Packets {
		t.Errorf("%+v, and %+v after %d bytes", before[e.ID], after[e.ID], len(said))
	}
	if _, ok := after[quiet.ID]; !ok || len(after) != 2 {
		t.Errorf("%d Machines are counted", len(after))
	}
	if err := n.Detach(e.ID); err != nil {
		t.Fatal(err)
	}
	if left, err := n.Counters(); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

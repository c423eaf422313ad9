package daemon

import (
	"net"
	"strconv"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cluster/listener"
)

// TestPortsDiffer: the port for other servers is taken at all addresses, including those of private
// networks, so no service there may have it.
func TestPortsDiffer(t *testing.T) {
	_, text, err := net.SplitHostPort(listener.DefaultAddress)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	for what, other := range map[string]int{"DNS": hangar.ServicesDNSPort, "the API": hangar.ServicesAPIPort, "SSH": hangar.ServicesSSHPort} {
		if other == port {
			t.Errorf("%s of private networks has port %d, which other servers call", what, port)
		}
	}
}

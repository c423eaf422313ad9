package mesh_test

import (
	"os"
	"testing"

	"github.com/hangar-platform/hangar/internal/ownhost"
)

// hostSocket is set, to where it is controlled, in a process that is a host.
const hostSocket = "HANGAR_TEST_MESH_HOST"

func TestMain(m *testing.M) { ownhost.Main(m, nil) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// TestHost is a host of the other tests, in a process and a network of its own.
func TestHost(t *testing.T) {
	socket := os.Getenv(hostSocket)
	if socket == "" {
		t.Skip("it is started by the other tests")
	}
	serveHost(t, socket)
}

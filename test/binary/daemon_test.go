package binary_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/test/contract"
	"github.com/hangar-platform/hangar/test/daemon"
)

// TestDaemon runs the suites on the program that is shipped, with real Machines.
func TestDaemon(t *testing.T) {
	// The volumes are all but empty: disks of any size can promise them.
	d := daemon.Start(t, daemon.Options{Driver: "gvisor", Args: []string{"--acme", "off", "--volume-overcommit", "100"}})
	h := contract.Over(t, d.URL(), d.Token(), contract.Harness{
		Suspend: true,
		Echo:    []string{"nc", "-ll", "-p", "7007", "-e", "cat"}, EchoPort: 7007,
		Context: func(tb testing.TB) context.Context {
			tb.Helper()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 2*time.Minute)
			tb.Cleanup(cancel)
			return ctx
		},
		Image: d.Push(daemon.Busybox(t, "sh", "sleep", "echo", "cat", "nc"), "busybox:1", "--cmd", "sleep", "--cmd", "100000"),
		Exit:  func(code int) []string { return []string{"sh", "-c", fmt.Sprintf("exit %d", code)} },
		Sleep: []string{"sleep", "1000"},
	})
	contract.Services(t, h)
	t.Run("token ends", func(t *testing.T) { contract.TokenEnds(t, d.URL(), h) })
	t.Run("peers", func(t *testing.T) { contract.PeerService(t, h) })
}

package platform

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/platform/hostcheck"
)

const (
	askTimeout = 5 * time.Second
	// heardWithin is the greatest age of the last handshake with another server that is reachable. WireGuard repeats
	// handshakes every two minutes.
	heardWithin = 5 * time.Minute
)

// checkServers asks the running daemon of a data directory which servers it cannot reach in the private network. It
// returns nil if no daemon runs.
func checkServers(ctx context.Context, dir string) []hostcheck.Check {
	at := cli.LocalURL(dir)
	token, err := os.ReadFile(filepath.Join(dir, cli.TokenFile))
	if at == "" || err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	hosts, err := client.New(at, strings.TrimSpace(string(token))).Hosts(ctx)
	if err != nil {
		return nil
	}
	return serversCheck(hosts, time.Now())
}

// serversCheck returns the check of the servers that a daemon lists, or nil if there is only one.
func serversCheck(hosts []hangar.Host, now time.Time) []hostcheck.Check {
	var joined int
	var silent []string
	for _, h := range hosts {
		if h.MeshKey == "" || h.State != hangar.HostAlive {
			continue
		}
		if joined++; now.Sub(h.MeshHandshake) > heardWithin {
			silent = append(silent, fmt.Sprintf("%s at %s", h.ID, h.MeshAddress))
		}
	}
	check := hostcheck.Check{Name: "servers", Status: hostcheck.OK, Detail: fmt.Sprintf("%d servers reach each other in the private network", joined)}
	switch {
	case joined < 2:
		return nil
	case len(silent) > 0:
		check.Status, check.Detail = hostcheck.Warn, "no contact over the private network between servers: "+strings.Join(silent, ", ")+"; Machines here cannot reach Machines there"
		check.Fix = "allow UDP between the servers, to the --mesh-port (51821) of each"
	}
	return []hostcheck.Check{check}
}

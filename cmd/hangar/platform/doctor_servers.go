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
	// heardWithin is how long ago another server was heard of in the private network, if all is well: there
	// is a handshake every two minutes.
	heardWithin = 5 * time.Minute
)

// checkServers asks the daemon of a data directory, if one runs there, which servers it does not hear
// of in the private network.
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
		return nil // no daemon runs
	}
	return serversCheck(hosts, time.Now())
}

// serversCheck judges what a daemon says of the servers; there is nothing to say of one that is alone.
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
		check.Status, check.Detail = hostcheck.Warn, "not heard of in the private network between servers: "+strings.Join(silent, ", ")+"; Machines here do not reach those there"
		check.Fix = "let UDP pass between the servers, at the port of --mesh-port (51821) of each"
	}
	return []hostcheck.Check{check}
}

package platform_test

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/lease/leasetest"
	stores "github.com/hangar-platform/hangar/replica/lease/platform"
	"github.com/hangar-platform/hangar/test/platform"
)

// sockets returns the sockets of some Machines of a new App, by which programs in them reach the API.
func sockets(t *testing.T, p *platform.Platform, app hangar.AppName, machines int) []string {
	t.Helper()
	c := p.Client()
	if _, err := c.CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	var found []string
	for range machines {
		m, err := c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: hangar.MachineConfig{Image: "nginx"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.WaitMachine(t.Context(), m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}}); err != nil {
			t.Fatal(err)
		}
		before := len(found)
		err = filepath.WalkDir(p.Dir(), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type()&os.ModeSocket != 0 && strings.Contains(path, string(m.ID)) && d.Name() == "api" {
				found = append(found, path)
			}
			return nil
		})
		if err != nil || len(found) != before+1 {
			t.Fatalf("sockets %v, %v", found, err)
		}
	}
	return found
}

// elections returns what opens stores of another election each time; each store is that of a Machine of its own.
func elections(t *testing.T, app hangar.AppName) func(t *testing.T) leasetest.Open {
	t.Helper()
	p := platform.Start(t, platform.Options{})
	found := sockets(t, p, app, 8)
	c := p.Client()
	return func(t *testing.T) leasetest.Open {
		var next atomic.Uint32
		t.Cleanup(func() {
			if err := c.RemoveElection(context.WithoutCancel(t.Context()), app, stores.DefaultElection); err != nil {
				t.Error(err)
			}
		})
		return func(l *leasetest.Link) lease.Store {
			socket := found[int(next.Add(1))%len(found)]
			s, err := stores.New(stores.Config{App: string(app), Dial: func(ctx context.Context) (net.Conn, error) {
				return l.Dial(ctx, func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", socket) })
			}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			return s
		}
	}
}

// TestElectionStore is the conformance of elections as the store of a lease.
func TestElectionStore(t *testing.T) {
	open := elections(t, "store")
	leasetest.Run(t, func(t *testing.T) func() lease.Store {
		o := open(t)
		return func() lease.Store { return o(&leasetest.Link{}) }
	})
}

// TestElections has nodes in Machines elect their primary by the platform.
func TestElections(t *testing.T) { leasetest.Elections(t, elections(t, "db")) }

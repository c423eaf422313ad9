package platform_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/test/platform"
)

// crowd answers requests, and counts how many it has at once.
type crowd struct{ now, most atomic.Int64 }

func (c *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := c.now.Add(1)
	defer c.now.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	_ = pause.For(r.Context(), time.Millisecond) // so that others come meanwhile
	w.WriteHeader(http.StatusOK)
}

// TestLimitOverEdges: the hard limit of a Machine holds exactly over the requests of its own server's edge and of
// another's, and every request is answered.
func TestLimitOverEdges(t *testing.T) {
	const limit, clients, requests = 3, 6, 40
	program := &crowd{}
	c := platform.StartCluster(t, 2, platform.Options{Program: program})
	c.Cordon(0)
	ctx, api := t.Context(), c.Servers[1].Client()
	if _, err := api.CreateApp(ctx, hangar.AppCreate{Name: "web", Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.AllocateAddress(ctx, "web", hangar.AddressCreate{Kind: hangar.AddressSharedV4}); err != nil {
		t.Fatal(err)
	}
	config, err := hangar.ParseMachineConfig(fmt.Appendf(nil, `{"image":"web","services":[{"protocol":"tcp","internal_port":%d,
		"concurrency":{"type":"requests","soft_limit":%d,"hard_limit":%d},"ports":[{"port":80,"handlers":["http"]}]}]}`, platform.HTTPPort, limit, limit))
	if err != nil {
		t.Fatal(err)
	}
	m, err := api.CreateMachine(ctx, "web", hangar.MachineCreate{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	if m.Host != c.ID(1) {
		t.Fatalf("the Machine is on %s", m.Host)
	}
	if _, err := api.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}}); err != nil {
		t.Fatal(err)
	}
	for _, edge := range c.Servers {
		awaitAnswer(ctx, t, edge)
	}
	program.most.Store(0)
	var all sync.WaitGroup
	for _, edge := range c.Servers {
		for range clients {
			all.Go(func() {
				for range requests {
					if status, err := edge.Request(ctx, "web", "/"); status != http.StatusOK {
						t.Errorf("got %d, %v", status, err)
					}
				}
			})
		}
	}
	all.Wait()
	if most := program.most.Load(); most != limit {
		t.Errorf("the Machine had up to %d requests at once, with a limit of %d", most, limit)
	}
}

// awaitAnswer waits until an edge knows the App.
func awaitAnswer(ctx context.Context, t *testing.T, edge *platform.Platform) {
	t.Helper()
	for {
		status, err := edge.Request(ctx, "web", "/")
		if status == http.StatusOK {
			return
		}
		if pause.For(ctx, 10*time.Millisecond) != nil {
			t.Fatalf("got %d, %v", status, err)
		}
	}
}

package mesh

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
)

// TestSlowNames: a name whose lookup hangs or fails delays no other host, and is looked up again.
func TestSlowNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := make(chan struct{})
		var mu sync.Mutex
		asked := map[string]int{}
		m := New(Options{Host: "aaaaaaaa", Now: time.Now})
		m.lookup = func(ctx context.Context, _, name string) ([]netip.Addr, error) {
			mu.Lock()
			asked[name]++
			times := asked[name]
			mu.Unlock()
			switch {
			case name == "slow":
				select {
				case <-slow:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			case name == "unknown" && times == 1:
				return nil, errors.New("no such host")
			}
			return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
		}
		m.hosts = map[hangar.HostID]hangar.Host{
			"bbbbbbbb": {ID: "bbbbbbbb", MeshAddress: "slow:1"}, "cccccccc": {ID: "cccccccc", MeshAddress: "192.0.2.3:3"},
			"dddddddd": {ID: "dddddddd", MeshAddress: "fast:4"}, "eeeeeeee": {ID: "eeeeeeee", MeshAddress: "unknown:5"},
		}
		looks := newLookups(m.lookup)
		defer looks.work.Wait()
		locate := func(failing bool, want ...hangar.HostID) {
			t.Helper()
			found, err := m.locate(t.Context(), looks, nil)
			if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) || (err != nil) != failing {
				t.Errorf("located %v, %v; want %v, an error: %v", got, err, want, failing)
			}
			for id := range found {
				m.neighbor[id] = &neighbor{address: m.hosts[id].MeshAddress}
			}
		}
		locate(false, "cccccccc")
		for range 2 {
			looks.take(<-looks.found, m.Now())
		}
		locate(true, "dddddddd")
		locate(true) // neither is asked for again at once
		synctest.Wait()
		if asked["slow"] != 1 || asked["unknown"] != 1 {
			t.Errorf("asked %v", asked)
		}
		close(slow)
		looks.take(<-looks.found, m.Now())
		locate(true, "bbbbbbbb")
		time.Sleep(retryDelay)
		locate(true)
		looks.take(<-looks.found, m.Now())
		locate(false, "eeeeeeee")
	})
}

// TestMovedDuringTheLookup: the address that a host had before is not used.
func TestMovedDuringTheLookup(t *testing.T) {
	t.Parallel()
	m := New(Options{Host: "aaaaaaaa", Now: time.Now})
	looks := newLookups(nil)
	m.hosts["bbbbbbbb"] = hangar.Host{ID: "bbbbbbbb", MeshAddress: "192.0.2.9:9"}
	looks.running["bbbbbbbb"] = "before:1"
	looks.take(located{host: "bbbbbbbb", address: "before:1", at: netip.MustParseAddrPort("192.0.2.1:1")}, m.Now())
	found, err := m.locate(t.Context(), looks, nil)
	if err != nil || found["bbbbbbbb"] != netip.MustParseAddrPort("192.0.2.9:9") {
		t.Errorf("located %v, %v", found, err)
	}
}

package placement_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/placement"
)

const guestMB = 256

// cluster is hosts in memory, which promise memory and nothing else.
type cluster struct {
	hosts []hangar.Host
	// memory and free are in bytes, as are volumes: what is left for them, and promised.
	memory, free      map[hangar.HostID]int64
	volumes, promised map[hangar.HostID]int64

	image map[hangar.HostID]bool
	away  map[hangar.HostID]bool
	bids  atomic.Int64
}

// newCluster makes n hosts in zones, of three sizes.
func newCluster(n, zones int) *cluster {
	c := &cluster{memory: map[hangar.HostID]int64{}, free: map[hangar.HostID]int64{}, image: map[hangar.HostID]bool{}, away: map[hangar.HostID]bool{}}
	for i := range n {
		h := hangar.Host{ID: hangar.HostID(fmt.Sprintf("%08x", i)), Region: "loc", Zone: fmt.Sprint(i % zones), Memory: 16 << 30 << (i / zones % 3)}
		c.hosts = append(c.hosts, h)
		c.memory[h.ID], c.free[h.ID] = h.Memory, h.Memory
	}
	return c
}

func (c *cluster) bid(_ context.Context, id hangar.HostID, ask hangar.MachineAsk) (hangar.MachineBid, error) {
	c.bids.Add(1)
	if c.away[id] {
		return hangar.MachineBid{}, hangar.Errorf(hangar.CodeUnavailable, "", "cannot be reached")
	}
	bid := hangar.MachineBid{HostRoom: hangar.HostRoom{Memory: c.memory[id], Free: c.free[id], Volumes: c.volumes[id], VolumesPromised: c.promised[id]}, Image: c.image[id]}
	if bid.Free < int64(ask.Guest.MemoryMB)<<20 {
		bid.Refusal = "insufficient memory"
	}
	return bid, nil
}

func machine(n int) hangar.MachineID { return hangar.MachineID(fmt.Sprintf("%014x", n)) }

func (c *cluster) market(n int, load map[hangar.HostID]int) *placement.Market {
	return placement.New(c.hosts, load, string(machine(n)), hangar.MachineAsk{Guest: hangar.Guest{MemoryMB: guestMB}}, c.bid)
}

// place gives a Machine to the host that the market names first.
func (c *cluster) place(ctx context.Context, n int, load map[hangar.HostID]int) (hangar.HostID, error) {
	m := c.market(n, load)
	for h := range m.Hosts(ctx) {
		c.free[h.ID] -= guestMB << 20
		load[h.ID]++
		return h.ID, nil
	}
	return "", m.Err()
}

func first(t *testing.T, m *placement.Market) hangar.HostID {
	t.Helper()
	for h := range m.Hosts(t.Context()) {
		return h.ID
	}
	t.Fatal(m.Err())
	return ""
}

func TestOrderOfBids(t *testing.T) {
	c := newCluster(4, 2) // hosts 0 and 2 are in zone 0, 1 and 3 in zone 1
	c.image["00000000"] = true
	if got := first(t, c.market(1, map[hangar.HostID]int{})); got != "00000000" {
		t.Errorf("got %s, want the host with the image", got)
	}
	if got := first(t, c.market(1, map[hangar.HostID]int{"00000000": 1})); got != "00000001" && got != "00000003" {
		t.Errorf("got %s, want one in the other zone", got)
	}
	c.image["00000002"] = true
	if got := first(t, c.market(1, map[hangar.HostID]int{"00000001": 1, "00000003": 1, "00000000": 1})); got != "00000002" {
		t.Errorf("got %s, want the host without a machine of the app", got)
	}
	c.image = map[hangar.HostID]bool{}
	for id := range c.free {
		c.free[id] = 1 << 30
	}
	c.free["00000002"] = 60 << 30
	if got := first(t, c.market(1, map[hangar.HostID]int{})); got != "00000002" {
		t.Errorf("got %s, want the host with most left", got)
	}
}

// TestVolumes: the fewest of its name come first, then the largest share of the disk that is left.
// Those whose disk is too full come last, however few they have.
func TestVolumes(t *testing.T) {
	c := newCluster(40, 1)
	c.volumes, c.promised = map[hangar.HostID]int64{}, map[hangar.HostID]int64{}
	load := map[hangar.HostID]int{}
	for i, h := range c.hosts {
		c.volumes[h.ID], c.promised[h.ID] = int64(i)<<30, int64(40-i)<<30
		if i > 20 {
			load[h.ID] = 1
		}
	}
	c.away["00000012"] = true
	m := placement.New(c.hosts, load, "vol_1", hangar.MachineAsk{Volume: 10 << 30}, c.bid)
	got := slices.Collect(m.Hosts(t.Context()))
	if len(got) != 39 {
		t.Fatalf("%d hosts", len(got))
	}
	for i, h := range got {
		if full := c.volumes[h.ID] < 10<<30; full != (i >= 29) {
			t.Errorf("host %s is number %d, with %d bytes left", h.ID, i, c.volumes[h.ID])
		}
		if i > 0 && i < 29 && load[got[i-1].ID] > load[h.ID] {
			t.Errorf("host %s comes after one with more volumes of the name", h.ID)
		}
	}
	m = placement.New(c.hosts[10:15], nil, "vol_1", hangar.MachineAsk{Volume: 10 << 30}, c.bid)
	for i, h := range slices.Collect(m.Hosts(t.Context())) {
		if want := c.hosts[14-i].ID; h.ID != want {
			t.Errorf("number %d is %s, want %s", i, h.ID, want)
		}
		m.Refuse(h.ID, hangar.Errorf(hangar.CodeConflict, hangar.ReasonDiskFull, "the disk is full"))
	}
	err := m.Err()
	if want := "no capacity: 5 hosts, such as 0000000e: the disk is full"; hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestHostsThatDoNotBid(t *testing.T) {
	c := newCluster(3, 1)
	c.away["00000000"] = true
	c.free["00000001"] = 0
	m := c.market(1, map[hangar.HostID]int{})
	if got := slices.Collect(m.Hosts(t.Context())); len(got) != 1 || got[0].ID != "00000002" {
		t.Errorf("got %v", got)
	}
	m.Refuse("00000002", hangar.Errorf(hangar.CodeConflict, hangar.ReasonDiskFull, "the disk is full"))
	err := m.Err()
	for _, want := range []string{"host 00000000: cannot be reached", "host 00000001: insufficient memory", "host 00000002: the disk is full"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
	if hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity || hangar.CodeOf(err) != hangar.CodeConflict {
		t.Errorf("got %v", err)
	}
}

func TestNoHostIsReached(t *testing.T) {
	c := newCluster(3, 1)
	for _, h := range c.hosts {
		c.away[h.ID] = true
	}
	m := c.market(1, map[hangar.HostID]int{})
	if got := slices.Collect(m.Hosts(t.Context())); len(got) != 0 || hangar.CodeOf(m.Err()) != hangar.CodeUnavailable {
		t.Errorf("got %v %v", got, m.Err())
	}
}

// TestSingleHostIsNotAsked: it says by itself whether it takes the Machine, and why it does not.
func TestSingleHostIsNotAsked(t *testing.T) {
	c := newCluster(1, 1)
	m := c.market(1, map[hangar.HostID]int{})
	if got := slices.Collect(m.Hosts(t.Context())); len(got) != 1 || c.bids.Load() != 0 {
		t.Errorf("got %v after %d bids", got, c.bids.Load())
	}
	refusal := hangar.Errorf(hangar.CodeConflict, hangar.ReasonDiskFull, "the disk is full")
	if m.Refuse("00000000", refusal); m.Err() != error(refusal) { //nolint:errorlint // the very one
		t.Errorf("got %v", m.Err())
	}
}

// TestTheLastHostIsFound: of many hosts all but one are full.
func TestTheLastHostIsFound(t *testing.T) {
	c := newCluster(1000, 3)
	for id := range c.free {
		c.free[id] = 0
	}
	c.free["000001ff"] = 1 << 30
	if got := first(t, c.market(1, map[hangar.HostID]int{})); got != "000001ff" {
		t.Errorf("got %s", got)
	}
	c.free["000001ff"] = 0
	m := c.market(2, map[hangar.HostID]int{})
	if got := slices.Collect(m.Hosts(t.Context())); len(got) != 0 || !strings.Contains(m.Err().Error(), "1000 hosts") {
		t.Errorf("got %v %v", got, m.Err())
	}
}

// simulate places machines of apps, and returns the load of each app.
func simulate(tb testing.TB, c *cluster, apps, machines int, decided func(time.Duration)) []map[hangar.HostID]int {
	tb.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	loads := make([]map[hangar.HostID]int, apps)
	for i := range loads {
		loads[i] = map[hangar.HostID]int{}
	}
	for n := range machines {
		began := time.Now()
		if _, err := c.place(tb.Context(), n, loads[random.IntN(apps)]); err != nil {
			tb.Fatal(err)
		}
		decided(time.Since(began))
	}
	return loads
}

// TestSpreadAndFill: in a large cluster, no App has two Machines on a host, its zones are even, hosts
// are filled by their size, and few are asked.
func TestSpreadAndFill(t *testing.T) {
	const machines = 10_000
	c := newCluster(300, 3)
	loads := simulate(t, c, 200, machines, func(time.Duration) {})
	for i, load := range loads {
		zones := map[string]int{}
		for _, h := range c.hosts {
			if load[h.ID] > 1 {
				t.Errorf("app %d has %d machines on host %s", i, load[h.ID], h.ID)
			}
			zones[h.Zone] += load[h.ID]
		}
		if most, least := max(zones["0"], zones["1"], zones["2"]), min(zones["0"], zones["1"], zones["2"]); most-least > 1 {
			t.Errorf("app %d has %v machines in its zones", i, zones)
		}
	}
	var total, free int64
	for _, h := range c.hosts {
		total, free = total+h.Memory, free+c.free[h.ID]
	}
	mean := float64(total-free) / float64(total)
	for _, h := range c.hosts {
		if fill := float64(h.Memory-c.free[h.ID]) / float64(h.Memory); fill < mean/2 || fill > mean*2 {
			t.Errorf("host %s of %d GiB is filled to %.2f, the mean is %.2f", h.ID, h.Memory>>30, fill, mean)
		}
	}
	if asked := c.bids.Load(); asked > 10*machines {
		t.Errorf("%d hosts were asked for %d machines", asked, machines)
	}
}

// BenchmarkDecision places 100,000 Machines on 1,000 hosts and reports how long the slowest hundredth
// of the decisions took, without the network.
func BenchmarkDecision(b *testing.B) {
	for b.Loop() {
		c := newCluster(1000, 3)
		var times []time.Duration
		simulate(b, c, 2000, 100_000, func(d time.Duration) { times = append(times, d) })
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
		b.ReportMetric(float64(c.bids.Load())/float64(len(times)), "bids/op")
	}
}

package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hangar-platform/hangar"
)

// TestRates: a client gets all its answers while no other client waits, and its share otherwise.
func TestRates(t *testing.T) {
	one, same, other := netip.MustParseAddr("fdaa:0:1:a7b:7d:0:1:2"), netip.MustParseAddr("fdaa:0:1:a7b:7d:0:1:9"), netip.MustParseAddr("172.16.0.9")
	var c clients
	now := time.Unix(1000, 0)
	// ask returns how many of n questions in a second are answered.
	ask := func(a netip.Addr, n int, queued bool) int {
		answered := 0
		for range n {
			now = now.Add(time.Second / time.Duration(n))
			if c.allow(a, now, queued) {
				answered++
			}
		}
		return answered
	}
	if got := ask(one, FairRate-1, true); got != FairRate-1 {
		t.Errorf("%d below the share", got)
	}
	if got := ask(one, 20*FairRate, false); got != 20*FairRate {
		t.Errorf("%d of %d although no other client waits", got, 20*FairRate)
	}
	if got := ask(one, 20*FairRate, true); got > 2*FairRate {
		t.Errorf("%d although others wait", got)
	}
	if got := ask(same, 20*FairRate, true); got > FairRate+1 {
		t.Errorf("%d for another address of the same Machine", got)
	}
	if got := ask(one, 10*FairRate, false); got > FairRate+1 {
		t.Errorf("%d of one who floods on", got)
	}
	if got := ask(other, FairRate-1, true); got != FairRate-1 {
		t.Errorf("%d of another client", got)
	}
	now = now.Add(restraint)
	if got := ask(one, 10*FairRate, false); got != 10*FairRate {
		t.Errorf("%d after the others have gone", got)
	}
	ask(one, 2*MaxRate, false)
	if got := ask(one, 2*MaxRate, false); got > MaxRate+1 {
		t.Errorf("%d is more than any client may", got)
	}

	c = clients{}
	for i := range MaxAsking + 1 {
		if ok := c.ask(one, now); ok != (i < MaxAsking) {
			t.Fatalf("open question %d: %t", i, ok)
		}
	}
	c.sweep(now.Add(time.Hour))
	if len(c.all) != 1 {
		t.Error("a client with open questions was forgotten")
	}
	for range MaxAsking {
		c.asked(one, now)
	}
	granted := 0
	for range 2 * MaxMisses {
		if c.ask(one, now) {
			granted++
			c.asked(one, now)
		}
	}
	if granted != MaxMisses-MaxAsking {
		t.Errorf("%d questions passed on in a moment", granted+MaxAsking)
	}
	c.sweep(now.Add(time.Hour))
	if len(c.all) != 0 {
		t.Error("an idle client is remembered")
	}
}

// TestCacheIsBounded: the most recently used entries stay.
func TestCacheIsBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	put := func(c *cache, key string, size int) {
		c.put(&reply{key: key, wire: make([]byte, size), expires: now.Add(time.Minute)})
	}
	has := func(c *cache) string {
		var keys []string
		for _, key := range []string{"a", "b", "c", "d"} {
			if c.replies.Contains(key) {
				keys = append(keys, key)
			}
		}
		return strings.Join(keys, "")
	}
	few := newCache(2, 1<<20)
	put(few, "a", 1)
	put(few, "b", 1)
	if few.get([]byte("a"), now) == nil {
		t.Fatal("a is gone")
	}
	put(few, "c", 1)
	put(few, "c", 1)
	if has(few) != "ac" {
		t.Errorf("%s instead of ac", has(few))
	}
	if few.get([]byte("a"), now.Add(time.Minute+MaxStale+time.Second)) != nil || has(few) != "c" {
		t.Errorf("%s after a day and more", has(few))
	}
	small := newCache(100, 3*overhead)
	put(small, "a", overhead)
	put(small, "b", overhead)
	if has(small) != "b" || small.held > small.bytes {
		t.Errorf("%s in %d bytes", has(small), small.held)
	}
}

// TestKeptNodesAreBounded: when the memory is full, all nodes are forgotten.
func TestKeptNodesAreBounded(t *testing.T) {
	var k nodes
	big := &node{text: records{wire: make([]byte, maxKept/3)}}
	for _, key := range []string{"a", "a", "b", "c"} {
		k.put([]byte(key), big)
		if k.bytes > maxKept {
			t.Fatalf("%d bytes", k.bytes)
		}
	}
	if k.get([]byte("a")) != nil || k.get([]byte("c")) == nil {
		t.Error("the wrong ones are kept")
	}
}

// TestFlood: a client that floods loses its own questions and no other client's. A benchmark
// measures the times.
func TestFlood(t *testing.T) {
	s := serverOf(t, rowsOf("web", 1, 4))
	s.config.Listen = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}
	s.config.Owner = func(netip.Addr) (hangar.MachineID, hangar.NetworkID, bool) { return "", 1, true }
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended, flooded := make(chan error), make(chan struct{})
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		cancel()
		<-flooded
		<-ended
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	connect := func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
		conn, err := d.DialContext(t.Context(), "udp", s.Addrs()[0].String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	msg := packed(t, "web.internal", dns.TypeAAAA, nil)
	go func() {
		defer close(flooded)
		conn := connect("127.0.7.66")
		defer conn.Close()
		// Send ten times the fair rate. The server can read that much even under the race detector,
		// so the server and not the kernel decides whose questions are dropped.
		for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
			for range FairRate / 100 {
				_, _ = conn.Write(msg)
			}
		}
	}()
	conn := connect("127.0.7.1")
	defer conn.Close()
	// On a busy machine the kernel may have no room for a question before the server has seen it.
	// So repeat a lost question, as resolvers do, but allow only a few losses.
	const questions, maxLost = 500, 5
	var took []time.Duration
	lost := 0
	buf := make([]byte, 4096)
	for len(took) < questions {
		began := time.Now()
		if _, err := conn.Write(msg); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(began.Add(2 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if lost++; lost > maxLost {
				t.Fatalf("%d of the first %d questions were lost", lost, lost+len(took))
			}
			continue
		}
		if err != nil || n < 100 {
			t.Fatalf("question %d: %d bytes, %v", len(took), n, err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("half within %s, p99 %s", took[questions/2], took[questions*99/100])
}

// Clients on no network cannot get more by using many addresses.
func TestStrangersAreOneClient(t *testing.T) {
	s := serverOf(t, rowsOf("web", 1, 1))
	now := time.Now()
	answered := 0
	for i := range 2 * MaxRate {
		a := [16]byte{0: 0xfe, 1: 0x80, 11: byte(i >> 16), 12: byte(i >> 8), 13: byte(i)}
		if s.clients.allow(s.asker(netip.AddrFrom16(a)).client(), now, false) {
			answered++
		}
	}
	if answered != MaxRate || len(s.clients.all) != 1 {
		t.Errorf("%d questions were let through, for %d clients", answered, len(s.clients.all))
	}
}

// TestLookupsOfOneNetwork: the Machines of one network, however many ask, leave lookups for those of others.
func TestLookupsOfOneNetwork(t *testing.T) {
	s := serverOf(t, nil)
	hanging := make(chan struct{})
	s.resolver.upstreams = func() []netip.AddrPort {
		<-hanging
		return nil
	}
	defer s.resolver.lookups.Wait()
	defer close(hanging)
	var q query
	if rcode, ok := q.parse(packed(t, "www.example.com", dns.TypeAAAA, nil)); !ok || rcode != dns.RcodeSuccess {
		t.Fatal(rcode, ok)
	}
	lookUp := func(from hangar.NetworkID, n int) error {
		_, err := s.resolver.join(t.Context(), from, fmt.Sprint(from, n), &q, time.Now())
		return err
	}
	begun := 0
	for begun < 2*maxLookups && lookUp(1, begun) == nil {
		begun++
	}
	if begun != maxLookups/2 {
		t.Errorf("one network has %d lookups in flight", begun)
	}
	for n := range 10 {
		if err := lookUp(2, n); err != nil {
			t.Fatalf("lookup %d of another network: %v", n, err)
		}
	}
}

// TestStreamsOfOneNetwork: the Machines of one network, however many, leave connections to those of others.
func TestStreamsOfOneNetwork(t *testing.T) {
	s := serverOf(t, nil)
	open := newStreams()
	machine := func(network, n byte) asker {
		return s.asker(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0xaa, 5: network, 12: n, 15: 2}))
	}
	var taken []asker
	for n := range 256 {
		for who := machine(1, byte(n)); open.take(who); {
			taken = append(taken, who)
		}
	}
	if len(taken) != maxStreams/2 {
		t.Errorf("one network has %d connections", len(taken))
	}
	for i := range maxClientStreams {
		who := machine(2, 1)
		if !open.take(who) {
			t.Fatalf("connection %d of another network is refused", i)
		}
		defer open.leave(who)
	}
	for _, who := range taken {
		open.leave(who)
	}
	if !open.take(machine(1, 255)) || open.clients.Open() != maxClientStreams+1 || open.networks.Open() != maxClientStreams+1 {
		t.Errorf("%d connections of clients and %d of networks are left", open.clients.Open(), open.networks.Open())
	}
}

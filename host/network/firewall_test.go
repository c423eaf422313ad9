package network

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
)

// installed is the content of the instance's table: the rules of each chain and the elements of
// each set.
func installed(tb testing.TB, n *Network) (text string, rules int) {
	tb.Helper()
	c, err := nftables.New()
	must(err)
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	must(err)
	var lines []string
	for _, chain := range chains {
		if chain.Table.Name != n.table().Name {
			continue
		}
		all, err := c.GetRules(chain.Table, chain)
		must(err)
		rules += len(all)
		for i, r := range all {
			lines = append(lines, fmt.Sprintf("%s %02d %d", chain.Name, i, len(r.Exprs)))
		}
	}
	sets, err := c.GetSets(n.table())
	if err != nil {
		return "", 0
	}
	for _, set := range sets {
		elements, err := c.GetSetElements(set)
		must(err)
		for _, e := range elements {
			lines = append(lines, fmt.Sprintf("%s %x %t", set.Name, e.Key, e.IntervalEnd))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), rules
}

// networksIn is the kernel's set of networks that are on the host.
func networksIn(tb testing.TB, n *Network) []hangar.NetworkID {
	tb.Helper()
	c, err := nftables.New()
	must(err)
	elements, err := c.GetSetElements(n.networks())
	must(err)
	var all []hangar.NetworkID
	for _, e := range elements {
		for id := hangar.NetworkID(0); ; id++ {
			if bytes.Equal(networkElements([]hangar.NetworkID{id})[0].Key, e.Key) {
				all = append(all, id)
				break
			}
		}
	}
	slices.Sort(all)
	return all
}

// warnings counts the logged warnings.
type warnings struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *warnings) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(b)
}

func (w *warnings) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.b.String(), "another program changed the firewall")
}

// Every foreign change of the table is undone and logged.
func TestTableIsPutBack(t *testing.T) {
	n := newNetwork(t, "back")
	log := &warnings{}
	n.filter.log = slog.New(slog.NewTextHandler(log, nil))
	openIt(t, n)
	must(n.AddNetwork(t.Context(), 77)) // a member that only memory knows of
	one, two := attach(t, n, endpointOf(5, 1)), attach(t, n, endpointOf(6, 2))
	openToAll(t, one)
	openToAll(t, two)
	before, _ := installed(t, n)
	times := 0
	for name, change := range map[string]func(*nftables.Conn){
		"the whole ruleset": func(c *nftables.Conn) { c.FlushRuleset() },
		"the table":         func(c *nftables.Conn) { c.DelTable(n.table()) },
		"the rules":         func(c *nftables.Conn) { c.FlushTable(n.table()) },
		"a set":             func(c *nftables.Conn) { c.FlushSet(&nftables.Set{Table: n.table(), Name: "devices"}) },
		"a rule in addition": func(c *nftables.Conn) {
			chain := &nftables.Chain{Table: n.table(), Name: "forward"}
			c.InsertRule(&nftables.Rule{Table: n.table(), Chain: chain, Exprs: accept()})
		},
	} {
		c, err := nftables.New()
		must(err)
		change(c)
		must(c.Flush())
		times++
		deadline := time.Now().Add(time.Minute)
		for log.count() < times {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not put back", name)
			}
			runtime.Gosched()
		}
		if after, _ := installed(t, n); after != before {
			t.Errorf("%s: the table was\n%s\nand is\n%s", name, before, after)
		}
		within(t, one, func() error {
			if got := answers(two.IPv6, ""); got != "" {
				t.Errorf("%s: another network answers %s", name, got)
			}
			return nil
		})
	}
	// Other programs' tables do not affect ours, and ours do not affect theirs.
	c, err := nftables.New()
	must(err)
	c.AddTable(&nftables.Table{Name: "theirs", Family: nftables.TableFamilyINet})
	must(c.Flush())
	c.DelTable(&nftables.Table{Name: "theirs", Family: nftables.TableFamilyINet})
	must(c.Flush())
	must(n.installRules())
	must(n.Detach(endpointOf(6, 2).ID))
	must(n.Close()) // which waits for the watcher
	if got := log.count(); got != times {
		t.Errorf("put back %d times, want %d", got, times)
	}
	must(n.Open(t.Context()))
}

// While the table is replaced repeatedly, connections continue, forbidden packets are blocked and
// allowed ones pass.
func TestReplacingTheTableLeavesNoGap(t *testing.T) {
	w := newWorld(t)
	box := openMailbox(t, w.stranger, netip.AddrPortFrom(netip.IPv6Unspecified(), 9999))
	var server net.Listener
	within(t, w.two, func() (err error) {
		server, err = net.Listen("tcp6", ":0")
		return err
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := server.Accept()
		if err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	var c net.Conn
	within(t, w.one, func() (err error) {
		c, err = net.Dial("tcp", netip.AddrPortFrom(w.two.IPv6, uint16(server.Addr().(*net.TCPAddr).Port)).String())
		return err
	})
	// A Machine that tries without a pause.
	ctx, stop := context.WithCancel(t.Context())
	var tries sync.WaitGroup
	tries.Go(func() {
		within(t, w.one, func() error {
			for _, to := range []netip.Addr{w.stranger.IPv6, w.stranger.IPv4} {
				u, err := net.Dial("udp", netip.AddrPortFrom(to, 9999).String())
				if err != nil {
					return err
				}
				defer u.Close()
				tries.Go(func() {
					for ctx.Err() == nil {
						_, _ = io.WriteString(u, "forbidden") // refused, mostly
					}
				})
			}
			<-ctx.Done()
			return nil
		})
	})
	// The host may send everything, and gets an error if a packet is refused.
	tries.Go(func() {
		within(t, theHost(), func() error {
			u, err := net.Dial("udp", netip.AddrPortFrom(w.two.IPv6, probePort).String())
			if err != nil {
				return err
			}
			defer u.Close()
			for ctx.Err() == nil && err == nil {
				_, err = io.WriteString(u, "allowed")
			}
			return err
		})
	})
	word := []byte("still here")
	for i := range 40 {
		must(w.n.installRules())
		must(c.SetDeadline(time.Now().Add(time.Minute)))
		if _, err := c.Write(word); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, len(word))); err != nil {
			t.Fatalf("after %d times: %v", i, err)
		}
		if i%10 == 0 { // as when the daemon starts again
			must(w.n.Close())
			must(w.n.Open(t.Context()))
		}
	}
	stop()
	tries.Wait()
	must(c.Close())
	must(server.Close())
	<-done
	within(t, theHost(), func() error { // to whom it is open
		u, err := net.Dial("udp", netip.AddrPortFrom(w.stranger.IPv6, 9999).String())
		if err != nil {
			return err
		}
		defer u.Close()
		_, err = io.WriteString(u, "last")
		return err
	})
	if got := box.until(t, "last"); len(got) != 0 {
		t.Errorf("%d datagrams arrived: %q…", len(got), got[0])
	}
}

// A server of many Apps has more addresses and ports than one message holds.
func TestManyAddresses(t *testing.T) {
	const many = 20_000
	n := open(t, "many")
	n.membership.Lock()
	for i := range uint16(many) {
		n.ingress[hangar.FlycastAddress(5, uint64(i))] = struct{}{}
		n.ports[OpenPort{At: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), 1+i)}] = struct{}{}
	}
	n.membership.Unlock()
	must(n.installRules())
	c, err := nftables.New()
	must(err)
	for _, set := range []*nftables.Set{ingressSet(n.table()), portSets(n.table())[1].set} {
		elements, err := c.GetSetElements(set)
		must(err)
		if len(elements) != many {
			t.Errorf("the set %s has %d elements, want %d", set.Name, len(elements), many)
		}
	}
	// The watcher must receive all events, or it would take its own lost ones for changes by
	// another program.
	table, err := os.ReadFile("/proc/self/net/netlink")
	must(err)
	for line := range strings.Lines(string(table)) {
		// sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
		f := strings.Fields(line)
		if f[1] == strconv.Itoa(unix.NETLINK_NETFILTER) && f[8] != "0" {
			t.Errorf("a socket has lost %s events", f[8])
		}
	}
}

// A thousand networks need no more rules than none. Adding a Machine only changes the table when it
// joins its network.
func TestRulesDoNotGrow(t *testing.T) {
	n := open(t, "constant")
	_, before := installed(t, n)
	for id := range hangar.NetworkID(1000) {
		must(n.AddNetwork(t.Context(), id+1))
	}
	for i := range uint64(20) {
		attach(t, n, endpointOf(hangar.NetworkID(i+1), i))
	}
	if _, after := installed(t, n); after != before {
		t.Errorf("%d rules, there were %d", after, before)
	}
	if got := len(networksIn(t, n)); got != 1000 {
		t.Errorf("%d networks in the set", got)
	}
	for id := range hangar.NetworkID(1000) {
		must(n.RemoveNetwork(t.Context(), id+1))
	}
	if got := networksIn(t, n); len(got) != 20 { // those of Machines
		t.Errorf("the set has %v", got)
	}
}

// history changes one instance step by step, and checks its invariants.
type history struct {
	n    *Network
	here map[hangar.MachineID]Endpoint // what is attached
	gone []Endpoint
	used map[netip.Addr]hangar.MachineID // every address that ever was
	peer map[hangar.NetworkID]int        // what AddNetwork did since Open
}

func (h *history) check(t *rapid.T) {
	want := map[hangar.NetworkID]bool{}
	for id, e := range h.here {
		want[networkOf(e.IPv6)] = true
		if owner, network, ok := h.n.Owner(e.IPv6); !ok || owner != id || network != networkOf(e.IPv6) {
			t.Fatalf("%s is of %q, network %d, want %q", e.IPv6, owner, network, id)
		}
	}
	for id := range h.peer {
		want[id] = true
	}
	for _, e := range h.gone {
		if owner, _, ok := h.n.Owner(e.IPv6); ok {
			t.Fatalf("%s of a machine that is gone is %q's", e.IPv6, owner)
		}
	}
	if got := networksIn(&testing.T{}, h.n); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
		t.Fatalf("the set has %v, want %v", got, want)
	}
}

// In any history, addresses are never used twice, and the kernel's set has exactly the networks
// that are here.
func TestHistories(t *testing.T) {
	// A history takes a third of a second; more are run with -rapid.checks.
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		must(f.Value.Set("20"))
		t.Cleanup(func() { must(f.Value.Set(f.DefValue)) })
	}
	n := open(t, "history")
	attach(t, n, endpointOf(5, 0)) // opens files that stay open
	must(n.Detach(endpointOf(5, 0).ID))
	settle(t, n)
	before := hostState(t)
	next := uint64(1)
	used := map[netip.Addr]hangar.MachineID{}
	rapid.Check(t, func(r *rapid.T) {
		h := &history{n: n, here: map[hangar.MachineID]Endpoint{}, used: used, peer: map[hangar.NetworkID]int{}}
		ctx := t.Context()
		defer func() { // also when the history is a dead end
			for id := range h.here {
				must(n.Detach(id))
			}
			for id, times := range h.peer {
				for range times {
					must(n.RemoveNetwork(ctx, id))
				}
			}
		}()
		anyEndpoint := func(r *rapid.T) Endpoint {
			if len(h.here) == 0 {
				r.Skip("there is no endpoint")
			}
			return h.here[rapid.SampledFrom(slices.Sorted(maps.Keys(h.here))).Draw(r, "machine")]
		}
		network := rapid.Custom(func(r *rapid.T) hangar.NetworkID {
			return hangar.NetworkID(rapid.IntRange(1, 4).Draw(r, "network"))
		})
		r.Repeat(map[string]func(*rapid.T){
			"create": func(r *rapid.T) {
				e := endpointOf(network.Draw(r, "of"), next)
				next++
				if other, ok := h.used[e.IPv6]; ok {
					r.Fatalf("%s was %s's", e.IPv6, other)
				}
				if _, err := n.Attach(ctx, e); err != nil {
					r.Fatal(err)
				}
				h.used[e.IPv6], h.here[e.ID] = e.ID, e
			},
			"start": func(r *rapid.T) {
				if _, err := n.Attach(ctx, anyEndpoint(r)); err != nil {
					r.Fatal(err)
				}
			},
			"destroy": func(r *rapid.T) {
				e := anyEndpoint(r)
				if err := n.Detach(e.ID); err != nil {
					r.Fatal(err)
				}
				delete(h.here, e.ID)
				h.gone = append(h.gone, e)
			},
			"restart": func(*rapid.T) {
				must(n.Close())
				must(n.Open(ctx))
				clear(h.peer)
				// The kernel may still have devices of removed Machines: the agent sweeps them.
				ids, err := n.List(ctx)
				must(err)
				for _, id := range ids {
					if _, ok := h.here[id]; !ok {
						must(n.Detach(id))
					}
				}
			},
			"peer": func(r *rapid.T) {
				id := network.Draw(r, "of")
				must(n.AddNetwork(ctx, id))
				h.peer[id]++
			},
			"no peer": func(r *rapid.T) {
				if len(h.peer) == 0 {
					r.Skip("there is none")
				}
				id := rapid.SampledFrom(slices.Sorted(maps.Keys(h.peer))).Draw(r, "of")
				must(n.RemoveNetwork(ctx, id))
				if h.peer[id]--; h.peer[id] == 0 {
					delete(h.peer, id)
				}
			},
			"": h.check,
		})
	})
	settle(t, n)
	if after := hostState(t); after != before {
		t.Errorf("host before:\n%s\nafter:\n%s", before, after)
	}
	if got := networksIn(t, n); len(got) != 0 {
		t.Errorf("the set has %v", got)
	}
}

// BenchmarkJoin measures the cost of the rules when the first Machine of a network comes to the
// host and leaves it.
func BenchmarkJoin(b *testing.B) {
	n := open(b, "bench")
	for b.Loop() {
		must(n.AddNetwork(b.Context(), 5))
		must(n.RemoveNetwork(b.Context(), 5))
	}
}

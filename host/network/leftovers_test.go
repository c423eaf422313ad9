package network

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// A namespace that something still holds open keeps its device, which must be reported.
func TestHeldNamespaceStaysListed(t *testing.T) {
	n := open(t, "held")
	e := endpointOf(5, 1)
	ns, err := openNetNS(attach(t, n, e).NetNS)
	must(err)
	defer ns.Close()
	must(n.Detach(e.ID))
	for range 2 {
		if ids, err := n.List(t.Context()); err != nil || !slices.Equal(ids, []hangar.MachineID{e.ID}) {
			t.Errorf("list: %v, %v", ids, err)
		}
		must(n.Close())
		must(n.Open(t.Context()))
	}
	must(n.Detach(e.ID))
	if ids, err := n.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("list after the second time: %v, %v", ids, err)
	}
}

func TestNothingLeaks(t *testing.T) {
	n := open(t, "leak")
	cycle := func(i uint64) {
		e := endpointOf(5, i)
		a := attach(t, n, e)
		scrape(t, a)
		attach(t, n, e)
		for range 1 + i%2 {
			must(n.Detach(e.ID))
		}
	}
	cycle(1) // the runtime opens files of its own on first use
	settle(t, n)
	before, files := hostState(t), openFiles()
	for i := range uint64(100) {
		cycle(i)
	}
	settle(t, n)
	if now := openFiles(); now > files {
		t.Errorf("%d files are open, and %d before", now, files)
	}
	if after := hostState(t); after != before {
		t.Errorf("host before:\n%s\nafter:\n%s", before, after)
	}
	if len(n.attached)+len(n.numbers)+len(n.taken)+len(n.leaving)+len(n.members) != 0 {
		t.Errorf("remembered: %v %v %v %v %v", n.attached, n.numbers, n.taken, n.leaving, n.members)
	}
}

// Nothing is remembered of detached Machines, even if no caller lists what is left.
func TestDetachedAreForgotten(t *testing.T) {
	n := open(t, "forget")
	const machines = 20
	var last Endpoint
	for i := range uint64(machines) {
		last = endpointOf(5, i)
		attach(t, n, last)
		must(n.Detach(last.ID))
	}
	for deadline := time.Now().Add(time.Minute); len(n.leaving) > 0; time.Sleep(time.Millisecond) {
		must(n.Detach(last.ID))
		if time.Now().After(deadline) {
			t.Fatalf("remembered: %v", n.leaving)
		}
	}
}

func TestHalfMadeIsListedAndRemoved(t *testing.T) {
	e := endpointOf(5, 1)
	for name, makeHalf := range map[string]func(n *Network){
		"only the file": func(n *Network) {
			must(os.WriteFile(n.netnsPath(e.ID), nil, 0o444))
		},
		"only the namespace": func(n *Network) {
			must(makeNetNS(n.netnsPath(e.ID)))
		},
		"bound twice": func(n *Network) {
			must(makeNetNS(n.netnsPath(e.ID)))
			must(unix.Mount(n.netnsPath(e.ID), n.netnsPath(e.ID), "", unix.MS_BIND, ""))
		},
		"no alias": func(n *Network) {
			a := attach(t, n, e)
			l, err := netlink.LinkByName(linkName(n.prefix, e.Number))
			must(err)
			must(netlink.LinkSetAlias(l, "\x00"))
			scrape(t, a)
		},
		"no device": func(n *Network) {
			attach(t, n, e)
			must(n.deleteLink(linkName(n.prefix, e.Number)))
		},
		"no namespace": func(n *Network) {
			a := attach(t, n, e)
			ns, err := openNetNS(a.NetNS) // a process that still is in it
			must(err)
			t.Cleanup(func() { must(ns.Close()) })
			_, err = removeNetNS(a.NetNS)
			must(err)
		},
	} {
		for what, finish := range map[string]func(n *Network){
			"detach": func(n *Network) { must(n.Detach(e.ID)) },
			"attach": func(n *Network) {
				if got := look(t, attach(t, n, e)); len(got.Addrs) != 3 || len(got.Routes) != 5 {
					t.Errorf("attached: %+v", got)
				}
				must(n.Detach(e.ID))
			},
			"remove": func(n *Network) {
				must(n.Remove(t.Context()))
				must(n.Close())
				must(n.Open(t.Context()))
			},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				n := open(t, "half")
				before := strings.Replace(hostState(t), "eth0", "", 1)
				makeHalf(n)
				must(n.Close())
				must(n.Open(t.Context())) // the daemon was killed and comes back
				if ids, err := n.List(t.Context()); err != nil || !slices.Equal(ids, []hangar.MachineID{e.ID}) {
					t.Errorf("list: %v, %v", ids, err)
				}
				finish(n)
				settle(t, n)
				if what != "remove" { // which changes the numbers of devices in routes
					if after := hostState(t); after != before {
						t.Errorf("host before:\n%s\nafter:\n%s", before, after)
					}
				}
			})
		}
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	runDir(t)
	before := hostState(t)
	n := open(t, "gone")
	for i := range uint64(5) {
		attach(t, n, endpointOf(5, i))
	}
	must(n.Close())
	stranger := newNetwork(t, "gone") // hangar down does not open what it removes
	for range 2 {
		must(stranger.Remove(t.Context()))
	}
	if after := hostState(t); after != before {
		t.Errorf("host before:\n%s\nafter:\n%s", before, after)
	}
}

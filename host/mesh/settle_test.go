package mesh

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/wireguard/link"
)

// moody is a device that fails while it is told to.
type moody struct {
	device
	fails bool
	leads []netip.Prefix
}

var errMood = errors.New("not now")

func (d *moody) Reach(hangar.PeerKey, netip.AddrPort) error { return nil }

func (d *moody) Lead(_ hangar.PeerKey, add, _ []netip.Prefix, _ netip.Addr) error {
	if d.fails {
		return errMood
	}
	d.leads = append(d.leads, add...)
	return nil
}

func (d *moody) Forget(hangar.PeerKey, []netip.Prefix) error {
	d.leads = nil
	if d.fails {
		return errMood
	}
	return nil
}

func (d *moody) Gone() <-chan struct{} { return nil }

// A host whose routes can be neither changed nor removed is set up again once they can.
func TestFailuresOfTheDevice(t *testing.T) {
	t.Parallel()
	const own, other hangar.HostID = "aaaaaaaa", "bbbbbbbb"
	m := New(Options{Host: own, Now: time.Now})
	d := &moody{}
	m.link = d
	m.hosts[other] = hangar.Host{ID: other, MeshAddress: "192.0.2.1:1", MeshKey: link.PrivateKey{1}.Public()}
	looks := newLookups(nil)
	want := []netip.Prefix{netip.PrefixFrom(network.HostAddress(other), 128)}
	join := func(id hangar.NetworkID) {
		for _, host := range []hangar.HostID{own, other} {
			m.members.add(member{host, id}, 1)
		}
		m.changed[member{other, id}] = struct{}{}
		want = append(want, network.Prefix(id, other))
	}
	for _, id := range []hangar.NetworkID{5, 6} {
		join(id)
		d.fails = id == 6
		for range 2 {
			if _, err := m.reconcile(t.Context(), looks, nil); errors.Is(err, errMood) != d.fails {
				t.Fatalf("reconciled: %v", err)
			}
		}
	}
	d.fails = false
	for range 2 {
		if _, err := m.reconcile(t.Context(), looks, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range want {
		if !slices.Contains(d.leads, p) {
			t.Errorf("%s leads nowhere, only %s do", p, d.leads)
		}
	}
}

package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/wireguard/link"
)

var errFeedEnded = errors.New("feed ended")

// settle keeps the device as the feeds want it, until ctx ends.
func (m *Mesh) settle(ctx context.Context) error {
	tick := time.NewTicker(lookDelay)
	defer tick.Stop()
	told, silent := "", map[hangar.HostID]bool{}
	looks := newLookups(m.lookup)
	defer looks.work.Wait()
	for {
		gone, err := m.reconcile(ctx, looks, silent)
		clear(silent)
		call, due := m.call()
		err = errors.Join(err, due)
		var retry <-chan time.Time
		text := ""
		if err != nil {
			retry, text = time.After(retryDelay), err.Error()
		}
		if text != told && text != "" && ctx.Err() == nil {
			m.Log.ErrorContext(ctx, "the private network does not span all hosts, will be tried again", slog.Any("error", err))
		}
		told = text
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.wake:
		case <-call:
		case <-retry:
		case found := <-looks.found:
			looks.take(found, m.Now())
		case <-gone:
			m.mu.Lock()
			m.closeLink()
			m.mu.Unlock()
			m.Log.WarnContext(ctx, "device of the mesh is gone, creating it again", slog.String("device", m.Device))
		case <-tick.C:
			for id, at := range m.Handshakes() {
				silent[id] = m.Now().Sub(at) > SilentAfter
			}
		}
	}
}

// reconcile compares the device with the feeds. Silent hosts are resolved again. The channel is
// closed when the device fails.
func (m *Mesh) reconcile(ctx context.Context, looks *lookups, silent map[hangar.HostID]bool) (gone <-chan struct{}, err error) {
	endpoints, err := m.locate(ctx, looks, silent)
	errs := []error{err}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.link == nil {
		if _, err := m.openLink(ctx); err != nil {
			return nil, err
		}
	}
	for id, n := range m.neighbor {
		if h, ok := m.hosts[id]; !ok || h.MeshKey != n.key || n.broken {
			errs = append(errs, m.part(id, n))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(endpoints)) {
		if h, ok := m.hosts[id]; ok {
			errs = append(errs, m.reach(h, endpoints[id]))
		}
	}
	errs = append(errs, m.lead())
	return m.link.Gone(), errors.Join(errs...)
}

// reach has a host on the device, at an endpoint. The caller holds mu.
func (m *Mesh) reach(h hangar.Host, at netip.AddrPort) error {
	own := network.HostAddress(h.ID)
	if _, err := hangar.ParsePeerKey(string(h.MeshKey)); err != nil || !own.IsValid() {
		return fmt.Errorf("host %s has no key of the mesh", h.ID)
	}
	if h.MeshKey == m.own {
		return fmt.Errorf("host %s has the key of this one: its data directory may be a copy", h.ID)
	}
	for id, n := range m.neighbor {
		if id != h.ID && n.key == h.MeshKey {
			return fmt.Errorf("hosts %s and %s have the same key: the data directory of one may be a copy", id, h.ID)
		}
	}
	if err := m.link.Reach(h.MeshKey, at); err != nil {
		return fmt.Errorf("host %s: %w", h.ID, err)
	}
	call := m.Now()
	if m.Host > h.ID {
		call = call.Add(callDelay)
	}
	if n := m.neighbor[h.ID]; n != nil {
		n.address = h.MeshAddress
		n.begin(call)
		return nil
	}
	n := &neighbor{key: h.MeshKey, address: h.MeshAddress, prefixes: map[netip.Prefix]struct{}{}}
	n.begin(call)
	m.neighbor[h.ID] = n
	for id := range m.members[m.Host] {
		m.changed[member{h.ID, id}] = struct{}{}
	}
	// Its own address is what it says from that something cannot be reached or is too large.
	return m.change(h.ID, n, []netip.Prefix{netip.PrefixFrom(own, own.BitLen())}, nil)
}

// call calls the hosts that are due. The channel yields when the next one is due; it is nil if
// there is none.
func (m *Mesh) call() (next <-chan time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Now()
	var seen map[hangar.HostID]link.Seen
	var errs []error
	wait := time.Duration(math.MaxInt64)
	for id, n := range m.neighbor {
		if !n.called.IsZero() && !n.call.IsZero() && !now.Before(n.call) && seen == nil {
			seen = m.seen()
		}
		before := *n
		if n.due(now, seen[id].Handshake) {
			if err := m.link.Call(n.key); err != nil {
				errs = append(errs, fmt.Errorf("host %s: %w", id, err))
				*n = before
				continue
			}
		}
		if !n.call.IsZero() {
			wait = min(wait, n.call.Sub(now))
		}
	}
	if wait < math.MaxInt64 {
		next = time.After(wait)
	}
	return next, errors.Join(errs...)
}

// part removes a host from the device. The caller holds mu.
func (m *Mesh) part(id hangar.HostID, n *neighbor) error {
	if err := m.link.Forget(n.key, slices.Collect(maps.Keys(n.prefixes))); err != nil {
		return fmt.Errorf("host %s: %w", id, err)
	}
	delete(m.neighbor, id)
	return nil
}

// lead updates the routes to hosts. The caller holds mu.
func (m *Mesh) lead() error {
	type difference struct{ add, remove []netip.Prefix }
	differences := map[hangar.HostID]*difference{}
	for at := range m.changed {
		n := m.neighbor[at.host]
		if n == nil {
			continue // once it exists, all of it has changed
		}
		d := differences[at.host]
		if d == nil {
			d = &difference{}
			differences[at.host] = d
		}
		prefix := network.Prefix(at.network, at.host)
		_, has := n.prefixes[prefix]
		switch wanted := m.members.has(at) && m.members.has(member{m.Host, at.network}); {
		case wanted && !has:
			d.add = append(d.add, prefix)
		case !wanted && has:
			d.remove = append(d.remove, prefix)
		}
	}
	var errs []error
	for id, d := range differences {
		errs = append(errs, m.change(id, m.neighbor[id], d.add, d.remove))
	}
	err := errors.Join(errs...)
	if err == nil {
		clear(m.changed)
	}
	return err
}

// change changes the routes to a host. The caller holds mu. After an error the host is removed
// and set up again.
func (m *Mesh) change(id hangar.HostID, n *neighbor, add, remove []netip.Prefix) error {
	if len(add)+len(remove) == 0 {
		return nil
	}
	if err := m.link.Lead(n.key, add, remove, m.Source); err != nil {
		for _, p := range add {
			n.prefixes[p] = struct{}{} // some of them may lead there
		}
		n.broken = true
		return errors.Join(fmt.Errorf("host %s: %w", id, err), m.part(id, n))
	}
	for _, p := range add {
		n.prefixes[p] = struct{}{}
	}
	for _, p := range remove {
		delete(n.prefixes, p)
	}
	return nil
}

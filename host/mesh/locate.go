package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// lookupTimeout bounds the lookup of a host's address by name.
const lookupTimeout = 5 * time.Second

// lookup finds the addresses of a name, as net.Resolver.LookupNetIP does.
type lookup func(ctx context.Context, network, name string) ([]netip.Addr, error)

// lookups are those of hosts' addresses. They run beside settle, because a name server that does not
// answer must not delay what has nothing to do with it: routes to other hosts. All but found and work is
// of the goroutine of settle.
type lookups struct {
	lookup  lookup
	found   chan located
	work    sync.WaitGroup
	running map[hangar.HostID]string // the addresses that are looked up
	results map[hangar.HostID]located
	failed  map[hangar.HostID]failedLookup
}

// located is the result of a lookup.
type located struct {
	host    hangar.HostID
	address string
	at      netip.AddrPort
	err     error
}

// failedLookup is repeated at a time.
type failedLookup struct {
	address string
	err     error
	again   time.Time
}

func newLookups(l lookup) *lookups {
	return &lookups{
		lookup: l, found: make(chan located), running: map[hangar.HostID]string{}, results: map[hangar.HostID]located{}, failed: map[hangar.HostID]failedLookup{},
	}
}

// start looks a host's address up, unless it is done already or was tried in vain a moment ago.
func (l *lookups) start(ctx context.Context, id hangar.HostID, address string, now time.Time) {
	if l.running[id] == address {
		return
	}
	if f, ok := l.failed[id]; ok && f.address == address && now.Before(f.again) {
		return
	}
	l.running[id] = address
	l.work.Go(func() {
		at, err := resolve(ctx, l.lookup, address)
		select {
		case l.found <- located{id, address, at, err}:
		case <-ctx.Done():
		}
	})
}

// take keeps a result for locate.
func (l *lookups) take(r located, now time.Time) {
	if l.running[r.host] != r.address {
		return // the host has moved meanwhile
	}
	delete(l.running, r.host)
	if r.err != nil {
		l.failed[r.host] = failedLookup{r.address, r.err, now.Add(retryDelay)}
		return
	}
	delete(l.failed, r.host)
	l.results[r.host] = r
}

// locate returns the addresses of hosts that are not on the device yet, have moved, or are silent, as far
// as they are known. It has names looked up. The error has those whose last lookup failed.
func (m *Mesh) locate(ctx context.Context, looks *lookups, silent map[hangar.HostID]bool) (map[hangar.HostID]netip.AddrPort, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	endpoints := map[hangar.HostID]netip.AddrPort{}
	var errs []error
	for id, h := range m.hosts {
		if r, ok := looks.results[id]; ok && r.address == h.MeshAddress {
			endpoints[id] = r.at
			continue
		}
		n := m.neighbor[id]
		if h.MeshAddress == "" || n != nil && !n.broken && n.key == h.MeshKey && n.address == h.MeshAddress && !silent[id] {
			continue
		}
		if at, err := netip.ParseAddrPort(h.MeshAddress); err == nil {
			endpoints[id] = at
			continue
		}
		looks.start(ctx, id, h.MeshAddress, m.Now())
		if f, ok := looks.failed[id]; ok && f.address == h.MeshAddress {
			errs = append(errs, fmt.Errorf("host %s: %w", id, f.err))
		}
	}
	clear(looks.results)
	for id := range looks.failed {
		if _, ok := m.hosts[id]; !ok {
			delete(looks.failed, id)
		}
	}
	return endpoints, errors.Join(errs...)
}

// resolve looks HOST:PORT up.
func resolve(ctx context.Context, lookup lookup, address string) (netip.AddrPort, error) {
	name, text, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := lookup(ctx, "ip", name)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(found[0].Unmap(), uint16(port)), nil
}

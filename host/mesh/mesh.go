// Package mesh joins the private networks of the hosts of a cluster by WireGuard: packets of a
// Machine or a peer of this host to an address of another host arrive there, encrypted.
//
// A Mesh has one device. It follows the hosts with their endpoints and keys (hangar.HostFeed), and
// on which networks each has Machines (Observe) and peers (hangar.PeerFeed). Private addresses
// contain their host, so all addresses of a network at a host are one prefix, network.Prefix. For
// each network that is at both ends, the other host's prefix is routed to the device; networks of
// one end alone cost nothing here. WireGuard drops what a host sends under an address outside of
// its prefixes. Beyond that, the rules of package network decide what may be sent, for which the
// device is one of the instance's own.
//
// The key of the host, and its port if that was left to chance, are made once and kept in KeyFile.
// The kernel takes the device and its routes away when the process ends, however it ends. Hosts call
// each other when they start, so none waits until it has noticed that another was away.
//
// All methods may be called from many goroutines. Run owns all other goroutines, and ends them.
package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/wireguard/link"
	"github.com/hangar-platform/hangar/internal/pause"
)

// KeyFile is in the directory of a Mesh, with mode 0600: the private key, and the port if it was left
// to chance.
const KeyFile = "mesh.json"

// DefaultPort is one above that of users' peers.
const DefaultPort = 51821

// SilentAfter is how long after a handshake there is another one between hosts that reach each
// other, with time for some that are lost.
const SilentAfter = 5 * time.Minute

// callDelay is how much later of two hosts the one with the higher id calls the other, if they learn of
// each other at the same moment: WireGuard may lose a session that both begin, until 5 s later.
const callDelay = 500 * time.Millisecond

// A host that does not answer a call is called again. WireGuard does that by itself every 5 s,
// except for a host that has called at the same moment: having answered that, it may drop its own
// next attempt, and be silent until the keepalive half a minute later.
const (
	recallDelay = 6 * time.Second
	maxCalls    = 5
)

// The pauses between attempts.
const (
	retryDelay = 5 * time.Second  // to change the device
	lookDelay  = 30 * time.Second // between two looks at which hosts are silent
)

// ErrPortInUse says that another program listens at the port.
var ErrPortInUse = errors.New("the UDP port is in use")

// Options of a Mesh.
type Options struct {
	Dir    string // where KeyFile is
	Device string // name of the TUN device, at most 15 characters
	Host   hangar.HostID
	Port   uint16     // UDP; 0: one that is free at first, and the same ever after
	Source netip.Addr // of this host's own packets to others: that of the host
	Peers  hangar.PeerFeed
	Log    *slog.Logger
	Now    func() time.Time
}

// Mesh joins this host to the others. Make it with New.
type Mesh struct {
	Options
	identity link.Identity
	wake     chan struct{} // has an element when there is something to do
	lookup   lookup        // that of the system

	mu       sync.Mutex // guards what follows
	link     device     // nil: closed, or its device is gone
	own      hangar.PeerKey
	hosts    map[hangar.HostID]hangar.Host
	members  members
	peers    map[member]struct{}         // what peers have added to members
	neighbor map[hangar.HostID]*neighbor // on the device
	changed  map[member]struct{}         // has to be compared with neighbor
}

// device is a link.Link.
type device interface {
	Reach(key hangar.PeerKey, at netip.AddrPort) error
	Call(key hangar.PeerKey) error
	Lead(key hangar.PeerKey, add, remove []netip.Prefix, source netip.Addr) error
	Forget(key hangar.PeerKey, prefixes []netip.Prefix) error
	Seen() (map[hangar.PeerKey]link.Seen, error)
	Gone() <-chan struct{}
	Close()
}

// neighbor is another host as the device has it.
type neighbor struct {
	key      hangar.PeerKey
	address  string // of which endpoint was made
	prefixes map[netip.Prefix]struct{}
	broken   bool      // a change of its routes has failed, and it has to be set up again
	call     time.Time // when it is called next; zero: it has answered, or was called often enough
	called   time.Time // when it was called last; zero: never
	calls    int       // how often it was called without an answer
}

// begin has a host called at a time.
func (n *neighbor) begin(at time.Time) { n.call, n.called, n.calls = at, time.Time{}, 0 }

// due reports whether a host has to be called now, when the last handshake with it was at a time.
func (n *neighbor) due(now, handshake time.Time) bool {
	switch {
	case n.call.IsZero() || now.Before(n.call):
		return false
	case !n.called.IsZero() && handshake.After(n.called), n.calls == maxCalls:
		n.call = time.Time{}
		return false
	default:
		n.called, n.call = now, now.Add(recallDelay)
		n.calls++
		return true
	}
}

// New returns a Mesh that Open makes usable.
func New(o Options) *Mesh {
	return &Mesh{
		Options: o, wake: make(chan struct{}, 1), lookup: net.DefaultResolver.LookupNetIP, hosts: map[hangar.HostID]hangar.Host{}, members: members{},
		peers: map[member]struct{}{}, neighbor: map[hangar.HostID]*neighbor{}, changed: map[member]struct{}{},
	}
}

// Open makes the device and takes the port. It answers ErrPortInUse. Close undoes it.
func (m *Mesh) Open(ctx context.Context) error {
	path := filepath.Join(m.Dir, KeyFile)
	identity, err := link.LoadIdentity(path)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.identity = identity
	port, err := m.openLink(ctx)
	if err != nil {
		return err
	}
	if m.Port == 0 && identity.Port != port {
		m.identity.Port = port
		if err := m.identity.Save(path); err != nil {
			m.closeLink()
			return err
		}
	}
	return nil
}

// openLink makes the device, and returns its port. The caller holds mu.
func (m *Mesh) openLink(ctx context.Context) (port uint16, err error) {
	port = cmp.Or(m.Port, m.identity.Port)
	l, err := link.Open(m.Device, m.identity.PrivateKey(), port, m.Log)
	if link.InUse(err) {
		return 0, fmt.Errorf("%w: %d: %w", ErrPortInUse, port, err)
	}
	if err != nil {
		return 0, err
	}
	m.link, m.own = l, l.PublicKey
	m.Log.InfoContext(ctx, "the private network spans hosts", slog.Int("port", int(l.Port)), slog.String("device", m.Device))
	return l.Port, nil
}

// closeLink removes the device. The caller holds mu.
func (m *Mesh) closeLink() {
	if m.link != nil {
		m.link.Close()
	}
	m.link = nil
	clear(m.neighbor)
}

// Close removes the device and frees its port. It may be repeated.
func (m *Mesh) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closeLink()
	return nil
}

// Key is the key by which other hosts know this one, once Open has returned.
func (m *Mesh) Key() hangar.PeerKey { return m.identity.PrivateKey().Public() }

// ListenPort is the UDP port that other hosts call, once Open has returned.
func (m *Mesh) ListenPort() uint16 { return cmp.Or(m.Port, m.identity.Port) }

// Handshakes are the times of the last handshakes with the other hosts that have an address in
// the mesh; the zero Time: none since this daemon started.
func (m *Mesh) Handshakes() map[hangar.HostID]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[hangar.HostID]time.Time, len(m.neighbor))
	for id, s := range m.seen() {
		all[id] = s.Handshake
	}
	return all
}

// seen is the device's state of each host. The caller holds mu.
func (m *Mesh) seen() map[hangar.HostID]link.Seen {
	if m.link == nil {
		return nil
	}
	keys, err := m.link.Seen()
	if err != nil {
		m.Log.Warn("read the state of the mesh", slog.Any("error", err))
		return nil
	}
	all := make(map[hangar.HostID]link.Seen, len(m.neighbor))
	for id, n := range m.neighbor {
		all[id] = keys[n.key]
	}
	return all
}

// Run follows the feeds and keeps the device up to date until ctx ends, and returns its error.
func (m *Mesh) Run(ctx context.Context, hosts hangar.HostFeed) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return m.again(ctx, "hosts", func(ctx context.Context) error { return m.followHosts(ctx, hosts) })
	})
	group.Go(func() error { return m.again(ctx, "peers", m.followPeers) })
	group.Go(func() error { return m.settle(ctx) })
	return group.Wait()
}

// again follows a feed that breaks, until ctx ends.
func (m *Mesh) again(ctx context.Context, feed string, follow func(context.Context) error) error {
	return pause.Between(ctx, pause.Feeds, follow, func(err error) {
		m.Log.WarnContext(ctx, "feed broke, will be taken up again", slog.String("feed", feed), slog.Any("error", err))
	})
}

// nudge makes settle check again.
func (m *Mesh) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Package wireguard is the gateway of one host: it lets WireGuard peers into private
// networks.
//
// A Gateway runs WireGuard in this process, on a TUN device that carries the instance's name, and
// follows a hangar.PeerFeed: a peer that is in it and of this host is admitted within
// milliseconds, and every other one is cut off. Each peer has a route to the device, so that
// rules of the host which ask where a source is routed hold for peers, too; inside the tunnel
// WireGuard itself drops what a peer sends under an address that is not its own. Which networks a
// peer reaches is not decided here: the Gateway tells Members which are in use on its device.
//
// The device appears and the port is taken with the first peer, so that daemons without peers never
// contend for a port. An occupied port is tried again; until then OpenGateway says why. The key of
// the gateway, and the port if it was left to chance, are made once and kept in KeyFile.
//
// The kernel takes the device and its routes away when the process ends, however it ends. So as not
// to wait for peers to notice, the Gateway remembers the address of each in EndpointsFile, and
// calls them when it starts again. Losing that file costs only the seconds until a peer calls by
// itself.
//
// All methods may be called from many goroutines. Run owns all other goroutines, and ends them.
package wireguard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/wireguard/link"
	"github.com/hangar-platform/hangar/internal/pause"
)

// MTU of the device, in bytes.
const MTU = link.MTU

// DefaultPort is WireGuard's own.
const DefaultPort = 51820

// The pauses between attempts.
const (
	retryDelay    = 5 * time.Second  // to have the port
	rememberDelay = 10 * time.Second // between two records of peers' addresses
)

// Members learns which networks have members on the gateway's device.
type Members interface {
	AddNetwork(ctx context.Context, id hangar.NetworkID) error
	RemoveNetwork(ctx context.Context, id hangar.NetworkID) error
}

// Options of a Gateway.
type Options struct {
	Dir      string // where KeyFile and EndpointsFile are
	Device   string // name of the TUN device, at most 15 characters
	Host     hangar.HostID
	Port     uint16     // UDP; 0: one that is free at first, and the same ever after
	Off      bool       // no peers at all
	Endpoint string     // name or address for peers' configs; empty: that of the API
	Source   netip.Addr // of what the host itself sends to peers; the zero Addr: any
	Members  Members
	Feed     hangar.PeerFeed
	Log      *slog.Logger
}

// Gateway lets peers in. Make it with New; it opens what it needs by itself while Run
// runs.
type Gateway struct {
	Options
	wake chan struct{} // has an element when there is something to do

	mu        sync.Mutex                         // guards what follows
	running   bool                               // Run may still admit peers
	networks  map[hangar.NetworkID][]hangar.Peer // all peers, on any host
	wanted    map[hangar.PeerKey]hangar.Peer     // of this host; nil before the feed has yielded
	admitted  map[hangar.PeerKey]netip.Prefix    // on the device
	joined    map[hangar.NetworkID]struct{}      // that Members knows
	endpoints map[hangar.PeerKey]netip.AddrPort  // where peers were last
	link      *link.Link                         // nil: closed
	failure   error                              // of the last attempt, nil: it succeeded
	changed   chan struct{}                      // closed and replaced with every attempt
}

var _ hangar.PeerHost = (*Gateway)(nil)

// New returns a Gateway that admits no peer before Run.
func New(o Options) *Gateway {
	return &Gateway{
		Options: o, wake: make(chan struct{}, 1), running: true, admitted: map[hangar.PeerKey]netip.Prefix{},
		joined: map[hangar.NetworkID]struct{}{}, changed: make(chan struct{}),
	}
}

// Run follows the feed until ctx ends, and returns its error.
func (g *Gateway) Run(ctx context.Context) error {
	if g.Off {
		<-ctx.Done()
		return ctx.Err()
	}
	g.recall(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.follow(ctx) })
	group.Go(func() error { return g.settle(ctx) })
	err := group.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = false
	if g.link != nil {
		g.remember(ctx)
		g.closeLink()
	}
	return err
}

// follow takes the wanted peers from the feed.
func (g *Gateway) follow(ctx context.Context) error {
	return pause.Between(ctx, pause.Feeds, func(ctx context.Context) error {
		for peers, err := range g.Feed.WatchPeers(ctx) {
			if err != nil {
				return err
			}
			g.take(peers)
		}
		return errors.New("feed ended")
	}, func(err error) {
		g.Log.WarnContext(ctx, "feed of peers broke, will be taken up again", slog.Any("error", err))
	})
}

// take makes peers those that are to be let in.
func (g *Gateway) take(peers []hangar.Peer) {
	wanted, networks := make(map[hangar.PeerKey]hangar.Peer, len(peers)), map[hangar.NetworkID][]hangar.Peer{}
	for _, p := range peers {
		networks[p.NetworkID] = append(networks[p.NetworkID], p)
		if p.Host == g.Host {
			wanted[p.PublicKey] = p
		}
	}
	g.mu.Lock()
	g.wanted, g.networks = wanted, networks
	g.mu.Unlock()
	g.nudge()
}

// settle keeps the device as the feed wants it.
func (g *Gateway) settle(ctx context.Context) error {
	tick := time.NewTicker(rememberDelay)
	defer tick.Stop()
	told := ""
	for {
		var retry <-chan time.Time
		gone, err := g.reconcile(ctx)
		if err != nil {
			retry = time.After(retryDelay)
			if err.Error() != told {
				g.Log.ErrorContext(ctx, "peers are not as they should be, will be tried again", slog.Any("error", err))
			}
			told = err.Error()
		} else {
			told = ""
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-g.wake:
		case <-retry:
		case <-gone:
			g.mu.Lock()
			g.closeLink()
			g.mu.Unlock()
			g.Log.WarnContext(ctx, "device of peers is gone, creating it again", slog.String("device", g.Device))
		case <-tick.C:
			g.mu.Lock()
			g.remember(ctx)
			g.mu.Unlock()
		}
	}
}

// reconcile admits wanted peers and removes others. The channel is closed when the device fails;
// it is nil without one.
func (g *Gateway) reconcile(ctx context.Context) (gone <-chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer func() {
		g.failure = err
		close(g.changed)
		g.changed = make(chan struct{})
	}()
	if len(g.wanted) > 0 && g.link == nil {
		if err := g.openLink(ctx); err != nil {
			return nil, err
		}
	}
	if g.link == nil || g.wanted == nil {
		return nil, nil
	}
	var errs []error
	for key, prefix := range g.admitted {
		if p, ok := g.wanted[key]; !ok || p.Prefix() != prefix {
			errs = append(errs, g.expel(key, prefix))
		}
	}
	networks := map[hangar.NetworkID]struct{}{}
	for key, p := range g.wanted {
		networks[p.NetworkID] = struct{}{}
		if _, ok := g.admitted[key]; !ok {
			errs = append(errs, g.admit(ctx, p))
		}
	}
	for id := range g.joined {
		if _, ok := networks[id]; ok {
			continue
		}
		if err := g.Members.RemoveNetwork(ctx, id); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(g.joined, id)
	}
	return g.link.Gone(), errors.Join(errs...)
}

// admit lets a peer in. The caller holds mu.
func (g *Gateway) admit(ctx context.Context, p hangar.Peer) error {
	if _, ok := g.joined[p.NetworkID]; !ok {
		if err := g.Members.AddNetwork(ctx, p.NetworkID); err != nil {
			return fmt.Errorf("peer %s of %s: %w", p.Name, p.Org, err)
		}
		g.joined[p.NetworkID] = struct{}{}
	}
	if err := g.link.Admit(p.PublicKey, p.Prefix(), g.Source, g.endpoints[p.PublicKey]); err != nil {
		return fmt.Errorf("peer %s of %s: %w", p.Name, p.Org, err)
	}
	g.admitted[p.PublicKey] = p.Prefix()
	return nil
}

// expel cuts a peer off. The caller holds mu.
func (g *Gateway) expel(key hangar.PeerKey, prefix netip.Prefix) error {
	if err := g.link.Expel(key, prefix); err != nil {
		return fmt.Errorf("peer %s: %w", prefix, err)
	}
	delete(g.admitted, key)
	delete(g.endpoints, key)
	return nil
}

// openLink makes the device and takes the port. The caller holds mu.
func (g *Gateway) openLink(ctx context.Context) error {
	identity, err := link.LoadIdentity(filepath.Join(g.Dir, KeyFile))
	if err != nil {
		return err
	}
	// A port that was left to chance once is kept, also while it is in use: every
	// config that was printed names it.
	port := cmp.Or(g.Port, identity.Port)
	l, err := link.Open(g.Device, identity.PrivateKey(), port, g.Log)
	if link.InUse(err) {
		return &hangar.Error{
			Code: hangar.CodeUnavailable, Err: err,
			Message: fmt.Sprintf("WireGuard cannot listen: UDP port %d of this server is in use; start the daemon with --wireguard :PORT and another port", port),
		}
	}
	if err != nil {
		return &hangar.Error{Code: hangar.CodeUnavailable, Message: "The WireGuard device of this server cannot be made", Err: err}
	}
	if g.Port == 0 && identity.Port != l.Port {
		identity.Port = l.Port
		if err := identity.Save(filepath.Join(g.Dir, KeyFile)); err != nil {
			l.Close()
			return err
		}
	}
	g.link = l
	g.Log.InfoContext(ctx, "WireGuard listens", slog.Int("port", int(l.Port)), slog.String("device", g.Device))
	return nil
}

// closeLink takes the device away. The caller holds mu.
func (g *Gateway) closeLink() {
	g.link.Close()
	g.link = nil
	clear(g.admitted)
}

// nudge lets settle look again.
func (g *Gateway) nudge() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// GatewayHost implements hangar.PeerHost.
func (g *Gateway) GatewayHost() hangar.HostID { return g.Host }

// OpenGateway implements hangar.PeerHost.
func (g *Gateway) OpenGateway(ctx context.Context) (hangar.PeerGateway, error) {
	if g.Off {
		return hangar.PeerGateway{}, hangar.Errorf(hangar.CodeFailedPrecondition, "", "WireGuard is switched off on this server, by --wireguard of its daemon")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.running:
		return hangar.PeerGateway{}, hangar.Errorf(hangar.CodeUnavailable, "", "The server is shutting down")
	case g.link == nil:
		if err := g.openLink(ctx); err != nil {
			return hangar.PeerGateway{}, err
		}
		g.nudge() // so that settle checks the device
	}
	return hangar.PeerGateway{EndpointIP: g.Endpoint, EndpointPort: g.link.Port, GatewayKey: g.link.PublicKey}, nil
}

// ListensAt is the UDP port at which peers are let in; 0: there are none yet.
func (g *Gateway) ListensAt() uint16 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.link == nil {
		return 0
	}
	return g.link.Port
}

// AwaitPeer implements hangar.PeerHost.
func (g *Gateway) AwaitPeer(ctx context.Context, key hangar.PeerKey, address netip.Addr) error {
	for {
		g.mu.Lock()
		prefix, admitted := g.admitted[key]
		changed, failure := g.changed, g.failure
		g.mu.Unlock()
		if admitted == address.IsValid() && (!admitted || prefix.Addr() == address) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), failure)
		}
	}
}

// PeerTraffic implements hangar.PeerHost.
func (g *Gateway) PeerTraffic() map[hangar.PeerKey]hangar.PeerTraffic {
	g.mu.Lock()
	defer g.mu.Unlock()
	traffic := map[hangar.PeerKey]hangar.PeerTraffic{}
	for key, s := range g.seen() {
		traffic[key] = s.PeerTraffic
	}
	return traffic
}

// NetworkPeers are the peers on a network, of all gateways, for the name server. The slice must
// not be changed.
func (g *Gateway) NetworkPeers(id hangar.NetworkID) []hangar.Peer {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.networks[id]
}

// seen is what the device knows of its peers. The caller holds mu.
func (g *Gateway) seen() map[hangar.PeerKey]link.Seen {
	if g.link == nil {
		return nil
	}
	all, err := g.link.Seen()
	if err != nil {
		g.Log.Warn("read the state of WireGuard", slog.Any("error", err))
	}
	return all
}

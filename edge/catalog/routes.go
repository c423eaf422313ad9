package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Routes is the live view of every App's addresses and names. It follows a hangar.RouteFeed as
// Catalog follows rows; the last change of the feed wins. A lookup waits for a writer at most as
// long as one App takes, however many there are. Use NewRoutes.
type Routes struct {
	feed    hangar.RouteFeed
	domain  string // below which Apps have their names, with a dot before it
	log     *slog.Logger
	synced  chan struct{} // closed when first all Apps are in view
	once    sync.Once     // closes synced
	skipped atomic.Uint64

	mu        sync.RWMutex // guards what follows
	apps      map[hangar.AppID]*hangar.AppRoute
	names     map[hangar.AppName]*hangar.AppRoute
	addresses map[netip.Addr]addressOwner
	hostnames map[hangar.Hostname]*hangar.AppRoute // wildcards without their asterisk
	sorted    []*hangar.AppRoute                   // apps; nil after a change
	changed   chan struct{}                        // closed at the next change; nil until a caller waits
}

type addressOwner struct {
	route   *hangar.AppRoute
	address *hangar.Address
}

// NewRoutes returns an empty view; Run fills it. Apps have their names below domain.
func NewRoutes(feed hangar.RouteFeed, domain hangar.Hostname, log *slog.Logger) *Routes {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Routes{
		feed: feed, domain: "." + string(domain), log: log, synced: make(chan struct{}),
		apps:      make(map[hangar.AppID]*hangar.AppRoute),
		names:     make(map[hangar.AppName]*hangar.AppRoute),
		addresses: make(map[netip.Addr]addressOwner),
		hostnames: make(map[hangar.Hostname]*hangar.AppRoute),
	}
}

// Synced is closed when every App from before the start is visible. It stays closed when the feed
// breaks.
func (r *Routes) Synced() <-chan struct{} { return r.synced }

// Skipped counts the routes that made no sense.
func (r *Routes) Skipped() uint64 { return r.skipped.Load() }

// Domain is the one below which Apps have their names.
func (r *Routes) Domain() hangar.Hostname { return hangar.Hostname(r.domain[1:]) }

// App returns the route of an App.
func (r *Routes) App(id hangar.AppID) (*hangar.AppRoute, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	route, ok := r.apps[id]
	return route, ok
}

// ByName returns the App that has a name.
func (r *Routes) ByName(name hangar.AppName) (*hangar.AppRoute, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	route, ok := r.names[name]
	return route, ok
}

// ByAddress returns the App that owns an address, public or in a private network. The shared
// address has no owner.
func (r *Routes) ByAddress(ip netip.Addr) (*hangar.AppRoute, *hangar.Address, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	owner, ok := r.addresses[ip]
	return owner.route, owner.address, ok
}

// ByHostname returns the App that is open to the internet under a name: its own below
// Domain unless that is reserved, a custom one, or one that a custom wildcard covers. An exact
// name goes before a wildcard.
func (r *Routes) ByHostname(name hangar.Hostname) (*hangar.AppRoute, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if app, below := strings.CutSuffix(string(name), r.domain); below {
		if route, ok := r.names[hangar.AppName(app)]; ok && route.Public() && !route.App.Reserved() {
			return route, true
		}
		return nil, false
	}
	if strings.HasPrefix(string(name), ".") {
		return nil, false // the key of a wildcard
	}
	route, ok := r.hostnames[name]
	if dot := strings.IndexByte(string(name), '.'); !ok && dot > 0 {
		route, ok = r.hostnames[name[dot:]]
	}
	return route, ok
}

// All returns every App, sorted by name. It is a snapshot that is not to be modified: two
// calls return the same one if nothing changed.
func (r *Routes) All() []*hangar.AppRoute {
	r.mu.RLock()
	list := r.sorted
	r.mu.RUnlock()
	if list != nil {
		return list
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sorted == nil {
		r.sorted = make([]*hangar.AppRoute, 0, len(r.apps))
		for _, route := range r.apps {
			r.sorted = append(r.sorted, route)
		}
		slices.SortFunc(r.sorted, func(a, b *hangar.AppRoute) int { return cmp.Compare(a.App, b.App) })
	}
	return r.sorted
}

// Private returns the addresses at which Apps are served in private networks, in no order.
func (r *Routes) Private() []netip.Addr {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var list []netip.Addr
	for ip, owner := range r.addresses {
		if owner.address.Kind == hangar.AddressPrivateV6 {
			list = append(list, ip)
		}
	}
	return list
}

// Changed returns a channel that is closed at the next change of any App: ask for it, then
// look, then wait.
func (r *Routes) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

// Await returns once the route of an App is the one of seq or a later one, or the error of
// ctx.
func (r *Routes) Await(ctx context.Context, app hangar.AppID, seq uint64) error {
	for {
		changed := r.Changed()
		if route, ok := r.App(app); ok && route.Seq >= seq {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Run follows the feed until ctx ends, and returns its error.
func (r *Routes) Run(ctx context.Context) error {
	return pause.Between(ctx, pause.Feeds, r.follow, func(err error) {
		r.log.Warn("feed broke, will be taken up again", "feed", "routes", "error", err)
	})
}

// follow consumes the feed once.
func (r *Routes) follow(ctx context.Context) error {
	synced := false
	seen := make(map[hangar.AppID]bool)
	for change, err := range r.feed.WatchRoutes(ctx) {
		if err != nil {
			return err
		}
		switch {
		case change.Synced:
			if !synced {
				r.dropUnseen(seen)
				seen, synced = nil, true
				r.once.Do(func() { close(r.synced) })
			}
		case change.Route == nil:
			delete(seen, change.App)
			r.replace(change.App, nil)
		default:
			if !synced {
				seen[change.App] = true
			}
			if err := routeFault(change.App, change.Route); err != nil {
				r.skipped.Add(1)
				r.log.Error("route makes no sense, skipped", "app", string(change.App), "error", err)
				continue
			}
			r.replace(change.App, change.Route)
		}
	}
	return errFeedEnded
}

// routeFault returns the faults of a route by itself.
func routeFault(app hangar.AppID, route *hangar.AppRoute) error {
	switch {
	case app == "" || route.App == "":
		return errors.New("it names no app")
	case route.ID != app:
		return fmt.Errorf("it names app %q", route.ID)
	}
	for i := range route.Addresses {
		if a := &route.Addresses[i]; a.App != route.App || !a.IP.IsValid() {
			return fmt.Errorf("it has address %s of app %q", a.IP, a.App)
		}
	}
	return nil
}

// replace replaces the route of an App or, if it is nil, removes it.
func (r *Routes) replace(app hangar.AppID, route *hangar.AppRoute) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.apps[app]
	if old == nil && route == nil {
		return
	}
	if old != nil {
		r.forgetLocked(old)
	}
	if route != nil {
		r.installLocked(route)
	}
	r.sorted = nil
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

func (r *Routes) installLocked(route *hangar.AppRoute) {
	r.apps[route.ID] = route
	r.names[route.App] = route
	for i := range route.Addresses {
		if a := &route.Addresses[i]; a.Kind != hangar.AddressSharedV4 {
			r.addresses[a.IP] = addressOwner{route, a}
		}
	}
	if !route.Public() {
		return
	}
	for _, name := range route.Hostnames {
		r.hostnames[indexed(name)] = route
	}
}

// forgetLocked keeps what another App has taken over meanwhile.
func (r *Routes) forgetLocked(route *hangar.AppRoute) {
	delete(r.apps, route.ID)
	if r.names[route.App] == route {
		delete(r.names, route.App)
	}
	for i := range route.Addresses {
		if ip := route.Addresses[i].IP; r.addresses[ip].route == route {
			delete(r.addresses, ip)
		}
	}
	for _, name := range route.Hostnames {
		if r.hostnames[indexed(name)] == route {
			delete(r.hostnames, indexed(name))
		}
	}
}

// indexed is the key of a Hostname: of a wildcard what follows the asterisk, which no
// other name begins with.
func indexed(name hangar.Hostname) hangar.Hostname {
	if strings.HasPrefix(string(name), "*.") {
		return name[1:]
	}
	return name
}

// dropUnseen removes Apps that a whole feed did not show.
func (r *Routes) dropUnseen(seen map[hangar.AppID]bool) {
	var gone []hangar.AppID
	r.mu.RLock()
	for app := range r.apps {
		if !seen[app] {
			gone = append(gone, app)
		}
	}
	r.mu.RUnlock()
	for _, app := range gone {
		r.replace(app, nil)
	}
}

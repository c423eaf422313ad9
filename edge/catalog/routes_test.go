package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
)

// routeFeed is a RouteFeed that a test writes. Each session is one run of WatchRoutes;
// closing its channel breaks the feed.
type routeFeed chan chan hangar.RouteChange

func (f routeFeed) WatchRoutes(ctx context.Context) iter.Seq2[hangar.RouteChange, error] {
	return func(yield func(hangar.RouteChange, error) bool) {
		var session chan hangar.RouteChange
		select {
		case session = <-f:
		case <-ctx.Done():
			return
		}
		for {
			select {
			case change, ok := <-session:
				if !ok {
					yield(hangar.RouteChange{}, errors.New("connection lost"))
					return
				}
				if !yield(change, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// session begins a run of the feed with Apps, all that there are.
func (f routeFeed) session(routes ...*hangar.AppRoute) chan hangar.RouteChange {
	ch := make(chan hangar.RouteChange)
	f <- ch
	for _, r := range routes {
		ch <- hangar.RouteChange{App: r.ID, Route: r}
	}
	ch <- hangar.RouteChange{Synced: true}
	return ch
}

// withRoutes runs fn in a bubble with a view that follows a feed.
func withRoutes(t *testing.T, fn func(t *testing.T, r *catalog.Routes, feed routeFeed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		feed := make(routeFeed, 10)
		r := catalog.NewRoutes(feed, "hangar.localhost", nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		fn(t, r, feed)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
}

// route is that of an App with addresses, given as their kind and value, and names.
func route(app string, seq uint64, addressesAndNames ...string) *hangar.AppRoute {
	r := &hangar.AppRoute{ID: hangar.AppID(app), App: hangar.AppName(app), Org: "personal", Network: 1, Seq: seq}
	for _, text := range addressesAndNames {
		kind, ip, ok := strings.Cut(text, " ")
		if !ok {
			r.Hostnames = append(r.Hostnames, hangar.Hostname(text))
			continue
		}
		r.Addresses = append(r.Addresses, hangar.Address{App: r.App, Kind: hangar.AddressKind(kind), IP: netip.MustParseAddr(ip)})
	}
	return r
}

func TestRoutesByAddress(t *testing.T) {
	withRoutes(t, func(t *testing.T, r *catalog.Routes, feed routeFeed) {
		s := feed.session(
			route("web", 1, "shared_v4 127.0.0.1", "v4 127.7.7.1", "v6 fd00::1"),
			route("api", 1, "shared_v4 127.0.0.1", "private_v6 fdaa:0:1:0:1::1"),
		)
		expect := func(ip, app string) {
			t.Helper()
			synctest.Wait()
			route, address, ok := r.ByAddress(netip.MustParseAddr(ip))
			if ok != (app != "") || ok && (string(route.App) != app || address.IP.String() != ip || address.App != route.App) {
				t.Errorf("%s leads to %v, %v; not to %q", ip, route, address, app)
			}
		}
		expect("127.0.0.1", "")
		expect("127.7.7.1", "web")
		expect("fd00::1", "web")
		expect("fdaa:0:1:0:1::1", "api")
		expect("fd00::2", "")
		if got := fmt.Sprint(r.Private()); got != "[fdaa:0:1:0:1::1]" {
			t.Errorf("private addresses are %s", got)
		}
		// An address that changes hands belongs to its new owner, whichever change comes first.
		s <- hangar.RouteChange{App: "api", Route: route("api", 2, "v4 127.7.7.1")}
		s <- hangar.RouteChange{App: "web", Route: route("web", 2, "v6 fd00::1")}
		expect("127.7.7.1", "api")
		expect("fdaa:0:1:0:1::1", "")
		s <- hangar.RouteChange{App: "web"}
		expect("fd00::1", "")
		s <- hangar.RouteChange{App: "web"}
		expect("127.7.7.1", "api")
	})
}

func TestRoutesByHostname(t *testing.T) {
	withRoutes(t, func(t *testing.T, r *catalog.Routes, feed routeFeed) {
		s := feed.session(
			route("web", 1, "v6 fd00::1", "www.example.com", "*.example.com"),
			route("api", 1, "shared_v4 127.0.0.1", "api.example.com"),
			route("closed", 1, "closed.example.org"),
			route("inner", 1, "private_v6 fdaa:0:1:0:1::1", "inner.example.org"),
		)
		for name, app := range map[hangar.Hostname]string{
			"web.hangar.localhost": "web", "api.hangar.localhost": "", "closed.hangar.localhost": "", "inner.hangar.localhost": "",
			"none.hangar.localhost": "", "a.web.hangar.localhost": "", "hangar.localhost": "", ".hangar.localhost": "",
			"www.example.com": "web", "api.example.com": "api", "else.example.com": "web", "a.b.example.com": "", "example.com": "",
			".example.com": "", "*.example.com": "web", "closed.example.org": "", "inner.example.org": "", "": "", ".": "", "web": "",
		} {
			if route, ok := r.ByHostname(name); ok != (app != "") || ok && string(route.App) != app {
				t.Errorf("%q leads to %v, not to %q", name, route, app)
			}
		}
		s <- hangar.RouteChange{App: "web", Route: route("web", 2, "v6 fd00::1", "www.example.com")}
		synctest.Wait()
		if _, ok := r.ByHostname("else.example.com"); ok {
			t.Error("a wildcard that is gone still leads somewhere")
		}
		if got, ok := r.ByHostname("www.example.com"); !ok || got.Seq != 2 {
			t.Errorf("www.example.com leads to %v", got)
		}
	})
}

// TestRoutesResync: what vanished while the feed was broken goes when the new one is
// complete, and not before.
func TestRoutesResync(t *testing.T) {
	withRoutes(t, func(t *testing.T, r *catalog.Routes, feed routeFeed) {
		close(feed.session(route("a", 1, "v6 fd00::1"), route("b", 1)))
		synctest.Wait()
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			var names []string
			for _, route := range r.All() {
				names = append(names, fmt.Sprintf("%s@%d", route.App, route.Seq))
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("routes are %q, not %q", got, want)
			}
		}
		expect("a@1 b@1")
		s := make(chan hangar.RouteChange)
		feed <- s
		s <- hangar.RouteChange{App: "b", Route: route("b", 3)}
		s <- hangar.RouteChange{App: "c", Route: route("other", 3)}
		s <- hangar.RouteChange{App: "d", Route: &hangar.AppRoute{ID: "d", App: "d", Addresses: []hangar.Address{{App: "b"}}}}
		expect("a@1 b@3")
		before := r.All()
		if again := r.All(); &again[0] != &before[0] {
			t.Error("two reads of the same state made two lists")
		}
		s <- hangar.RouteChange{Synced: true}
		expect("b@3")
		if _, _, ok := r.ByAddress(netip.MustParseAddr("fd00::1")); ok || r.Skipped() != 2 {
			t.Errorf("the address of a route that is gone is there: %t; %d skipped", ok, r.Skipped())
		}
		s <- hangar.RouteChange{App: "b", Route: route("b", 2)} // the state was restored from a backup
		expect("b@2")
	})
}

func TestRoutesAwait(t *testing.T) {
	withRoutes(t, func(t *testing.T, r *catalog.Routes, feed routeFeed) {
		if isClosed(r.Synced()) {
			t.Error("synced before the feed was")
		}
		changed := r.Changed()
		s := feed.session(route("a", 4))
		synctest.Wait()
		if !isClosed(r.Synced()) || !isClosed(changed) || isClosed(r.Changed()) {
			t.Error("not told of a change, or of one that was not")
		}
		if err := r.Await(t.Context(), "a", 4); err != nil {
			t.Error(err)
		}
		done := make(chan error)
		go func() { done <- r.Await(t.Context(), "b", 7) }()
		s <- hangar.RouteChange{App: "b", Route: route("b", 6)}
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("Await returned too early: %v", err)
		default:
		}
		s <- hangar.RouteChange{App: "b", Route: route("b", 8)}
		if err := <-done; err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Await(ctx, "a", 5); !errors.Is(err, context.Canceled) {
			t.Errorf("Await: %v", err)
		}
	})
}

func BenchmarkRoutesByHostname(b *testing.B) {
	feed := make(routeFeed, 1)
	r := catalog.NewRoutes(feed, "hangar.localhost", nil)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	routes := make([]*hangar.AppRoute, 100_000)
	for i := range routes {
		routes[i] = route(fmt.Sprintf("app-%d", i), 1, "shared_v4 127.0.0.1", fmt.Sprintf("host-%d.example.com", i), fmt.Sprintf("*.w%d.example.com", i))
	}
	feed.session(routes...)
	<-r.Synced()
	for _, name := range []hangar.Hostname{"app-4711.hangar.localhost", "host-4711.example.com", "any.w4711.example.com"} {
		b.Run(string(name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := r.ByHostname(name); !ok {
					b.Fatal("not found")
				}
			}
		})
	}
	cancel()
	<-done
}

package control_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/ippool"
	"github.com/hangar-platform/hangar/test/contract"
)

// testPools hold six addresses of IPv4 and many of IPv6.
func testPools(t *testing.T) control.AddressPools {
	t.Helper()
	v4, err := ippool.Parse("127.7.7.0/29", ippool.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	v6, err := ippool.Parse("fd77::/64", ippool.IPv6)
	if err != nil {
		t.Fatal(err)
	}
	return control.AddressPools{Shared: netip.MustParseAddr("127.0.0.1"), V4: v4, V6: v6}
}

func (p *plane) address(t *testing.T, app hangar.AppName, in hangar.AddressCreate) *hangar.Address {
	t.Helper()
	a, err := p.Addresses().AllocateAddress(admin(t), app, in)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (p *plane) addresses(t *testing.T, app hangar.AppName) string {
	t.Helper()
	list, err := p.Addresses().Addresses(admin(t), app)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, a := range list {
		text = append(text, fmt.Sprintf("%s=%s", a.Kind, a.IP))
	}
	return strings.Join(text, " ")
}

func TestAddressService(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		contract.AddressService(t, p.harness(hangar.Principal{Subject: "admin", Admin: true}))
	})
}

func TestAddresses(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.app(t, "web")
		p.app(t, "api")
		p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressV6})
		p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressV4, Region: "global", Service: "s"})
		p.address(t, "api", hangar.AddressCreate{Kind: hangar.AddressV4})
		shared := p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressSharedV4})
		p.clock.advance(time.Hour)
		if again := p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressSharedV4}); *again != *shared {
			t.Errorf("the shared one is %v, then %v", shared, again)
		}
		if got := p.addresses(t, "web"); got != "shared_v4=127.0.0.1 v4=127.7.7.1 v6=fd77::1" {
			t.Errorf("web has %s", got)
		}
		if got := p.addresses(t, "api"); got != "v4=127.7.7.2" {
			t.Errorf("api has %s", got)
		}
		release := func(app hangar.AppName, ip string) error {
			return p.Addresses().ReleaseAddress(admin(t), app, netip.MustParseAddr(ip))
		}
		wantError(t, release("api", "127.7.7.1"), hangar.CodeNotFound, hangar.ReasonAddressNotFound)
		wantError(t, release("api", "127.0.0.1"), hangar.CodeNotFound, hangar.ReasonAddressNotFound)
		for _, ip := range []string{"127.7.7.1", "127.0.0.1"} {
			if err := release("web", ip); err != nil {
				t.Fatal(err)
			}
			wantError(t, release("web", ip), hangar.CodeNotFound, hangar.ReasonAddressNotFound)
		}
		if got := p.addresses(t, "web"); got != "v6=fd77::1" {
			t.Errorf("web has %s", got)
		}
		// What was released is given again when all others were.
		for i := range 5 {
			want := netip.MustParseAddr([]string{"127.7.7.3", "127.7.7.4", "127.7.7.5", "127.7.7.6", "127.7.7.1"}[i])
			if got := p.address(t, "api", hangar.AddressCreate{Kind: hangar.AddressV4}); got.IP != want {
				t.Errorf("address %d is %s, want %s", i, got.IP, want)
			}
		}
		_, err := p.Addresses().AllocateAddress(admin(t), "web", hangar.AddressCreate{Kind: hangar.AddressV4})
		wantError(t, err, hangar.CodeExhausted, "")
	})
}

func TestPrivateAddresses(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	app := p.app(t, "web")
	if _, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "lab", Network: "lab"}); err != nil {
		t.Fatal(err)
	}
	own := p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressPrivateV6})
	next := p.address(t, "lab", hangar.AddressCreate{Kind: hangar.AddressPrivateV6, Network: "default"})
	other := p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressPrivateV6, Network: "lab", Org: hangar.OrgPersonal})
	if own.NetworkID != app.NetworkID || own.Network != hangar.DefaultNetwork || !hangar.IsFlycast(own.IP) || next.IP != own.IP.Next() {
		t.Errorf("%+v, then %+v", own, next)
	}
	if other.NetworkID == app.NetworkID || other.Network != "lab" || other.IP != hangar.FlycastAddress(other.NetworkID, low48(other.IP)) || low48(other.IP) == low48(own.IP) {
		t.Errorf("in another network: %+v", other)
	}
	if err := p.Addresses().ReleaseAddress(admin(t), "lab", next.IP); err != nil {
		t.Fatal(err)
	}
	if again := p.address(t, "lab", hangar.AddressCreate{Kind: hangar.AddressPrivateV6, Network: "default"}); again.IP != next.IP.Next() {
		t.Errorf("after the release of %s: %s", next.IP, again.IP)
	}
}

func low48(ip netip.Addr) (n uint64) {
	a := ip.As16()
	for _, b := range a[10:] {
		n = n<<8 | uint64(b)
	}
	return n
}

func TestAddressRefusals(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	reader := as(t, hangar.Principal{Subject: "r", Grants: []hangar.Grant{{Org: hangar.OrgPersonal, Actions: hangar.ActionRead}}})
	if _, err := p.Addresses().Addresses(reader, "web"); err != nil {
		t.Error(err)
	}
	_, err := p.Addresses().AllocateAddress(reader, "web", hangar.AddressCreate{Kind: hangar.AddressV4})
	wantError(t, err, hangar.CodeForbidden, "")
	for range hangar.MaxAddresses {
		p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressV6})
	}
	_, err = p.Addresses().AllocateAddress(admin(t), "web", hangar.AddressCreate{Kind: hangar.AddressV6})
	wantError(t, err, hangar.CodeExhausted, "")

	p.pools = control.AddressPools{}
	p.restart(t)
	p.app(t, "bare")
	for _, kind := range hangar.AddressKinds()[:3] {
		_, err := p.Addresses().AllocateAddress(admin(t), "bare", hangar.AddressCreate{Kind: kind})
		wantError(t, err, hangar.CodeFailedPrecondition, "")
	}
	p.address(t, "bare", hangar.AddressCreate{Kind: hangar.AddressPrivateV6})
}

// TestAddressesAtOnce: however many ask at once, each address is one App's.
func TestAddressesAtOnce(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	var all sync.WaitGroup
	for i := range 8 {
		name := hangar.AppName(fmt.Sprintf("app-%d", i))
		p.app(t, name)
		all.Go(func() {
			for _, kind := range hangar.AddressKinds() {
				if _, err := p.Addresses().AllocateAddress(admin(t), name, hangar.AddressCreate{Kind: kind}); err != nil && hangar.CodeOf(err) != hangar.CodeExhausted {
					t.Errorf("%s of %s: %v", kind, name, err)
				}
			}
		})
	}
	all.Wait()
	if owners := p.records(t, "/address-owners/"); len(owners) != 6+8+8 {
		t.Errorf("%d addresses are somebody's: %v", len(owners), owners)
	}
}

// TestAddressesGoWithTheApp: whether its destruction ended or was broken off.
func TestAddressesGoWithTheApp(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	for _, kind := range hangar.AddressKinds() {
		p.address(t, "web", hangar.AddressCreate{Kind: kind})
	}
	p.app(t, "api")
	p.address(t, "api", hangar.AddressCreate{Kind: hangar.AddressV6})
	if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
		t.Fatal(err)
	}
	item, err := p.store.Get(t.Context(), "/apps/api")
	if err != nil {
		t.Fatal(err)
	}
	marked := state.Put(item.Key, append([]byte(`{"deleting":true,`), item.Value[1:]...))
	if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{marked}}); err != nil {
		t.Fatal(err)
	}
	p.restart(t)
	if left := append(p.records(t, "/addresses/"), p.records(t, "/address-owners/")...); len(left) > 0 {
		t.Errorf("there remain %v", left)
	}
	p.app(t, "web")
	if got := p.addresses(t, "web"); got != "" {
		t.Errorf("the new app has %s", got)
	}
}

// fakeEdge follows routes as an edge does.
type fakeEdge struct {
	mu      sync.Mutex // guards what follows
	apps    map[hangar.AppName]*hangar.AppRoute
	changed chan struct{}
}

func (e *fakeEdge) follow(ctx context.Context, feed hangar.RouteFeed) {
	for c, err := range feed.WatchRoutes(ctx) {
		if err != nil {
			continue
		}
		e.mu.Lock()
		delete(e.apps, c.App)
		if c.Route != nil {
			e.apps[c.App] = c.Route
		}
		close(e.changed)
		e.changed = make(chan struct{})
		e.mu.Unlock()
	}
}

// await returns when what the edge knows is as wanted.
func (e *fakeEdge) await(ctx context.Context, reached func(apps map[hangar.AppName]*hangar.AppRoute) bool) error {
	for {
		e.mu.Lock()
		done, changed := reached(e.apps), e.changed
		e.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *fakeEdge) AwaitRoute(ctx context.Context, app hangar.AppName, seq uint64) error {
	return e.await(ctx, func(apps map[hangar.AppName]*hangar.AppRoute) bool { return apps[app] != nil && apps[app].Seq >= seq })
}

func (e *fakeEdge) Domain() hangar.Hostname { return "hangar.localhost" }

// TestRoutesFollow: what an answer tells is what the edge serves by then.
func TestRoutesFollow(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		edge := &fakeEdge{apps: map[hangar.AppName]*hangar.AppRoute{}, changed: make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		p := newPlane(t, store)
		p.edge = edge
		p.restart(t)
		var following sync.WaitGroup
		following.Go(func() { edge.follow(ctx, control.NewRouteRecords(store, quiet)) })
		defer following.Wait()
		defer cancel()
		await := func(what string, reached func(apps map[hangar.AppName]*hangar.AppRoute) bool) {
			t.Helper()
			if err := edge.await(ctx, reached); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		app := p.app(t, "web")
		for range 3 {
			a := p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressV4})
			route := edge.apps["web"]
			if route == nil || route.Org != hangar.OrgPersonal || route.Network != app.NetworkID || len(route.Addresses) != 1 || route.Addresses[0] != *a {
				t.Fatalf("the edge has %v for %v", route, a)
			}
			if err := p.Addresses().ReleaseAddress(admin(t), "web", a.IP); err != nil {
				t.Fatal(err)
			}
			if route := edge.apps["web"]; len(route.Addresses) != 0 {
				t.Fatalf("the edge still has %v", route)
			}
		}
		p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressSharedV4})
		hostname(t, store, "www.example.com", "web")
		await("a name", func(apps map[hangar.AppName]*hangar.AppRoute) bool { return len(apps["web"].Hostnames) == 1 })
		p.app(t, "api")
		hostname(t, store, "www.example.com", "api")
		await("a name that changes hands", func(apps map[hangar.AppName]*hangar.AppRoute) bool {
			return len(apps["web"].Hostnames) == 0 && apps["api"] != nil && slices.Equal(apps["api"].Hostnames, []hangar.Hostname{"www.example.com"})
		})
		if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
			t.Fatal(err)
		}
		await("the end", func(apps map[hangar.AppName]*hangar.AppRoute) bool { return apps["web"] == nil })
	})
}

// hostname writes what makes a name an App's.
func hostname(t *testing.T, store state.Store, name hangar.Hostname, app hangar.AppName) {
	t.Helper()
	put := state.Put("/hostnames/"+string(name), fmt.Appendf(nil, `{"app":%q,"acme":true}`, app))
	if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{put}}); err != nil {
		t.Fatal(err)
	}
}

// TestUnreadableRoutes: a record that makes no sense harms no other.
func TestUnreadableRoutes(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	a := p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressV4})
	for _, put := range []state.Op{
		state.Put("/addresses/web/127.7.7.5", []byte("{")), state.Put("/addresses/web/127.7.7.6", []byte(`{"ip":"127.7.7.1","type":"v4","app_name":"web"}`)),
		state.Put("/addresses/web/x", []byte(`{"ip":"127.7.7.1","type":"new","app_name":"web"}`)), state.Put("/apps/bad", []byte("[]")), state.Put("/hostnames/a.b", []byte("7")),
	} {
		if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{put}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.addresses(t, "web"); got != "v4="+a.IP.String() {
		t.Errorf("web has %s", got)
	}
	for change, err := range control.NewRouteRecords(p.store, quiet).WatchRoutes(t.Context()) {
		if err != nil || change.Synced {
			break
		}
		if change.App != "web" || change.Route == nil || len(change.Route.Addresses) != 1 {
			if change.Route != nil {
				t.Errorf("the edge is told %+v", change.Route)
			}
		}
	}
	if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
		t.Fatal(err)
	}
	if left := p.records(t, "/addresses/"); len(left) > 0 {
		t.Errorf("there remain %v", left)
	}
}

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
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/ippool"
	"github.com/hangar-platform/hangar/test/contract"
)

// testPools hold six addresses of IPv4 and many of IPv6.
func testPools(t *testing.T) addresses.Pools {
	t.Helper()
	v4, err := ippool.Parse("127.7.7.0/29", ippool.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	v6, err := ippool.Parse("fd77::/64", ippool.IPv6)
	if err != nil {
		t.Fatal(err)
	}
	return addresses.Pools{Shared: netip.MustParseAddr("127.0.0.1"), V4: v4, V6: v6}
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

	p.pools = addresses.Pools{}
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
		t.Errorf("%d addresses have an owner: %v", len(owners), owners)
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
	apps    map[hangar.AppID]*hangar.AppRoute
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

// route returns what the edge knows about an App, which may be nothing.
func (e *fakeEdge) route(app hangar.AppID) *hangar.AppRoute {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.apps[app]
}

// await returns when what the edge knows is as wanted.
func (e *fakeEdge) await(ctx context.Context, reached func(apps map[hangar.AppID]*hangar.AppRoute) bool) error {
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

// AwaitRoute waits longer than its caller does, which then answers without the edge.
func (e *fakeEdge) AwaitRoute(ctx context.Context, app hangar.AppID, seq uint64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return e.await(ctx, func(apps map[hangar.AppID]*hangar.AppRoute) bool { return apps[app] != nil && apps[app].Seq >= seq })
}

func (e *fakeEdge) Domain() hangar.Hostname { return "hangar.localhost" }

// TestRoutesFollow: what an answer tells is what the edge serves by then.
func TestRoutesFollow(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		edge := &fakeEdge{apps: map[hangar.AppID]*hangar.AppRoute{}, changed: make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		p := newPlane(t, store)
		p.edge = edge
		p.restart(t)
		var following sync.WaitGroup
		following.Go(func() { edge.follow(ctx, control.NewRouteRecords(store, quiet)) })
		defer following.Wait()
		defer cancel()
		await := func(what string, reached func(apps map[hangar.AppID]*hangar.AppRoute) bool) {
			t.Helper()
			if err := edge.await(ctx, reached); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		app := p.app(t, "web")
		for range 3 {
			a := p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressV4})
			route := edge.route(app.ID)
			if route == nil || route.Org != app.Org.ID || route.Network != app.NetworkID || len(route.Addresses) != 1 || route.Addresses[0] != *a {
				t.Fatalf("the edge has %v for %v", route, a)
			}
			if err := p.Addresses().ReleaseAddress(admin(t), "web", a.IP); err != nil {
				t.Fatal(err)
			}
			if route := edge.route(app.ID); len(route.Addresses) != 0 {
				t.Fatalf("the edge still has %v", route)
			}
		}
		p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressSharedV4})
		hostname(t, store, "www.example.com", app)
		await("a name", func(apps map[hangar.AppID]*hangar.AppRoute) bool { return len(apps[app.ID].Hostnames) == 1 })
		shop := p.app(t, "shop")
		hostname(t, store, "www.example.com", shop)
		await("a name that changes hands", func(apps map[hangar.AppID]*hangar.AppRoute) bool {
			return len(apps[app.ID].Hostnames) == 0 && apps[shop.ID] != nil && slices.Equal(apps[shop.ID].Hostnames, []hangar.Hostname{"www.example.com"})
		})
		if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
			t.Fatal(err)
		}
		await("the end", func(apps map[hangar.AppID]*hangar.AppRoute) bool { return apps[app.ID] == nil })
	})
}

// hostname writes what makes a name an App's.
func hostname(t *testing.T, store state.Store, name hangar.Hostname, app *hangar.App) {
	t.Helper()
	labels := strings.Split(string(name), ".")
	slices.Reverse(labels)
	put := state.Put("/hostnames/"+strings.Join(labels, "."), fmt.Appendf(nil, `{"app":%q,"app_id":%q,"acme":true,"state":"proven"}`, app.Name, app.ID))
	if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{put}}); err != nil {
		t.Fatal(err)
	}
}

// TestUnreadableRoutes: a record that makes no sense harms no other.
func TestUnreadableRoutes(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	app := p.app(t, "web")
	a := p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressV4})
	of := "/addresses/" + string(app.ID)
	for _, put := range []state.Op{
		state.Put(of+"/127.7.7.5", []byte("{")), state.Put(of+"/127.7.7.6", []byte(`{"ip":"127.7.7.1","type":"v4","app_name":"web"}`)),
		state.Put(of+"/x", []byte(`{"ip":"127.7.7.1","type":"new","app_name":"web"}`)), state.Put("/apps/bad", []byte("[]")), state.Put("/hostnames/a.b", []byte("7")),
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
		if change.App != app.ID || change.Route == nil || len(change.Route.Addresses) != 1 {
			if change.Route != nil {
				t.Errorf("the edge receives %+v", change.Route)
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

// TestReservedNames: no new App gets a name that the platform has below the domain, and one
// that has it already is not said to be served there.
func TestReservedNames(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "api") // while there was no edge
	p.address(t, "api", hangar.AddressCreate{Kind: hangar.AddressV4})
	edge := &fakeEdge{apps: map[hangar.AppID]*hangar.AppRoute{}, changed: make(chan struct{})}
	p.edge = edge
	p.restart(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var following sync.WaitGroup
	following.Go(func() { edge.follow(ctx, control.NewRouteRecords(p.store, quiet)) })
	defer following.Wait()
	defer cancel()
	for _, name := range []hangar.AppName{hangar.AppName(hangar.PlatformAPI), hangar.AppName(hangar.PlatformRegistry), hangar.AppName(hangar.PlatformOIDC), "auth", "metrics", "ui", "www", "wpad"} {
		_, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: name, Org: hangar.OrgPersonal})
		wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadName)
		if err == nil || !strings.Contains(err.Error(), string(name)+".hangar.localhost") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if made, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "api2", Org: hangar.OrgPersonal}); err != nil || made.Name != "api2" {
		t.Errorf("a name that only begins like one: %v", err)
	}
	c, err := p.Certificates().UploadCertificate(admin(t), "api", "www.example.com", uploadOf(t, "www.example.com"))
	if err != nil || c.CNAME != "" {
		t.Errorf("the app that was there is to be called as %q, %v", c.CNAME, err)
	}
}

package control_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/extensions/call"
	"github.com/hangar-platform/hangar/control/hostnames"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/users"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envRotateIn); dir != "" {
		if err := rotateAndDie(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// clock is a time that stands still until it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// plane is a control plane with its surroundings.
type plane struct {
	*control.Control
	store        state.Store
	auth         *auth.Tokens
	issuer       *oidc.Issuer
	dir          string // of the admin token
	hosts        fleet
	agents       hangar.Agents // nil: the hosts
	rows         *control.Rows
	keys         *keyset.Keyset
	clock        *clock
	gateway      *fakeGateway
	edge         hangar.RouteHost // nil: there is none
	quotas       ledger.Defaults
	pools        addresses.Pools
	certificates hangar.CertificateHost // nil: there is none
	resolver     hostnames.Resolver     // nil: the system's
	trustNames   bool                   // see control.Config
	roots        *x509.CertPool         // nil: the system's
	log          hangar.EdgeLog         // nil: there is none
}

// signingKey is one key for all, because making one takes long.
var signingKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

var quiet = slog.New(slog.DiscardHandler)

// newPlane opens a control plane over a state and hosts, which publish into it.
func newPlane(t *testing.T, store state.Store, hosts ...*fakeHost) *plane {
	t.Helper()
	if len(hosts) == 0 {
		hosts = []*fakeHost{newFakeHost("aaaaaaaa", "loc")}
	}
	p := &plane{
		store: store, dir: t.TempDir(), hosts: hosts, rows: control.NewRows(store, quiet), keys: newKeys(t), gateway: &fakeGateway{}, pools: testPools(t),
		clock: &clock{now: time.Unix(1_700_000_000, 0)},
	}
	for _, h := range hosts {
		h.publish, h.rows = p.rows, p.rows
	}
	p.restart(t)
	return p
}

func newKeys(t *testing.T) *keyset.Keyset {
	t.Helper()
	keys, err := keyset.Create(filepath.Join(t.TempDir(), keyset.File))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// restart replaces the control plane by a new one, as after a crash.
func (p *plane) restart(t *testing.T) {
	t.Helper()
	p.auth = auth.New(auth.Config{Store: p.store, Dir: p.dir, Now: p.clock.Now})
	if err := p.auth.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.issuer = oidc.New(oidc.Config{
		Store: p.store, Vault: vault.New(p.store, p.keys, quiet), Issuer: "https://oidc.example", Audience: "https://example",
		Now: p.clock.Now, NewKey: signingKey,
	})
	if p.rows != nil {
		p.rows.SetQuotas(p.quotas)
	}
	agents := p.agents
	if agents == nil {
		agents = p.hosts
	}
	p.Control = control.New(control.Config{
		Store: p.store, Tokens: p.auth, Issuer: p.issuer, Peers: p.gateway, Routes: p.edge, EdgeLog: p.log, Certificates: p.certificates, Resolver: p.resolver, TrustHostnames: p.trustNames, Roots: p.roots, Doors: []hangar.Hostname{"oidc.example.com"}, Addresses: p.pools, Quotas: p.quotas, Agents: agents, Keys: p.keys, Region: "loc", Log: quiet, Now: p.clock.Now, Calls: call.New(publicdial.New(publicdial.Options{}), p.clock.Now),
		PasswordCost: users.PasswordCost{Memory: 16, Passes: 1, Threads: 1},
	})
	if err := p.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.issuer.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// onEachStore runs a test on every Store.
func onEachStore(t *testing.T, test func(t *testing.T, store state.Store)) {
	t.Run("memory", func(t *testing.T) { test(t, state.NewMemory()) })
	t.Run("mirror", func(t *testing.T) { test(t, mirror(t, state.NewMemory())) })
	t.Run("etcd", func(t *testing.T) { test(t, openEtcd(t)) })
	t.Run("mirror of etcd", func(t *testing.T) { test(t, mirror(t, openEtcd(t))) })
}

func openEtcd(t *testing.T) *state.Etcd {
	t.Helper()
	s, err := state.OpenEtcd(t.Context(), state.EtcdConfig{Dir: t.TempDir(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func mirror(t *testing.T, store state.Store) *state.Mirror {
	t.Helper()
	m := control.NewMirror(store, quiet)
	if err := m.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() }) // never fails
	return m
}

func as(t *testing.T, p hangar.Principal) context.Context {
	t.Helper()
	return hangar.WithPrincipal(t.Context(), p)
}

func admin(t *testing.T) context.Context {
	t.Helper()
	return as(t, hangar.Principal{Subject: "admin", Admin: true, User: hangar.UserAdmin, SignedIn: true})
}

func wantError(t *testing.T, err error, code hangar.Code, reason string) {
	t.Helper()
	if hangar.CodeOf(err) != code || hangar.ReasonOf(err) != reason {
		t.Fatalf("%v (code %q, reason %q); want code %q, reason %q", err, hangar.CodeOf(err), hangar.ReasonOf(err), code, reason)
	}
}

func (p *plane) app(t *testing.T, name hangar.AppName) *hangar.App {
	t.Helper()
	app, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return app
}

func (p *plane) machine(t *testing.T, app hangar.AppName, name string) *hangar.Machine {
	t.Helper()
	m, err := p.Machines().CreateMachine(admin(t), app, wish(name))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func wish(name string) hangar.MachineCreate {
	return hangar.MachineCreate{Name: name, Config: hangar.MachineConfig{Image: "nginx:alpine"}}
}

// records are the keys of a prefix.
func (p *plane) records(t *testing.T, prefix string) (keys []string) {
	t.Helper()
	items, _, err := state.All(t.Context(), p.store, prefix, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range items {
		keys = append(keys, i.Key)
	}
	return keys
}

func TestOpenMayBeRepeated(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		before := p.records(t, "/")
		p.restart(t)
		if after := p.records(t, "/"); !reflect.DeepEqual(before, after) {
			t.Errorf("records %v became %v", before, after)
		}
	})
}

package control_test

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	store state.Store
	hosts fleet
	rows  *control.Rows
	clock *clock
}

var quiet = slog.New(slog.DiscardHandler)

// newPlane opens a control plane over a state and hosts, which publish into it.
func newPlane(t *testing.T, store state.Store, hosts ...*fakeHost) *plane {
	t.Helper()
	if len(hosts) == 0 {
		hosts = []*fakeHost{newFakeHost("aaaaaaaa", "loc")}
	}
	p := &plane{store: store, hosts: hosts, rows: control.NewRows(store, quiet), clock: &clock{now: time.Unix(1_700_000_000, 0)}}
	for _, h := range hosts {
		h.publish = p.rows
	}
	p.restart(t)
	return p
}

// restart replaces the control plane by a new one, as after a crash.
func (p *plane) restart(t *testing.T) {
	t.Helper()
	p.Control = control.New(control.Config{Store: p.store, Agents: p.hosts, Region: "loc", Log: quiet, Now: p.clock.Now})
	if err := p.Open(t.Context()); err != nil {
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
	return as(t, hangar.Principal{Subject: "admin", Admin: true})
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

// TestEveryMethodNeedsAPrincipal calls every method of the services without one.
func TestEveryMethodNeedsAPrincipal(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	services := []struct {
		contract reflect.Type
		service  any
	}{
		{reflect.TypeFor[hangar.AppService](), p.Apps()},
		{reflect.TypeFor[hangar.MachineService](), p.Machines()},
		{reflect.TypeFor[hangar.LogService](), p.Logs()},
		{reflect.TypeFor[hangar.ImageService](), p.Images()},
		{reflect.TypeFor[hangar.PlatformService](), p.Platform()},
	}
	calls := 0
	for _, s := range services {
		for m := range s.contract.Methods() {
			t.Run(s.contract.Name()+"."+m.Name, func(t *testing.T) {
				method := reflect.ValueOf(s.service).MethodByName(m.Name)
				args := []reflect.Value{reflect.ValueOf(t.Context())}
				for i := 1; i < method.Type().NumIn(); i++ {
					args = append(args, reflect.Zero(method.Type().In(i)))
				}
				calls++
				if code := hangar.CodeOf(errorOf(t, method.Call(args))); code != hangar.CodeUnauthenticated {
					t.Errorf("without a principal: %q, want unauthenticated", code)
				}
			})
		}
	}
	if calls < 20 {
		t.Errorf("only %d methods were called", calls)
	}
}

// errorOf is the error among results, or the first one that a result yields.
func errorOf(t *testing.T, results []reflect.Value) error {
	t.Helper()
	last := results[len(results)-1]
	if last.Type().CanSeq2() {
		for _, v := range last.Seq2() {
			err, _ := reflect.TypeAssert[error](v)
			return err
		}
		t.Fatal("yields nothing")
	}
	err, _ := reflect.TypeAssert[error](last)
	return err
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

func TestTokensInTheState(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		dir := t.TempDir()
		for range 2 {
			tokens := auth.New(auth.Config{Store: control.NewTokens(store), Dir: dir})
			if err := tokens.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		records, err := control.NewTokens(store).Tokens(t.Context())
		if err != nil || len(records) != 1 || records[0].Name != "admin" || !records[0].Principal.Admin || len(records[0].Digest) != 32 {
			t.Fatalf("records %+v, %v; want one of the admin", records, err)
		}
	})
}

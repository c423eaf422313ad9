package control_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/test/contract"
)

func TestAppNames(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	tests := []struct {
		name hangar.AppName
		text string // empty: allowed
	}{
		{"web", ""},
		{"web-2", ""},
		{"0", ""},
		{hangar.AppName(strings.Repeat("a", 63)), ""},
		{"", "Validation failed: Name can't be blank"},
		{hangar.AppName(strings.Repeat("a", 64)), "Validation failed: Name is too long (maximum is 63 characters)"},
		{"Web", "Validation failed: Name may only contain numbers, lowercase letters and dashes"},
		{"web_2", "Validation failed: Name may only contain numbers, lowercase letters and dashes"},
		{"web/2", "Validation failed: Name may only contain numbers, lowercase letters and dashes"},
		{"wéb", "Validation failed: Name may only contain numbers, lowercase letters and dashes"},
		{"-web", "Validation failed: Name may not start or end with a dash"},
		{"web-", "Validation failed: Name may not start or end with a dash"},
	}
	for _, tt := range tests {
		_, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: tt.name})
		if tt.text == "" {
			if err != nil {
				t.Errorf("%q: %v", tt.name, err)
			}
			continue
		}
		if err == nil || err.Error() != tt.text || hangar.CodeOf(err) != hangar.CodeInvalid || hangar.ReasonOf(err) != hangar.ReasonBadName {
			t.Errorf("%q: %v, want %s", tt.name, err, tt.text)
		}
		if _, err := p.Apps().App(admin(t), tt.name); hangar.ReasonOf(err) != hangar.ReasonAppNotFound {
			t.Errorf("get %q: %v, want not found", tt.name, err)
		}
	}
}

func TestAppLife(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		ctx := admin(t)
		_, err := p.Apps().App(ctx, "web")
		wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
		if want := "app not found"; err.Error() != want {
			t.Errorf("text %q, want %q", err, want)
		}
		web := p.app(t, "web")
		if web.Status != hangar.AppPending || web.NumericID == 0 || web.ID == "" || web.NetworkID == 0 ||
			web.Network != hangar.DefaultNetwork || web.Org.Slug != hangar.OrgPersonal || web.Org.Name == "" {
			t.Errorf("created %+v", web)
		}
		_, err = p.Apps().CreateApp(ctx, hangar.AppCreate{Name: "web", Org: hangar.OrgPersonal})
		wantError(t, err, hangar.CodeInvalid, hangar.ReasonNameTaken)
		if want := "Validation failed: Name has already been taken"; err.Error() != want {
			t.Errorf("text %q, want %q", err, want)
		}
		p.app(t, "api")
		m := p.machine(t, "web", "")
		apps, err := p.Apps().Apps(ctx, hangar.AppFilter{Org: hangar.OrgPersonal})
		if err != nil || len(apps) != 2 || apps[0].Name != "api" || apps[1].Name != "web" || apps[1].MachineCount != 1 ||
			apps[1].Status != hangar.AppDeployed || apps[0].Status != hangar.AppPending || apps[0].MachineCount != 0 {
			t.Fatalf("apps %+v, %v", apps, err)
		}
		if err := p.Machines().DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
			t.Fatal(err)
		}
		got, err := p.Apps().App(ctx, "web")
		if err != nil || got.MachineCount != 0 || got.Status != hangar.AppDeployed {
			t.Errorf("after its only machine was destroyed: %+v, %v", got, err)
		}
		if err := p.Apps().DestroyApp(ctx, "web", false); err != nil {
			t.Fatal(err)
		}
		wantError(t, p.Apps().DestroyApp(ctx, "web", false), hangar.CodeNotFound, hangar.ReasonAppNotFound)
		again := p.app(t, "web")
		if again.NumericID <= web.NumericID || again.ID == web.ID || again.NetworkID != web.NetworkID || again.Status != hangar.AppPending {
			t.Errorf("created again: %+v, was %+v", again, web)
		}
		if _, err := p.Machines().Machine(ctx, m.Ref()); hangar.ReasonOf(err) != hangar.ReasonAppNotFound {
			t.Errorf("the former app: %v", err)
		}
		if _, err := p.Machines().Machine(ctx, hangar.MachineRef{App: "web", ID: m.ID}); hangar.ReasonOf(err) != hangar.ReasonMachineNotFound {
			t.Errorf("machine of the former app: %v", err)
		}
		all, err := p.Machines().Machines(ctx, "web", hangar.MachineFilter{IncludeDestroyed: true})
		if err != nil || len(all) != 0 {
			t.Errorf("machines of the former app are listed: %v, %v", all, err)
		}
	})
}

func TestNetworks(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	create := func(name hangar.AppName, network string) hangar.NetworkID {
		t.Helper()
		app, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: name, Network: network})
		if err != nil {
			t.Fatal(err)
		}
		return app.NetworkID
	}
	a, b, c, d := create("a", ""), create("b", hangar.DefaultNetwork), create("c", "private"), create("d", "other")
	if a != b || a == c || c == d || a == d {
		t.Fatalf("numbers %d %d %d %d", a, b, c, d)
	}
	if err := p.Apps().DestroyApp(admin(t), "c", true); err != nil {
		t.Fatal(err)
	}
	if e := create("e", "private"); e != c {
		t.Errorf("network got number %d, had %d", e, c)
	}
	if f := create("f", "third"); f == a || f == c || f == d {
		t.Errorf("number %d is given twice", f)
	}
	for _, bad := range []string{"1st", "a b", "a/b", "-", "ä", strings.Repeat("n", 64)} {
		_, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "bad", Network: bad})
		wantError(t, err, hangar.CodeInvalid, "")
	}
}

func TestConcurrentApps(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		const names, each = 8, 4
		var mu sync.Mutex
		made := map[hangar.AppName]*hangar.App{}
		var wg sync.WaitGroup
		for n := range names {
			for range each {
				wg.Go(func() {
					name := hangar.AppName(fmt.Sprintf("app-%d", n))
					app, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: name, Network: "net-" + string(name)})
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil && made[name] != nil:
						t.Errorf("%s was created twice", name)
					case err == nil:
						made[name] = app
					case hangar.ReasonOf(err) != hangar.ReasonNameTaken:
						t.Errorf("%s: %v", name, err)
					}
				})
			}
		}
		wg.Wait()
		numbers, networks := map[uint64]bool{}, map[hangar.NetworkID]bool{}
		for _, app := range made {
			numbers[app.NumericID], networks[app.NetworkID] = true, true
		}
		if len(made) != names || len(numbers) != names || len(networks) != names {
			t.Errorf("%d apps with %d numbers and %d networks, want %d", len(made), len(numbers), len(networks), names)
		}
	})
}

func TestDestroyAppWithMachines(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store, newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"))
		ctx := admin(t)
		web := p.app(t, "web")
		p.app(t, "web-2") // whose records sort among those of web
		for range 10 {
			p.machine(t, "web", "")
		}
		kept := p.machine(t, "web-2", "kept")
		wantError(t, p.Apps().DestroyApp(ctx, "web", false), hangar.CodeFailedPrecondition, hangar.ReasonMachinesRunning)
		if app, err := p.Apps().App(ctx, "web"); err != nil || app.MachineCount != 10 {
			t.Fatalf("after a refusal: %+v, %v", app, err)
		}
		p.machine(t, "web", "another") // the refusal marked nothing
		if err := p.Apps().DestroyApp(ctx, "web", true); err != nil {
			t.Fatal(err)
		}
		if left := p.records(t, state.ReservationKey(hangar.MachineRef{AppID: web.ID})); len(left) > 0 {
			t.Errorf("reservations left: %v", left)
		}
		if left := p.records(t, state.NameKey(web.ID, "")); len(left) > 0 {
			t.Errorf("names left: %v", left)
		}
		if alive := append(p.hosts[0].alive(), p.hosts[1].alive()...); len(alive) != 1 || alive[0] != kept.ID {
			t.Errorf("machines alive: %v, want %s", alive, kept.ID)
		}
		if m, err := p.Machines().Machine(ctx, kept.Ref()); err != nil || m.State != hangar.MachineStarted {
			t.Errorf("machine of the other app: %+v, %v", m, err)
		}
	})
}

func TestDestroyAppOfManyMachines(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	for range 2*state.MaxTxnOps + 1 {
		p.machine(t, "web", "")
	}
	if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
		t.Fatal(err)
	}
	if left := p.records(t, "/machine"); len(left) > 0 {
		t.Errorf("%d records left", len(left))
	}
}

func TestDestroyAppWhileAHostIsAway(t *testing.T) {
	p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"))
	ctx := admin(t)
	p.app(t, "web")
	for range 40 {
		p.machine(t, "web", "")
	}
	p.hosts[1].setDown(true)
	if err := p.Apps().DestroyApp(ctx, "web", true); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Fatalf("with a host away: %v, want unavailable", err)
	}
	if alive := p.hosts[0].alive(); len(alive) > 0 {
		t.Errorf("with a host away, the other one still has %d Machines", len(alive))
	}
	_, err := p.Machines().CreateMachine(ctx, "web", wish(""))
	wantError(t, err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	p.restart(t) // with the host still away
	if _, err := p.Apps().App(ctx, "web"); err != nil {
		t.Fatalf("app is gone before its machines are: %v", err)
	}
	p.hosts[1].setDown(false)
	p.restart(t)
	if _, err := p.Apps().App(ctx, "web"); hangar.ReasonOf(err) != hangar.ReasonAppNotFound {
		t.Errorf("after the host came back: %v, want not found", err)
	}
	if alive := append(p.hosts[0].alive(), p.hosts[1].alive()...); len(alive) > 0 {
		t.Errorf("machines alive: %v", alive)
	}
}

// TestDestructionIsFinished: an App that could not be destroyed as a host was away is destroyed once that is
// back, without another call or start; so is one of which the server learns at its start.
func TestDestructionIsFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"))
		ctx := admin(t)
		var running sync.WaitGroup
		run := func() (stop func()) {
			own, cancel := context.WithCancel(ctx)
			plane := p.Control
			running.Go(func() { _ = plane.Run(own) })
			return func() { cancel(); running.Wait() }
		}
		stop := run()
		for _, restarted := range []bool{false, true} {
			p.app(t, "web")
			for range 6 {
				p.machine(t, "web", "")
			}
			p.hosts[1].setDown(true)
			if err := p.Apps().DestroyApp(ctx, "web", true); hangar.CodeOf(err) != hangar.CodeUnavailable {
				t.Fatalf("with a host away: %v, want unavailable", err)
			}
			if restarted {
				stop()
				p.restart(t)
				stop = run()
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if _, err := p.Apps().App(ctx, "web"); err != nil {
				t.Fatalf("the App is gone before its Machines are: %v", err)
			}
			p.hosts[1].setDown(false)
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if _, err := p.Apps().App(ctx, "web"); hangar.ReasonOf(err) != hangar.ReasonAppNotFound {
				t.Errorf("two minutes after the host came back, restarted %t: %v, want not found", restarted, err)
			}
			if alive := append(p.hosts[0].alive(), p.hosts[1].alive()...); len(alive) > 0 {
				t.Errorf("Machines alive: %v", alive)
			}
		}
		stop()
	})
}

func TestDestroyAppTwiceAtOnce(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.app(t, "web")
		for range 8 {
			p.machine(t, "web", "")
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
					t.Error(err)
				}
			})
			wg.Go(func() { _, _ = p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "web"}) })
			wg.Go(func() { _, _ = p.Machines().CreateMachine(admin(t), "web", wish("")) })
		}
		wg.Wait()
		p.check(t)
	})
}

// TestCreationEndsDuringDestruction lets a host make a Machine just after it was
// told to destroy it.
func TestCreationEndsDuringDestruction(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	reserved, proceed, created := make(chan struct{}), make(chan struct{}), make(chan struct{})
	p.hosts[0].onCreate = func(hangar.MachineSpec) (error, error) {
		close(reserved)
		<-proceed
		return nil, nil
	}
	p.hosts[0].onDestroy = func() {
		close(proceed)
		<-created
	}
	ctx := admin(t)
	go func() {
		defer close(created)
		if _, err := p.Machines().CreateMachine(ctx, "web", wish("")); err != nil {
			t.Error(err)
		}
	}()
	<-reserved
	if err := p.Apps().DestroyApp(ctx, "web", true); err != nil {
		t.Fatal(err)
	}
	if alive := p.hosts[0].alive(); len(alive) > 0 {
		t.Errorf("machines alive: %v", alive)
	}
	p.check(t)
}

// TestDestructionThatIsTooLate finds a new App of the same name in its place.
func TestDestructionThatIsTooLate(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	ctx := admin(t)
	p.app(t, "web")
	p.hosts[0].publish = nil
	p.machine(t, "web", "")
	var lost []state.Op
	for _, key := range p.records(t, "/machine") {
		lost = append(lost, state.Delete(key)) // so that no change of a reservation stops it
	}
	if _, err := p.store.Txn(t.Context(), state.Txn{Then: lost}); err != nil {
		t.Fatal(err)
	}
	var kept *hangar.Machine
	p.hosts[0].onDestroy = func() {
		if err := p.Apps().DestroyApp(ctx, "web", true); err != nil {
			t.Error(err)
		}
		p.app(t, "web")
		kept = p.machine(t, "web", "kept")
	}
	if err := p.Apps().DestroyApp(ctx, "web", true); err != nil {
		t.Fatal(err)
	}
	if m, err := p.Machines().Machine(ctx, kept.Ref()); err != nil || m.State != hangar.MachineStarted {
		t.Errorf("machine of the new app: %+v, %v", m, err)
	}
	p.check(t)
}

// TestContract runs the suite that every implementation of the service passes.
// TestContract runs the suites that need no host that really runs something.
func TestContract(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	h := p.harness(hangar.Principal{Subject: "admin", Admin: true})
	t.Run("orgs", func(t *testing.T) { contract.OrgService(t, h) })
	t.Run("tokens", func(t *testing.T) { contract.TokenService(t, h) })
	t.Run("apps", func(t *testing.T) { contract.AppService(t, h) })
}

// harness is the plane as a principal sees it.
func (p *plane) harness(who hangar.Principal) contract.Harness {
	return contract.Harness{
		Orgs: p.Orgs(), Tokens: p.Tokens(), Apps: p.Apps(), Machines: p.Machines(), Platform: p.Platform(), Volumes: p.Volumes(), Addresses: p.Addresses(), Image: "nginx:alpine", Sleep: []string{"sleep"},
		Context: func(tb testing.TB) context.Context {
			tb.Helper()
			return hangar.WithPrincipal(tb.Context(), who)
		},
		As: func(tb testing.TB, credential string) contract.Harness {
			tb.Helper()
			who, err := p.auth.Authenticate(tb.Context(), credential)
			if err != nil {
				return p.unauthenticated()
			}
			return p.harness(who)
		},
		Exit: func(code int) []string { return []string{"exit", fmt.Sprint(code)} },
	}
}

// unauthenticated is the plane as a caller with an invalid credential sees it.
func (p *plane) unauthenticated() contract.Harness {
	h := p.harness(hangar.Principal{})
	h.Context = func(tb testing.TB) context.Context {
		tb.Helper()
		return tb.Context()
	}
	return h
}

func TestUnreadableAppBreaksOnlyItself(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "good")
	if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/apps/bad", []byte("{"))}}); err != nil {
		t.Fatal(err)
	}
	p.restart(t)
	apps, err := p.Apps().Apps(admin(t), hangar.AppFilter{})
	if err != nil || len(apps) != 1 || apps[0].Name != "good" {
		t.Errorf("apps %+v, %v; want the good one", apps, err)
	}
	if _, err := p.Apps().App(admin(t), "bad"); hangar.CodeOf(err) != hangar.CodeInternal {
		t.Errorf("the bad one: %v, want internal", err)
	}
}

package control_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/state"
)

// check verifies what holds whenever nothing is under way: each living Machine of
// a host that is up has one reservation, which is confirmed once the control plane
// was opened, and its name; and there is no reservation and no name beside them.
func (p *plane) check(t *testing.T) {
	t.Helper()
	p.restart(t)
	reserved := map[string]bool{}
	for _, key := range p.records(t, "/machines/") {
		reserved[key] = true
	}
	names := p.records(t, "/machine-names/")
	alive := 0
	for _, h := range p.hosts {
		list, err := h.Machines(t.Context(), "", hangar.MachineFilter{IncludeDestroyed: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			key := fmt.Sprintf("/machines/%s/%s", m.AppID, m.ID)
			if m.State == hangar.MachineDestroyed {
				if h.publish == nil {
					delete(reserved, key)
				}
				continue
			}
			alive++
			if !reserved[key] {
				t.Errorf("machine %s of %s lives without a reservation", m.ID, m.App)
			}
			delete(reserved, key)
			if name := fmt.Sprintf("/machine-names/%s/%s", m.AppID, m.Name); !slices.Contains(names, name) {
				t.Errorf("machine %s lives without its name %s", m.ID, m.Name)
			}
		}
	}
	for key := range reserved {
		t.Errorf("reservation %s has no machine", key)
	}
	if len(names) != alive {
		t.Errorf("%d names of %d machines: %v", len(names), alive, names)
	}
}

func TestMachineLife(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		ctx := admin(t)
		p.app(t, "web")
		m := p.machine(t, "web", "")
		if !m.ID.Valid() || !regexp.MustCompile(`^[a-z]+-[a-z]+-\d{4}$`).MatchString(m.Name) || m.Host != "aaaaaaaa" || m.Region != "loc" {
			t.Errorf("created %+v", m)
		}
		got, err := p.Machines().Machine(ctx, m.Ref())
		if err != nil || got.ID != m.ID {
			t.Fatalf("got %+v, %v", got, err)
		}
		if err := p.Machines().StopMachine(ctx, m.Ref(), hangar.MachineStop{}); err != nil {
			t.Fatal(err)
		}
		if r, err := p.Machines().StartMachine(ctx, m.Ref()); err != nil || r.PreviousState != hangar.MachineStopped {
			t.Errorf("start: %+v, %v", r, err)
		}
		if r, err := p.Machines().ExecMachine(ctx, m.Ref(), hangar.ExecRequest{}, hangar.ExecStreams{}); err != nil || r.ExitCode != 7 {
			t.Errorf("exec: %+v, %v", r, err)
		}
		for c, err := range p.Machines().WatchMachine(ctx, m.Ref()) {
			if err != nil || c.Machine.ID != m.ID {
				t.Errorf("watch: %+v, %v", c, err)
			}
		}
		wantError(t, p.Machines().DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{}), hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
		if err := p.Machines().DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
			t.Fatal(err)
		}
		if got, err := p.Machines().Machine(ctx, m.Ref()); err != nil || got.State != hangar.MachineDestroyed {
			t.Errorf("a destroyed machine is still shown for a day: %+v, %v", got, err)
		}
		p.check(t)
		if left := append(p.records(t, "/machine"), p.records(t, "/hosts/")...); len(left) > 0 {
			t.Errorf("the state has of a destroyed machine: %v", left)
		}
		all := hangar.MachineFilter{IncludeDestroyed: true}
		if list, err := p.Machines().Machines(ctx, "web", all); err != nil || len(list) != 1 {
			t.Errorf("listed with destroyed ones: %+v, %v", list, err)
		}
		if list, err := p.Machines().Machines(ctx, "web", hangar.MachineFilter{}); err != nil || len(list) != 0 {
			t.Errorf("listed: %+v, %v", list, err)
		}
		page, err := p.Machines().OrgMachines(ctx, "personal", hangar.MachinePageQuery{Limit: 10, MachineFilter: all})
		if err != nil || len(page.Machines) != 1 {
			t.Errorf("listed for the organization: %+v, %v", page, err)
		}
		p.hosts[0].forget(m.ID)
		_, err = p.Machines().Machine(ctx, m.Ref())
		wantError(t, err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
		if !strings.Contains(err.Error(), "machine not found") {
			t.Errorf("text %q", err)
		}
	})
}

func TestMachineNotFound(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	p.app(t, "other")
	m := p.machine(t, "web", "")
	for _, ref := range []hangar.MachineRef{
		{App: "web", ID: "00000000000000"}, {App: "other", ID: m.ID}, {App: "web"}, {App: "web", ID: "../../apps/web"}, {App: "web", ID: m.ID + "0"},
	} {
		_, err := p.Machines().Machine(admin(t), ref)
		wantError(t, err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	}
	_, err := p.Machines().Machine(admin(t), hangar.MachineRef{App: "none", ID: m.ID})
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = p.Machines().CreateMachine(admin(t), "none", wish(""))
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
}

func TestCreateMachineChecks(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	tests := []struct {
		name string
		in   hangar.MachineCreate
	}{
		{"capital letters", wish("Web")},
		{"a slash", wish("a/b")},
		{"a long name", wish(strings.Repeat("a", 64))},
		{"no image", hangar.MachineCreate{}},
		{"unknown region", hangar.MachineCreate{Region: "xyz", Config: wish("").Config}},
	}
	for _, tt := range tests {
		_, err := p.Machines().CreateMachine(admin(t), "web", tt.in)
		if hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%s: %v, want invalid", tt.name, err)
		}
	}
	p.check(t)
}

// TestMachineRegions: a requested region may be a word for several, or a list.
func TestMachineRegions(t *testing.T) {
	p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "ams"), newFakeHost("cccccccc", "syd"))
	p.app(t, "web")
	for wished, want := range map[hangar.Region]hangar.Region{
		"": "loc", "any": "loc", "ams": "ams", "eu": "ams", "xyz,syd,ams": "syd", "ams, syd": "ams", "fra,apac": "syd",
	} {
		in := wish("")
		in.Region = wished
		if m, err := p.Machines().CreateMachine(admin(t), "web", in); err != nil || m.Region != want {
			t.Errorf("%q: %+v, %v, want %s", wished, m, err, want)
		}
		v, err := p.Volumes().CreateVolume(admin(t), "web", hangar.VolumeCreate{Name: "data", Region: wished})
		if err != nil || v.Region != want {
			t.Errorf("a volume in %q: %+v, %v, want %s", wished, v, err, want)
		}
	}
	in := wish("")
	in.Region = "fra,sa"
	_, err := p.Machines().CreateMachine(admin(t), "web", in)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadConfig)
}

func TestMachineNames(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		ctx := admin(t)
		web := p.app(t, "web")
		p.app(t, "api")
		first := p.machine(t, "web", "db")
		p.machine(t, "api", "db") // names are the App's
		_, err := p.Machines().CreateMachine(ctx, "web", wish("db"))
		wantError(t, err, hangar.CodeConflict, hangar.ReasonNameTaken)
		if want := fmt.Sprintf(`already_exists: unique machine name violation, machine ID %s already exists with name "db"`, first.ID); err.Error() != want {
			t.Errorf("text %q, want %q", err, want)
		}
		if err := p.Machines().DestroyMachine(ctx, first.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
			t.Fatal(err)
		}
		second := p.machine(t, "web", "db")
		// A Machine that destroys itself frees its name with the row that says so.
		if err := p.hosts[0].set(t.Context(), second.ID, hangar.MachineDestroyed); err != nil {
			t.Fatal(err)
		}
		if left := p.records(t, state.NameKey(web.ID, "")); len(left) > 0 {
			t.Errorf("names left: %v", left)
		}
		third := p.machine(t, "web", "db")
		// And also if the row did not come through.
		p.hosts[0].publish = nil
		if err := p.hosts[0].set(t.Context(), third.ID, hangar.MachineDestroyed); err != nil {
			t.Fatal(err)
		}
		fourth := p.machine(t, "web", "db")
		// A name whose host is away is taken.
		p.hosts[0].setDown(true)
		_, err = p.Machines().CreateMachine(ctx, "web", wish("db"))
		wantError(t, err, hangar.CodeConflict, hangar.ReasonNameTaken)
		p.hosts[0].setDown(false)
		if got, err := p.Machines().Machine(ctx, fourth.Ref()); err != nil || got.State != hangar.MachineStarted {
			t.Errorf("got %+v, %v", got, err)
		}
		p.check(t)
	})
}

// TestDestroyThatNobodyWaitsFor: a caller that leaves when the host has destroyed the Machine
// leaves neither its name behind nor that it is counted.
func TestDestroyThatNobodyWaitsFor(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		web := p.app(t, "web")
		m := p.machine(t, "web", "db")
		ctx, leave := context.WithCancel(admin(t))
		p.hosts[0].publish = nil // nor does its row tell
		p.hosts[0].onDestroy = leave
		if err := p.Machines().DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
			t.Fatal(err)
		}
		if left := p.records(t, state.NameKey(web.ID, "")); len(left) > 0 {
			t.Errorf("names left: %v", left)
		}
		if n := p.used(t, hangar.OrgPersonal, hangar.QuotaMachines); n != 0 {
			t.Errorf("%d machines are counted", n)
		}
	})
}

func TestConcurrentNames(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.app(t, "web")
		const names, each = 5, 6
		var mu sync.Mutex
		made := map[string]int{}
		var wg sync.WaitGroup
		for n := range names {
			for range each {
				wg.Go(func() {
					name := fmt.Sprintf("m-%d", n)
					_, err := p.Machines().CreateMachine(admin(t), "web", wish(name))
					if err != nil && hangar.ReasonOf(err) != hangar.ReasonNameTaken {
						t.Errorf("%s: %v", name, err)
					}
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						made[name]++
					}
				})
			}
		}
		wg.Wait()
		for n := range names {
			if got := made[fmt.Sprintf("m-%d", n)]; got != 1 {
				t.Errorf("m-%d was created %d times", n, got)
			}
		}
		p.check(t)
	})
}

// TestNameOfACreationUnderWay asks for a name that a slow host is about to use.
func TestNameOfACreationUnderWay(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	other := *p // another control plane, which does not know what this one is doing
	other.restart(t)
	var errs []error
	p.hosts[0].onCreate = func(hangar.MachineSpec) (error, error) {
		p.hosts[0].onCreate = nil
		for _, plane := range []*plane{p, &other} {
			_, err := plane.Machines().CreateMachine(admin(t), "web", wish("db"))
			errs = append(errs, err)
		}
		p.clock.advance(time.Hour) // as long as it takes: this plane knows
		_, err := p.Machines().CreateMachine(admin(t), "web", wish("db"))
		errs = append(errs, err)
		return nil, nil
	}
	p.machine(t, "web", "db")
	if len(errs) != 3 {
		t.Fatalf("asked %d times", len(errs))
	}
	for _, err := range errs {
		wantError(t, err, hangar.CodeConflict, hangar.ReasonNameTaken)
	}
	p.check(t)
}

func TestPlacement(t *testing.T) {
	p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"), newFakeHost("cccccccc", "far"))
	p.app(t, "web")
	count := map[hangar.HostID]int{}
	for range 10 {
		count[p.machine(t, "web", "").Host]++
	}
	if count["aaaaaaaa"] != 5 || count["bbbbbbbb"] != 5 {
		t.Errorf("machines by host: %v, want 5 and 5", count)
	}
	far, err := p.Machines().CreateMachine(admin(t), "web", hangar.MachineCreate{Region: "far", Config: wish("").Config})
	if err != nil || far.Host != "cccccccc" || far.Region != "far" {
		t.Errorf("in region far: %+v, %v", far, err)
	}
	// Hosts without room, and unreachable ones, are skipped.
	p.hosts[0].onCreate = func(hangar.MachineSpec) (error, error) { return errRoom, nil }
	for range 4 {
		if m := p.machine(t, "web", ""); m.Host != "bbbbbbbb" {
			t.Errorf("machine on %s", m.Host)
		}
	}
	p.hosts[1].setDown(true)
	_, err = p.Machines().CreateMachine(admin(t), "web", wish("x"))
	if code := hangar.CodeOf(err); code != hangar.CodeUnavailable && hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity {
		t.Errorf("no host takes it: %v", err)
	}
	p.hosts[1].setDown(false)
	p.hosts[1].onCreate = p.hosts[0].onCreate
	_, err = p.Machines().CreateMachine(admin(t), "web", wish("x"))
	wantError(t, err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
	// Those that bid that they would refuse it are not offered it, and the error has the reasons of all.
	offered := func(hangar.MachineSpec) (error, error) {
		t.Error("a machine was offered to a host that refuses it")
		return errRoom, nil
	}
	for i, why := range []string{"no memory", "no processors"} {
		p.hosts[i].refusal, p.hosts[i].onCreate = why, offered
	}
	_, err = p.Machines().CreateMachine(admin(t), "web", wish("x"))
	wantError(t, err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
	for _, why := range []string{"host aaaaaaaa: no memory", "host bbbbbbbb: no processors"} {
		if !strings.Contains(err.Error(), why) {
			t.Errorf("%q is not in %q", why, err)
		}
	}
	p.check(t)
}

func TestNoHosts(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	p.hosts = nil
	p.restart(t)
	_, err := p.Machines().CreateMachine(admin(t), "web", wish(""))
	wantError(t, err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
	if list, err := p.Machines().Machines(admin(t), "web", hangar.MachineFilter{}); err != nil || len(list) != 0 || list == nil {
		t.Errorf("machines %v, %v; want an empty list", list, err)
	}
}

func TestFailedCreation(t *testing.T) {
	timeout := fmt.Errorf("ask the host: %w", context.DeadlineExceeded)
	tests := []struct {
		name          string
		before, after error
		want          hangar.Code // of the answer
		machine       bool        // a Machine is there afterwards
	}{
		{"refused", errBad, nil, hangar.CodeInvalid, false},
		{"nothing recorded", errDisk, nil, hangar.CodeInternal, false},
		{"answer lost", nil, timeout, "", true},
		{"answer lost by an error", nil, errDisk, "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlane(t, state.NewMemory())
			p.app(t, "web")
			p.hosts[0].onCreate = func(hangar.MachineSpec) (error, error) { return tt.before, tt.after }
			m, err := p.Machines().CreateMachine(admin(t), "web", wish("db"))
			if hangar.CodeOf(err) != tt.want || (m != nil) != tt.machine {
				t.Fatalf("%+v, %v", m, err)
			}
			if alive := len(p.hosts[0].alive()); (alive == 1) != tt.machine {
				t.Errorf("%d machines", alive)
			}
			if names := p.records(t, "/machine-names/"); (len(names) == 1) != tt.machine {
				t.Errorf("names %v", names)
			}
			p.check(t)
		})
	}
}

// TestUnknownOutcome loses the answer of a host that then says nothing more.
func TestUnknownOutcome(t *testing.T) {
	for _, recorded := range []bool{false, true} {
		t.Run(fmt.Sprintf("recorded %v", recorded), func(t *testing.T) {
			p := newPlane(t, state.NewMemory())
			p.app(t, "web")
			h := p.hosts[0]
			h.onCreate = func(spec hangar.MachineSpec) (error, error) {
				if recorded {
					if _, err := h.record(t.Context(), spec); err != nil {
						t.Error(err)
					}
				}
				h.setDown(true)
				return errDown, nil
			}
			_, err := p.Machines().CreateMachine(admin(t), "web", wish("db"))
			wantError(t, err, hangar.CodeUnavailable, "")
			_, err = p.Machines().CreateMachine(admin(t), "web", wish("db"))
			wantError(t, err, hangar.CodeConflict, hangar.ReasonNameTaken) // as long as it may have the name
			h.setDown(false)
			h.onCreate = nil
			p.clock.advance(time.Minute)
			_, err = p.Machines().CreateMachine(admin(t), "web", wish("db"))
			if recorded {
				wantError(t, err, hangar.CodeConflict, hangar.ReasonNameTaken)
			} else if err != nil {
				t.Errorf("the name was not healed: %v", err)
			}
			p.check(t)
		})
	}
}

// TestLateCreation: a host whose answer was lost has no Machine when it is asked, and makes one after that. The Machine
// is counted all the time, and once; an App stays until it is decided.
func TestLateCreation(t *testing.T) {
	for _, failure := range []error{errDown, fmt.Errorf("ask the host: %w", context.DeadlineExceeded)} {
		for _, made := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, made %v", failure, made), func(t *testing.T) {
				p := newPlane(t, state.NewMemory())
				p.app(t, "web")
				h := p.hosts[0]
				var late hangar.MachineSpec
				h.onCreate = func(spec hangar.MachineSpec) (error, error) { late = spec; return failure, nil }
				_, err := p.Machines().CreateMachine(admin(t), "web", wish("db"))
				wantError(t, err, hangar.CodeOf(failure), "")
				h.onCreate = nil
				counted := func() int64 { return p.used(t, hangar.OrgPersonal, hangar.QuotaMachines) }
				if n := counted(); n != 1 {
					t.Errorf("%d machines are counted while one may come", n)
				}
				p.restart(t) // another server that starts decides nothing
				_, err = p.Machines().CreateMachine(admin(t), "web", wish("db"))
				wantError(t, err, hangar.CodeConflict, hangar.ReasonNameTaken)
				if err := p.Apps().DestroyApp(admin(t), "web", true); hangar.CodeOf(err) != hangar.CodeUnavailable {
					t.Errorf("an app that may get a machine is destroyed: %v", err)
				}
				if made {
					if _, err := h.record(t.Context(), late); err != nil {
						t.Fatal(err)
					}
				}
				if n := counted(); n != 1 {
					t.Errorf("%d machines are counted, want 1", n)
				}
				p.clock.advance(time.Minute)
				if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
					t.Error(err)
				}
				if left := h.alive(); len(left) != 0 {
					t.Errorf("machines %v outlive their app", left)
				}
				if n := counted(); n != 0 {
					t.Errorf("%d machines are counted of an app that is gone", n)
				}
				p.check(t)
			})
		}
	}
}

// TestLostReservation lets another control plane, just starting, take a creation
// for dead.
func TestLostReservation(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.app(t, "web")
		other := &plane{store: store, dir: t.TempDir(), hosts: p.hosts, keys: p.keys, clock: p.clock}
		var ids []hangar.MachineID
		p.hosts[0].onCreate = func(spec hangar.MachineSpec) (error, error) {
			if ids = append(ids, spec.ID); len(ids) <= 2 {
				other.restart(t)
			}
			return nil, nil
		}
		m := p.machine(t, "web", "db")
		if len(ids) != 3 || m.ID != ids[2] || p.hosts[0].state(ids[0]) != hangar.MachineDestroyed || p.hosts[0].state(ids[1]) != hangar.MachineDestroyed {
			t.Errorf("made %v, returned %s", ids, m.ID)
		}
		ids = nil
		p.hosts[0].onCreate = func(spec hangar.MachineSpec) (error, error) {
			other.restart(t)
			return nil, nil
		}
		_, err := p.Machines().CreateMachine(admin(t), "web", wish("never"))
		wantError(t, err, hangar.CodeUnavailable, "")
		p.check(t)
	})
}

// lateStore refuses a transaction, once it is armed, when the caller has no time left.
type lateStore struct {
	state.Store

	armed bool
}

func (s *lateStore) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	if s.armed {
		<-ctx.Done()
		return 0, state.ErrConflict
	}
	return s.Store.Txn(ctx, txn)
}

// TestReservationLostAtTheEnd: a Machine without a reservation is destroyed, too, if the time
// of its creation is over by then.
func TestReservationLostAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &lateStore{Store: state.NewMemory()}
		p := newPlane(t, store)
		p.app(t, "web")
		h := p.hosts[0]
		h.publish = nil
		h.onCreate = func(hangar.MachineSpec) (error, error) {
			store.armed = true
			return nil, nil
		}
		if _, err := p.Machines().CreateMachine(admin(t), "web", wish("late")); err == nil {
			t.Error("created")
		}
		if left := h.alive(); len(left) > 0 {
			t.Errorf("machines without a reservation live: %v", left)
		}
	})
}

// TestMachineThatEndsAtOnce: one that has destroyed itself before its creation is answered was
// created, once.
func TestMachineThatEndsAtOnce(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.app(t, "web")
		p.hosts[0].brief = true
		made, err := p.Machines().CreateMachine(admin(t), "web", wish("job"))
		if err != nil {
			t.Fatal(err)
		}
		list, err := p.Machines().Machines(admin(t), "web", hangar.MachineFilter{IncludeDestroyed: true})
		if err != nil || len(list) != 1 || list[0].ID != made.ID || list[0].State != hangar.MachineDestroyed {
			t.Errorf("created %s, listed %+v, %v", made.ID, list, err)
		}
		p.check(t)
	})
}

// TestAppDestroyedDuringCreation destroys the App while a host makes a Machine.
func TestAppDestroyedDuringCreation(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	p.hosts[0].onCreate = func(hangar.MachineSpec) (error, error) {
		return nil, p.Apps().DestroyApp(admin(t), "web", true)
	}
	_, err := p.Machines().CreateMachine(admin(t), "web", wish(""))
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	p.check(t)
}

func TestMachinesOfHostsThatAreAway(t *testing.T) {
	p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"))
	ctx := admin(t)
	p.app(t, "web")
	var ids []hangar.MachineID
	for range 6 {
		ids = append(ids, p.machine(t, "web", "").ID)
	}
	slices.Sort(ids)
	p.hosts[1].setDown(true)
	list, err := p.Machines().Machines(ctx, "web", hangar.MachineFilter{States: []hangar.MachineState{hangar.MachineStarted}})
	if err != nil {
		t.Fatal(err)
	}
	var got []hangar.MachineID
	for _, m := range list {
		got = append(got, m.ID)
		want := "ok"
		if m.Host == "bbbbbbbb" {
			want = "unreachable"
		}
		if m.HostStatus != want {
			t.Errorf("machine on %s has host status %q", m.Host, m.HostStatus)
		}
		if one, err := p.Machines().Machine(ctx, m.Ref()); err != nil || one.HostStatus != want {
			t.Errorf("machine on %s alone: %+v, %v", m.Host, one, err)
		}
	}
	if !slices.Equal(got, ids) {
		t.Errorf("listed %v, want %v", got, ids)
	}
	if none, err := p.Machines().Machines(ctx, "web", hangar.MachineFilter{States: []hangar.MachineState{hangar.MachineStopped}}); err != nil || len(none) != 0 {
		t.Errorf("filter: %v, %v", none, err)
	}
	away := list[slices.IndexFunc(list, func(m *hangar.Machine) bool { return m.Host == "bbbbbbbb" })]
	if err := p.Machines().StopMachine(ctx, away.Ref(), hangar.MachineStop{}); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("stop: %v, want unavailable", err)
	}
}

// TestStateThatIsAway: reads, and orders that only the host decides, still work.
func TestStateThatIsAway(t *testing.T) {
	store := &brittle{Store: state.NewMemory()}
	p := newPlane(t, mirror(t, store))
	ctx := admin(t)
	p.app(t, "web")
	m := p.machine(t, "web", "one")
	p.hosts[0].publish = nil // rows queue on the host
	store.mu.Lock()
	store.dead = true
	store.mu.Unlock()
	if got, err := p.Machines().Machine(ctx, m.Ref()); err != nil || got.ID != m.ID {
		t.Errorf("get: %v, %v", got, err)
	}
	if list, err := p.Machines().Machines(ctx, "web", hangar.MachineFilter{}); err != nil || len(list) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
	if app, err := p.Apps().App(ctx, "web"); err != nil || app.MachineCount != 1 {
		t.Errorf("app: %+v, %v", app, err)
	}
	if apps, err := p.Apps().Apps(ctx, hangar.AppFilter{}); err != nil || len(apps) != 1 {
		t.Errorf("apps: %v, %v", apps, err)
	}
	if err := p.Machines().StopMachine(ctx, m.Ref(), hangar.MachineStop{}); err != nil {
		t.Errorf("stop: %v", err)
	}
	if _, err := p.Machines().CreateMachine(ctx, "web", wish("two")); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("create: %v, want unavailable", err)
	}
}

// TestOrphansAreAdopted takes the state back to before a Machine was created, as
// a restore from a backup does.
func TestOrphansAreAdopted(t *testing.T) {
	for _, how := range []string{"published", "opened"} {
		t.Run(how, func(t *testing.T) {
			p := newPlane(t, state.NewMemory())
			p.app(t, "web")
			m := p.machine(t, "web", "db")
			var lost []state.Op
			for _, key := range p.records(t, "/machine") {
				lost = append(lost, state.Delete(key))
			}
			if how == "published" {
				lost = append(lost, state.Delete("/hosts/aaaaaaaa/machines/"+string(m.ID)))
			}
			if _, err := p.store.Txn(t.Context(), state.Txn{Then: lost}); err != nil {
				t.Fatal(err)
			}
			if how == "published" {
				if err := p.hosts[0].set(t.Context(), m.ID, hangar.MachineStopped); err != nil {
					t.Fatal(err)
				}
			} else {
				p.restart(t)
			}
			if _, err := p.Machines().Machine(admin(t), m.Ref()); err != nil {
				t.Error(err)
			}
			_, err := p.Machines().CreateMachine(admin(t), "web", wish("db"))
			wantError(t, err, hangar.CodeConflict, hangar.ReasonNameTaken)
			p.check(t)
		})
	}
}

// brittle is a Store whose process dies at its n-th write: before it, or after it
// without learning so. All that follows fails, too.
type brittle struct {
	state.Store
	mu        sync.Mutex
	writes    int
	dieAt     int
	afterward bool
	dead      bool
}

var errDead = errors.New("process is dead")

func (b *brittle) Get(ctx context.Context, key string) (state.Item, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return state.Item{}, errDead
	}
	return b.Store.Get(ctx, key)
}

func (b *brittle) List(ctx context.Context, prefix string, o state.ListOptions) (state.Page, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return state.Page{}, errDead
	}
	return b.Store.List(ctx, prefix, o)
}

func (b *brittle) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return 0, errDead
	}
	b.writes++
	if b.dead = b.writes == b.dieAt; b.dead && !b.afterward {
		return 0, errDead
	}
	r, err := b.Store.Txn(ctx, txn)
	if b.dead {
		return 0, errDead
	}
	return r, err
}

// TestCrashAtEveryWrite kills the control plane at each of its writes, in every
// operation that has more than one, and starts another.
func TestCrashAtEveryWrite(t *testing.T) {
	operations := map[string]func(ctx context.Context, p *plane, m *hangar.Machine) error{
		"create app": func(ctx context.Context, p *plane, _ *hangar.Machine) error {
			_, err := p.Apps().CreateApp(ctx, hangar.AppCreate{Name: "new", Network: "new"})
			return err
		},
		"create machine": func(ctx context.Context, p *plane, _ *hangar.Machine) error {
			_, err := p.Machines().CreateMachine(ctx, "web", wish("new"))
			return err
		},
		"create machine on the second host": func(ctx context.Context, p *plane, _ *hangar.Machine) error {
			refused := false
			for _, h := range p.hosts {
				h.onCreate = func(hangar.MachineSpec) (error, error) {
					if !refused {
						refused = true
						return errRoom, nil
					}
					return nil, nil
				}
			}
			_, err := p.Machines().CreateMachine(ctx, "web", wish("new"))
			return err
		},
		"refused machine": func(ctx context.Context, p *plane, _ *hangar.Machine) error {
			for _, h := range p.hosts {
				h.onCreate = func(hangar.MachineSpec) (error, error) { return errBad, nil }
			}
			if _, err := p.Machines().CreateMachine(ctx, "web", wish("new")); hangar.CodeOf(err) != hangar.CodeInvalid {
				return err
			}
			return nil
		},
		"destroy machine": func(ctx context.Context, p *plane, m *hangar.Machine) error {
			return p.Machines().DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true})
		},
		"destroy app": func(ctx context.Context, p *plane, _ *hangar.Machine) error {
			return p.Apps().DestroyApp(ctx, "web", true)
		},
	}
	for name, operation := range operations {
		for _, afterward := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, afterward %v", name, afterward), func(t *testing.T) {
				at := 1
				for crash(t, operation, at, afterward) {
					at++
				}
				if at == 1 {
					t.Error("the operation writes nothing")
				}
			})
		}
	}
}

// crash reports whether the operation came as far as the write at which it dies.
func crash(t *testing.T, operation func(context.Context, *plane, *hangar.Machine) error, at int, afterward bool) bool {
	t.Helper()
	whole := state.NewMemory()
	p := newPlane(t, whole, newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"))
	p.app(t, "web")
	p.machine(t, "web", "one")
	m := p.machine(t, "web", "two")
	for _, h := range p.hosts {
		h.publish = nil // the hosts are other processes
	}
	b := &brittle{Store: whole, dieAt: at, afterward: afterward}
	p.store = b
	p.Control = control.New(control.Config{Store: b, Agents: p.hosts, Keys: p.keys, Region: "loc", Log: quiet, Now: p.clock.Now})
	if err := operation(admin(t), p, m); err != nil && !b.dead {
		t.Errorf("without a crash, before write %d: %v", at, err)
	}
	for _, h := range p.hosts {
		h.onCreate, h.publish = nil, p.rows
	}
	p.store = whole
	p.restart(t)
	for _, h := range p.hosts { // what the hosts had waiting
		list, listErr := h.Machines(t.Context(), "", hangar.MachineFilter{IncludeDestroyed: true})
		if listErr != nil {
			t.Fatal(listErr)
		}
		for _, m := range list {
			if err := h.set(t.Context(), m.ID, m.State); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.check(t)
	// After any interruption, the same request succeeds now, or has.
	switch err := operation(admin(t), p, m); hangar.CodeOf(err) {
	case "", hangar.CodeNotFound, hangar.CodeConflict, hangar.CodeInvalid:
	default:
		t.Errorf("after a crash at write %d: %v", at, err)
	}
	p.check(t)
	return b.dead
}

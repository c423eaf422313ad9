package control_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// within returns a context in which a Machine of an App calls over its socket.
func (p *plane) within(t *testing.T, m *hangar.Machine) context.Context {
	t.Helper()
	app, err := p.Apps().App(admin(t), m.App)
	if err != nil {
		t.Fatal(err)
	}
	org, err := p.Orgs().Org(admin(t), app.Org.Slug)
	if err != nil {
		t.Fatal(err)
	}
	return hangar.AsMachine(t.Context(), org.Slug, org.ID, m.Ref())
}

const minute = hangar.Duration(time.Minute)

// open begins a session of the election "db".
func (p *plane) openSession(ctx context.Context, t *testing.T, app hangar.AppName, ttl hangar.Duration) hangar.ElectionSessionID {
	t.Helper()
	s, err := p.Elections().OpenElectionSession(ctx, app, "db", hangar.ElectionSessionOpen{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return s.ID
}

// take has a member take the key "primary" of the election "db", if no one has it.
func (p *plane) take(ctx context.Context, app hangar.AppName, who string, session hangar.ElectionSessionID) (hangar.ElectionChanged, error) {
	return p.Elections().ChangeElection(ctx, app, "db", hangar.ElectionChange{
		If: []hangar.ElectionCondition{{Key: "primary"}}, Put: []hangar.ElectionPut{{Key: "primary", Value: who, Session: session}, {Key: "last", Value: who}},
	})
}

func (p *plane) election(ctx context.Context, t *testing.T, app hangar.AppName, q hangar.ElectionQuery) *hangar.Election {
	t.Helper()
	e, err := p.Elections().Election(ctx, app, "db", q)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func textOf(e *hangar.Election) string {
	var list []string
	for _, r := range e.Records {
		list = append(list, r.Key+"="+r.Value)
	}
	return strings.Join(list, " ")
}

// TestInterruptedRemovalOfAnElection: a removal that the state has refused leaves what memory has of the others as it
// was.
func TestInterruptedRemovalOfAnElection(t *testing.T) {
	store := faultyStore{state.NewMemory(), &faults{}}
	p := newPlane(t, mirror(t, store))
	p.app(t, "web")
	in := p.within(t, p.machine(t, "web", "one"))
	names := []hangar.ElectionName{"a", "b", "c", "d"}
	for _, name := range names {
		if _, err := p.Elections().OpenElectionSession(in, "web", name, hangar.ElectionSessionOpen{TTL: minute}); err != nil {
			t.Fatal(err)
		}
	}
	store.arm(refused, 1, nil)
	if err := p.Elections().RemoveElection(admin(t), "web", "a"); err == nil {
		t.Fatal("a removal that the state has refused succeeds")
	}
	store.disarm()
	for _, name := range names[:2] {
		if err := p.Elections().RemoveElection(admin(t), "web", name); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []hangar.ElectionName{"e", "f", "g"} { // as many as were removed, and one more
		_, err := p.Elections().OpenElectionSession(in, "web", name, hangar.ElectionSessionOpen{TTL: minute})
		if i < 2 && err != nil {
			t.Errorf("%s: %v", name, err)
		} else if i == 2 && (hangar.ReasonOf(err) != hangar.ReasonQuota || !strings.Contains(err.Error(), "(c, d, e, f)")) {
			t.Errorf("one too many: %v", err)
		}
	}
}

// TestElection has two Machines of an App take the lead one after another.
func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, state.NewMemory())
		p.app(t, "web")
		one, two := p.within(t, p.machine(t, "web", "one")), p.within(t, p.machine(t, "web", "two"))
		if e := p.election(one, t, "web", hangar.ElectionQuery{}); e.Revision != 0 || len(e.Records) != 0 {
			t.Errorf("before any change: %+v", e)
		}
		a, b := p.openSession(one, t, "web", 5*hangar.Duration(time.Second)), p.openSession(two, t, "web", minute)
		first, err := p.take(one, "web", "one", a)
		if err != nil || !first.Changed {
			t.Fatalf("%+v, %v", first, err)
		}
		if again, err := p.take(two, "web", "two", b); err != nil || again.Changed || again.Revision != first.Revision {
			t.Errorf("taken twice: %+v, %v", again, err)
		}
		known := p.election(two, t, "web", hangar.ElectionQuery{})
		if textOf(known) != "last=one primary=one" || known.Revision != first.Revision {
			t.Errorf("%+v", known)
		}
		// It stays as long as it is renewed, and a wait ends without a change after its time.
		for range 4 {
			time.Sleep(4 * time.Second)
			if _, err := p.Elections().RenewElectionSession(one, "web", "db", a); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if e := p.election(two, t, "web", hangar.ElectionQuery{After: known.Version, Wait: 2 * time.Second}); e.Version != known.Version || time.Since(began) != 2*time.Second {
			t.Errorf("after %s: %+v", time.Since(began), e)
		}
		// Then it goes, which a wait learns, and no condition holds by it any more.
		gone := p.election(two, t, "web", hangar.ElectionQuery{After: known.Version, Wait: time.Minute})
		if textOf(gone) != "last=one" || gone.Revision != known.Revision || time.Since(began) > 6*time.Second {
			t.Errorf("after %s: %+v", time.Since(began), gone)
		}
		late, err := p.Elections().ChangeElection(one, "web", "db", hangar.ElectionChange{
			If: []hangar.ElectionCondition{{Key: "primary", Revision: first.Revision}}, Put: []hangar.ElectionPut{{Key: "quorum", Value: "mine"}},
		})
		if err != nil || late.Changed {
			t.Errorf("who has lost the lead changes something: %+v, %v", late, err)
		}
		if _, err := p.Elections().RenewElectionSession(one, "web", "db", a); hangar.ReasonOf(err) != hangar.ReasonSessionNotFound {
			t.Error(err)
		}
		if _, err := p.take(one, "web", "one", a); hangar.ReasonOf(err) != hangar.ReasonSessionNotFound {
			t.Error(err)
		}
		second, err := p.take(two, "web", "two", b)
		if err != nil || !second.Changed || second.Revision <= first.Revision {
			t.Errorf("%+v after %+v, %v", second, first, err)
		}
		// A version that is not there yet is waited for, too.
		behind := p.election(one, t, "web", hangar.ElectionQuery{After: "1000.0", Wait: time.Second})
		if textOf(behind) != "last=two primary=two" {
			t.Errorf("%+v", behind)
		}
		if err := p.Elections().EndElectionSession(two, "web", "db", b); err != nil {
			t.Fatal(err)
		}
		if err := p.Elections().EndElectionSession(two, "web", "db", b); err != nil {
			t.Error("again: ", err)
		}
		if e := p.election(one, t, "web", hangar.ElectionQuery{}); textOf(e) != "last=two" {
			t.Errorf("after the end of the session: %+v", e)
		}
	})
}

// TestElectionsRace has many take the lead at the same time: each number has one.
func TestElectionsRace(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	ctx := p.within(t, p.machine(t, "web", "one"))
	session := p.openSession(ctx, t, "web", minute)
	var group sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for i := range 20 {
		group.Go(func() {
			done, err := p.take(ctx, "web", strconv.Itoa(i), session)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if done.Changed {
				won++
			}
		})
	}
	group.Wait()
	if won != 1 {
		t.Errorf("%d have taken the lead", won)
	}
}

// TestElectionsOfOthers: a Machine reaches the elections of its App and no others, by any name; tokens need
// ActionControl of the App.
func TestElectionsOfOthers(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	for _, name := range []string{"acme", "other"} {
		p.orgWithApp(t, name)
	}
	mine, theirs := p.within(t, p.machine(t, "acme", "")), p.within(t, p.machine(t, "other", ""))
	session := p.openSession(mine, t, "acme", minute)
	if _, err := p.take(mine, "acme", "one", session); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"read":   second(p.Elections().Election(theirs, "acme", "db", hangar.ElectionQuery{})),
		"change": second(p.take(theirs, "acme", "two", "")),
		"open":   second(p.Elections().OpenElectionSession(theirs, "acme", "db", hangar.ElectionSessionOpen{TTL: minute})),
		"renew":  second(p.Elections().RenewElectionSession(theirs, "acme", "db", session)),
		"end":    p.Elections().EndElectionSession(theirs, "acme", "db", session),
		"remove": p.Elections().RemoveElection(theirs, "acme", "db"),
	} {
		if hangar.ReasonOf(err) != hangar.ReasonAppNotFound {
			t.Errorf("a Machine of another App may %s: %v", what, err)
		}
	}
	// In its own App, the election of the same name is another one, and the session is unknown.
	if e := p.election(theirs, t, "other", hangar.ElectionQuery{}); e.Revision != 0 {
		t.Errorf("%+v", e)
	}
	if _, err := p.take(theirs, "other", "two", session); hangar.ReasonOf(err) != hangar.ReasonSessionNotFound {
		t.Error(err)
	}
	if err := p.Elections().EndElectionSession(theirs, "other", "db", session); err != nil {
		t.Error(err)
	}
	if e := p.election(mine, t, "acme", hangar.ElectionQuery{}); textOf(e) != "last=one primary=one" {
		t.Errorf("%+v", e)
	}
	if err := p.Elections().RemoveElection(mine, "acme", "db"); hangar.CodeOf(err) != hangar.CodeForbidden {
		t.Error("a Machine removes an election: ", err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestElectionBounds has an App take all that it may, and more.
func TestElectionBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, state.NewMemory())
		for _, name := range []string{"acme", "other"} {
			p.orgWithApp(t, name)
		}
		ctx, other := p.within(t, p.machine(t, "acme", "")), p.within(t, p.machine(t, "other", ""))
		exhausted := func(what string, err error) {
			t.Helper()
			if hangar.CodeOf(err) != hangar.CodeExhausted {
				t.Errorf("%s: %v", what, err)
			}
		}
		pause := func() { p.clock.advance(time.Second) } // not to be refused for the pace
		put := func(name hangar.ElectionName, key, value string) error {
			pause()
			return second(p.Elections().ChangeElection(ctx, "acme", name, hangar.ElectionChange{Put: []hangar.ElectionPut{{Key: key, Value: value}}}))
		}
		for i := range hangar.MaxElections {
			if err := put(hangar.ElectionName("e"+strconv.Itoa(i)), "k", "v"); err != nil {
				t.Fatal(err)
			}
		}
		exhausted("one more election", put("more", "k", "v"))
		if err := p.Elections().RemoveElection(admin(t), "acme", "e1"); err != nil {
			t.Fatal(err)
		}
		if err := put("db", "k", "v"); err != nil {
			t.Error(err)
		}
		for i := range hangar.MaxElectionRecords - 1 {
			if err := put("db", strconv.Itoa(i), ""); err != nil {
				t.Fatal(err)
			}
		}
		exhausted("one more record", put("db", "more", ""))
		exhausted("a large record", put("db", "k", strings.Repeat("x", hangar.MaxElectionSize)))
		for range hangar.MaxElectionSessions {
			pause()
			p.openSession(ctx, t, "acme", minute)
		}
		pause()
		_, err := p.Elections().OpenElectionSession(ctx, "acme", "db", hangar.ElectionSessionOpen{TTL: minute})
		exhausted("one more session", err)
		// Requests that wait do not keep others from waiting.
		known := p.election(ctx, t, "acme", hangar.ElectionQuery{}).Version
		waiting, stop := context.WithCancel(ctx)
		var group sync.WaitGroup
		for range hangar.MaxElectionWaits {
			group.Go(func() {
				_, _ = p.Elections().Election(waiting, "acme", "db", hangar.ElectionQuery{After: known, Wait: hangar.MaxElectionWait})
			})
		}
		synctest.Wait()
		_, err = p.Elections().Election(ctx, "acme", "db", hangar.ElectionQuery{After: known, Wait: hangar.MaxElectionWait})
		exhausted("one more that waits", err)
		p.election(ctx, t, "acme", hangar.ElectionQuery{}) // without a wait
		p.election(other, t, "other", hangar.ElectionQuery{After: "0.0", Wait: time.Second})
		stop()
		group.Wait()
		// The pace is the App's own.
		for range 100 {
			_, err = p.Elections().ChangeElection(ctx, "acme", "db", hangar.ElectionChange{Delete: []string{"none"}})
		}
		if hangar.ReasonOf(err) != hangar.ReasonRateLimited {
			t.Error("a hundred changes at once: ", err)
		}
		p.openSession(other, t, "other", minute)
	})
}

// TestAnAppTakesItsElections along.
func TestAnAppTakesItsElections(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	for _, name := range []string{"acme", "other"} {
		p.orgWithApp(t, name)
		session := p.openSession(admin(t), t, hangar.AppName(name), minute)
		if _, err := p.take(admin(t), hangar.AppName(name), "one", session); err != nil {
			t.Fatal(err)
		}
	}
	all := len(p.records(t, state.ElectionsPrefix))
	if err := p.Apps().DestroyApp(admin(t), "acme", true); err != nil {
		t.Fatal(err)
	}
	if left := p.records(t, state.ElectionsPrefix); all == 0 || len(left) != all/2 {
		t.Errorf("left of %d: %v", all, left)
	}
	if _, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "acme", Org: "acme"}); err != nil {
		t.Fatal(err)
	}
	if e := p.election(admin(t), t, "acme", hangar.ElectionQuery{}); e.Revision != 0 {
		t.Errorf("the next App of the name has %+v", e)
	}
}

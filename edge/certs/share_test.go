package certs

import (
	"fmt"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// TestIssuedCertificatesAreCounted: of a registered domain, and of its Apps' own names, an
// organization has so many certificates issued; what fails takes nothing from that, nor do renewals.
func TestIssuedCertificatesAreCounted(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	plenty := Limit{10_000, time.Hour}
	b := newBudget(Limits{Account: plenty, Org: plenty, Domain: Limit{3, 30 * time.Hour}, Own: Limit{2, 20 * time.Hour}, Name: plenty})
	// issue has names of a domain issued, and returns how many were.
	issue := func(req orderRequest, domain string) (n int) {
		for i := range 20 {
			req.name = hangar.Hostname(fmt.Sprintf("n%d.%s", i, domain))
			if b.take(req, now) == nil {
				b.issued(req, now)
				n++
			}
		}
		return n
	}
	for i := range 50 {
		if held := b.take(orderRequest{name: "failing.one.com", org: "a"}, now); held != nil {
			t.Fatalf("after %d failures: %+v", i, held)
		}
	}
	for i, step := range []struct {
		req    orderRequest
		domain string
		want   int
	}{
		{orderRequest{org: "a"}, "one.com", 3},
		{orderRequest{org: "a"}, "deep.one.com", 0}, // of the same registered domain
		{orderRequest{org: "a"}, "two.com", 3},
		{orderRequest{org: "a", renewal: true}, "one.com", 20},
		{orderRequest{org: "evil", own: true}, "apps.example.com", 2},
		{orderRequest{org: "good", own: true}, "apps.example.com", 2},
	} {
		if got := issue(step.req, step.domain); got != step.want {
			t.Errorf("step %d: %d certificates for %s, want %d", i, got, step.domain, step.want)
		}
	}
	held := b.take(orderRequest{name: "more.one.com", org: "a"}, now)
	if held == nil || held.until.Before(now.Add(9*time.Hour)) || held.until.After(now.Add(11*time.Hour)) || b.held("more.one.com", now) != held {
		t.Fatalf("the next one waits: %+v", held)
	}
	if held = b.take(orderRequest{name: "more.one.com", org: "a"}, held.until); held != nil {
		t.Errorf("after the wait it waits again: %+v", held)
	}
}

// TestBucketsAreForgotten: a full bucket takes no memory.
func TestBucketsAreForgotten(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	b := newBudget(DefaultLimits())
	for i := range 10 * fewBuckets {
		now = now.Add(time.Hour)
		if held := b.take(orderRequest{name: hangar.Hostname(fmt.Sprintf("www.n%d.com", i)), org: "a"}, now); held != nil {
			t.Fatalf("order %d waits: %+v", i, held)
		}
	}
	if len(b.buckets) > 2*fewBuckets {
		t.Errorf("%d buckets are kept", len(b.buckets))
	}
}

// TestFailureOfAnotherEdge: it replaces what this edge waited for before it knew of the failure.
func TestFailureOfAnotherEdge(t *testing.T) {
	one := Limit{1, time.Hour}
	c := New(Options{Dir: t.TempDir(), Limits: Limits{Account: one, Org: one, Domain: one, Own: one, Name: one}})
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	now := time.Now()
	req := orderRequest{name: "www.example.com", org: "a"}
	c.budget.placed(req, now) // the other edge's order
	if c.budget.room(req, now) == nil {
		t.Fatal("the limit of all edges has room for two orders")
	}
	failed := &attempt{Org: "a", Failures: 1, At: now, Next: now.Add(time.Hour), Errors: []hangar.CertificateError{{Code: "caa"}}}
	if !c.learn(req, failed) || c.attempts.get(req.name) != failed {
		t.Fatal("the failure was not adopted")
	}
	if held := c.budget.held(req.name, now); held != nil {
		t.Errorf("the name waits for the limit until %s", held.until)
	}
}

// TestFailureByAWrongClock: a failure that was recorded while a clock was ahead does not hold a name back.
func TestFailureByAWrongClock(t *testing.T) {
	const name = "www.example.com"
	o := Options{Dir: t.TempDir()}
	c := New(o)
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ahead := time.Now().Add(365 * 24 * time.Hour)
	failed := &attempt{Org: "a", Failures: 1, At: ahead, Next: ahead.Add(time.Hour), LimitedUntil: ahead.Add(time.Hour)}
	if err := c.attempts.put(name, failed); err != nil {
		t.Fatal(err)
	}
	c.Close()
	c = New(o)
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	now := time.Now()
	table := emptyTable()
	table.wanted[name] = "a"
	c.table.Store(table)
	if at := c.dueAt(table, name, now); at.After(now) {
		t.Errorf("it is ordered at %s", at)
	}
	c.jobs.set(name, ahead)
	c.RetryCertificate(name)
	if at := c.jobs.all[name].at; at.After(time.Now()) {
		t.Errorf("it is retried at %s", at)
	}
	req := orderRequest{name: name, org: "a"}
	if c.learn(req, failed) {
		t.Error("another edge's failure in the future is adopted")
	}
	failed = &attempt{Org: "a", Failures: 1, At: now, Next: now.Add(time.Hour)}
	if !c.learn(req, failed) || !c.dueAt(table, name, now).Equal(failed.Next) {
		t.Error("another edge's failure of now is not adopted")
	}
	if err := c.attempts.forget(name); err != nil {
		t.Error(err)
	}
}

package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"github.com/hangar-platform/hangar"
)

func TestPublic(t *testing.T) {
	for domain, want := range map[hangar.Hostname]bool{
		"apps.example.com": true, "fly.dev": true, "localhost": false, "hangar.localhost": false, "a.test": false, "x.internal": false,
		"10.0.0.1": false, "": false, "com": false, "home.arpa": false, "a.home.arpa": false, "mytest": false, "a.mytest.dev": true,
	} {
		if got := public(domain); got != want {
			t.Errorf("%q: %t, want %t", domain, got, want)
		}
	}
}

func TestParseRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"0": 0, "120": 2 * time.Minute, "Sat, 21 Nov 2026 12:05:00 GMT": 5 * time.Minute,
	} {
		if at, ok := parseRetryAfter(text, now); !ok || at.Sub(now) != want {
			t.Errorf("%q: %s, %t", text, at.Sub(now), ok)
		}
	}
	for _, text := range []string{"", "-1", "x", "1.5", "99999999999999999999", "2026-11-21"} {
		if at, ok := parseRetryAfter(text, now); ok {
			t.Errorf("%q is %s", text, at)
		}
	}
}

func FuzzServerName(f *testing.F) {
	for _, text := range []string{"www.example.com", "WWW.Example.com.", "", "*.x", "a/b", "xn--bcher-kva.de"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, ok := serverName(text)
		if again, same := serverName(string(name)); ok && (!same || again != name) && name != "" && name[len(name)-1] != '.' {
			t.Errorf("%q is %q, which is %q, %t", text, name, again, same)
		}
	})
}

func FuzzLimitIn(f *testing.F) {
	f.Add("too many certificates (5) already issued: retry after 2026-11-21 13:00:00 UTC: see https://…")
	f.Add("retry after 2026-11-21T13:00:00Z")
	f.Add("retry after 2026-13-41 13:00:00 UTC")
	f.Fuzz(func(_ *testing.T, text string) { limitIn(text) })
}

func TestPace(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	problem := func(kind, detail string) error {
		return fmt.Errorf("obtain: %w", acme.Problem{Type: acme.ProblemTypeNamespace + kind, Detail: detail})
	}
	refused, away := problem("unauthorized", "wrong answer"), errors.New("connection refused")
	p := DefaultPace()
	for _, tt := range []struct {
		what     string
		failures int
		err      error
		retryAt  time.Time
		code     string
		least    time.Duration
		most     time.Duration
	}{
		{"away", 0, away, time.Time{}, "internal", p.Away, p.Away * 11 / 10},
		{"away again", 3, away, time.Time{}, "internal", p.Away * 8, p.Away * 9},
		{"refused", 0, refused, time.Time{}, "unauthorized", p.Refused, p.Refused * 11 / 10},
		{"refused often", 500, refused, time.Time{}, "unauthorized", p.Most, p.Most * 11 / 10},
		{"limited", 0, problem("rateLimited", "too much"), time.Time{}, "rateLimited", p.Limited, p.Limited},
		{"limited in a header", 0, problem("rateLimited", "too much"), now.Add(3 * time.Hour), "rateLimited", 3 * time.Hour, 3 * time.Hour},
		{"limited in a text", 0, problem("rateLimited", "retry after 2026-11-22 12:00:00 UTC"), time.Time{}, "rateLimited", 24 * time.Hour, 24 * time.Hour},
		{"of another namespace", 0, acme.Problem{Type: "about:blank"}, time.Time{}, "internal", p.Away, p.Away * 11 / 10},
		{"compound", 0, acme.Problem{Type: acme.ProblemTypeCompound, Subproblems: []acme.Subproblem{{Problem: acme.Problem{Type: acme.ProblemTypeCAA}}}}, time.Time{}, "caa", p.Refused, p.Refused * 11 / 10},
	} {
		last := &attempt{Failures: tt.failures, Errors: make([]hangar.CertificateError, min(tt.failures, maxErrors))}
		next := p.after(last, tt.err, tt.retryAt, now)
		if wait := next.Next.Sub(now); wait < tt.least || wait > tt.most {
			t.Errorf("%s: waits %s, want %s to %s", tt.what, wait, tt.least, tt.most)
		}
		if next.Failures != tt.failures+1 || len(next.Errors) > maxErrors || next.Errors[0].Code != tt.code || next.Errors[0].Message == "" || next.Errors[0].Remediation == "" {
			t.Errorf("%s: %+v", tt.what, next)
		}
	}
}

// TestDemandOfWhatWasJustIssued: a handshake that looked for a certificate just before it was issued gets it.
func TestDemandOfWhatWasJustIssued(t *testing.T) {
	const name = "app.apps.example.com"
	c := New(Options{Domain: "apps.example.com", DemandWait: time.Hour})
	issued := &entry{pair: &tls.Certificate{}, notAfter: time.Now().Add(time.Hour)}
	c.table.Store(emptyTable().withIssued(name, issued))
	c.jobs.set(name, issued.notAfter) // to renew it
	if pair, err := c.demand(&tls.ClientHelloInfo{}, name); pair != issued.pair {
		t.Error(err)
	}
}

// TestDemandedIsPostponed: a demanded name that is set to a later time, as when another edge has issued its
// certificate, lets the others go first, and its waiters go on.
func TestDemandedIsPostponed(t *testing.T) {
	o := newJobs(1, nil)
	done, err := o.demand("x", 1)
	if err != nil {
		t.Fatal(err)
	}
	o.set("x", time.Now().Add(time.Hour))
	o.set("y", time.Now())
	if first, _ := o.due.First(); first.name != "y" {
		t.Errorf("%s goes first", first.name)
	}
	select {
	case <-done:
	default:
		t.Error("the handshake still waits")
	}
	if _, err := o.demand("y", 1); err != nil {
		t.Errorf("the postponed one still counts as demanded: %v", err)
	}
}

// TestOrders: names that a handshake waits for go first, a name is worked on by one worker at a
// time, and a stopped queue has no waiters.
func TestOrders(t *testing.T) {
	var seen []hangar.Hostname
	begin, release := make(chan hangar.Hostname), make(chan struct{})
	o := newJobs(1, func(_ context.Context, name hangar.Hostname) (time.Time, bool) {
		begin <- name
		<-release
		return time.Now().Add(time.Hour), name != "once"
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		o.run(ctx)
	}()
	step := func() {
		seen = append(seen, <-begin)
	}
	o.set("a", time.Now())
	step()
	o.set("b", time.Now())
	o.set("once", time.Now())
	done, err := o.demand("c", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.demand("d", 1); !errors.Is(err, errTooMany) {
		t.Errorf("one too many: %v", err)
	}
	again, err := o.demand("c", 1)
	if err != nil || again != done {
		t.Errorf("demanded again: %v", err)
	}
	release <- struct{}{}
	step()
	release <- struct{}{}
	<-done
	if _, err := o.demand("c", 1); !errors.Is(err, errNotYet) {
		t.Errorf("demanded before it is due: %v", err)
	}
	step()
	o.drop("b") // while it is worked on
	release <- struct{}{}
	step()
	o.set("once", time.Now()) // likewise, a second time
	release <- struct{}{}
	step()
	release <- struct{}{}
	if want := []hangar.Hostname{"a", "c", "b", "once", "once"}; fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Errorf("worked on %v, want %v", seen, want)
	}
	cancel()
	<-ended
	if _, err := o.demand("c", 1); !errors.Is(err, errStopped) {
		t.Errorf("demanded of a stopped one: %v", err)
	}
	if len(o.all) != 2 { // a and c
		t.Errorf("there are %d orders", len(o.all))
	}
}

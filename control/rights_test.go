package control_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/state"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// rightsFile says of each method of a service which action it asks for: "any" for every one
// of them, "a|b" for one of these, "a+b" for both, "user" for all signed-in users, and "administrator" for what no
// token allows.
const rightsFile = "testdata/rights.txt"

// TestRights calls every method of every service with tokens of each action. A change of the
// table is one of the platform's rights, and wants a second look.
func TestRights(t *testing.T) {
	var table strings.Builder
	for _, m := range everyMethod(control.New(control.Config{})) {
		fmt.Fprintf(&table, "%-40s %s\n", m.name, (&caller{method: m.name}).asksFor(t))
	}
	path := filepath.FromSlash(rightsFile)
	if *update {
		if err := os.WriteFile(path, []byte(table.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if table.String() != string(want) {
		t.Errorf("methods ask for\n%s\nwant\n%s", table.String(), want)
	}
}

// actions are all of them, one by one.
func actions() (list []hangar.Action) {
	for a := hangar.Action(1); a <= hangar.ActionAll; a <<= 1 {
		list = append(list, a)
	}
	return list
}

// caller calls one method in a world, which is another one after every call that was allowed.
type caller struct {
	method string
	*plane
	there names
}

// allowed reports whether a caller that may do actions in the whole organization is let in.
func (c *caller) allowed(t *testing.T, actions hangar.Action) bool {
	t.Helper()
	if c.plane == nil {
		c.plane, c.there = world(t)
		c.there.header = c.header(t, c.there.org)
		if _, err := c.Machines().AcquireLease(admin(t), c.there.ref(), hangar.LeaseAcquire{}); err != nil {
			t.Fatal(err)
		}
	}
	return c.lets(t, hangar.Principal{Subject: "me", Grants: []hangar.Grant{{Org: c.there.org, Actions: actions}}})
}

// letsUser reports whether a user who has signed in, and is a member of nothing, is let in.
func (c *caller) letsUser(t *testing.T) bool {
	t.Helper()
	p := c.plane
	defer func() { c.plane = p }()
	var token hangar.TokenID
	for _, made := range p.auth.OfUser(p.user(t, c.there.user).ID, hangar.TokenLogin) {
		token = made.ID
	}
	return c.lets(t, hangar.Principal{Subject: "me", SignedIn: true, User: p.user(t, c.there.user).ID, Tokens: []hangar.TokenID{token}})
}

// lets reports whether a principal is let in.
func (c *caller) lets(t *testing.T, who hangar.Principal) bool {
	t.Helper()
	switch hangar.CodeOf(c.call(t, as(t, who))) {
	case hangar.CodeForbidden:
		return false
	case hangar.CodeNotFound: // no host has an image
		return c.method == "Images.RemoveImage"
	default:
		c.plane = nil
		return true
	}
}

// call calls the method. What is a stream ends with its first item.
func (c *caller) call(t *testing.T, ctx context.Context) error { //nolint:revive // the test comes first
	t.Helper()
	for _, m := range everyMethod(c.Control) {
		if m.name == c.method {
			if m.f.Type().Out(m.f.Type().NumOut() - 1).CanSeq2() {
				for _, h := range c.hosts {
					h.setDown(true) // or it would last as long as the Machine
				}
			}
			return errorOf(t, m.call(ctx, c.there))
		}
	}
	t.Fatalf("no method %s", c.method)
	return nil
}

// asksFor is the entry of the method in the table.
func (c *caller) asksFor(t *testing.T) string {
	t.Helper()
	var enough []string
	for _, a := range actions() {
		if c.allowed(t, a) {
			enough = append(enough, a.String())
		}
	}
	switch {
	case len(enough) == len(actions()):
		return "any"
	case enough != nil:
		return strings.Join(enough, "|")
	case c.allowed(t, hangar.ActionAll):
	case c.letsUser(t):
		return "user"
	default:
		return "administrator"
	}
	need := hangar.ActionAll
	for _, a := range actions() {
		if c.allowed(t, need&^a) {
			need &^= a
		}
	}
	return strings.Join(need.Names(), "+")
}

// countingResolver is a DNS without names, which counts what it is asked.
type countingResolver struct{ asked atomic.Int64 }

func (r *countingResolver) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	r.asked.Add(1)
	return nil, errNoName
}

func (r *countingResolver) LookupTXT(context.Context, string) ([]string, error) {
	r.asked.Add(1)
	return nil, errNoName
}

func (r *countingResolver) LookupCNAME(context.Context, string) (string, error) {
	r.asked.Add(1)
	return "", errNoName
}

// TestReadingHasNoEffect calls every method that the right to read, or to query metrics,
// allows: afterwards everything is as before, and no name was looked up.
func TestReadingHasNoEffect(t *testing.T) {
	called := 0
	const looking = hangar.ActionRead | hangar.ActionMetrics
	for _, m := range everyMethod(control.New(control.Config{})) {
		p, there := world(t)
		resolver, edge := &countingResolver{}, &fakeCertificates{}
		p.resolver, p.certificates = resolver, edge
		p.restart(t)
		there.header = p.header(t, there.org)
		if _, err := p.Certificates().RequestCertificate(admin(t), there.app, hangar.Hostname(there.token+".example.com")); err != nil {
			t.Fatal(err)
		}
		edge.retried = nil
		resolver.asked.Store(0)
		before := p.everything(t)
		if c := (&caller{method: m.name, plane: p, there: there}); !c.allowed(t, looking) {
			continue
		}
		called++
		if after := p.everything(t); !slices.Equal(before, after) {
			t.Errorf("%s makes of\n%s\nthis:\n%s", m.name, without(before, after), without(after, before))
		}
		if edge.retried != nil || resolver.asked.Load() != 0 {
			t.Errorf("%s has the edge ask for %v, and %d names looked up", m.name, edge.retried, resolver.asked.Load())
		}
	}
	if called < 30 {
		t.Errorf("only %d calls were allowed", called)
	}
}

func without(list, others []string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) }), "\n")
}

// everything is what the state and the hosts hold.
func (p *plane) everything(t *testing.T) (list []string) {
	t.Helper()
	items, _, err := state.All(t.Context(), p.store, "/", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range items {
		list = append(list, fmt.Sprintf("%s at %d: %s", item.Key, item.Revision, item.Value))
	}
	for _, h := range p.hosts {
		h.mu.Lock()
		raw, err := json.Marshal([]any{h.machines, h.leases, h.images, h.updated, h.volumes.rows})
		h.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, string(raw))
	}
	return list
}

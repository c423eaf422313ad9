package control_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/hostnames"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
)

// liveDNS is a DNS that the test changes.
type liveDNS struct {
	mu      sync.Mutex // guards records
	records fakeResolver
}

func (d *liveDNS) set(host string, records ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.records[host+"."] = records
}

func (d *liveDNS) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.records.LookupNetIP(ctx, network, host)
}

func (d *liveDNS) LookupCNAME(ctx context.Context, host string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.records.LookupCNAME(ctx, host)
}

func (d *liveDNS) LookupTXT(ctx context.Context, name string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.records.LookupTXT(ctx, name)
}

// contest is a plane with an edge, a DNS, and two organizations that do not trust each
// other: "personal" has the App "web", "evil" the App "bad".
type contest struct {
	*plane
	dns  *liveDNS
	edge *fakeCertificates
	own  map[hangar.AppName]netip.Addr // the address that each has to itself
	me   context.Context
	evil context.Context
}

const sharedIP = "127.0.0.1" // of testPools

func newHostnames(t *testing.T) *contest {
	t.Helper()
	p := newPlane(t, state.NewMemory())
	edge := &fakeEdge{apps: map[hangar.AppID]*hangar.AppRoute{}, changed: make(chan struct{})}
	h := &contest{
		plane: p, dns: &liveDNS{records: fakeResolver{}}, edge: &fakeCertificates{states: map[hangar.Hostname]hangar.CertificateState{}},
		own:  map[hangar.AppName]netip.Addr{},
		me:   as(t, hangar.Principal{Subject: "me", Grants: []hangar.Grant{{Org: hangar.OrgPersonal, Actions: hangar.ActionAll}}}),
		evil: as(t, hangar.Principal{Subject: "evil", Grants: []hangar.Grant{{Org: "evil", Actions: hangar.ActionAll}}}),
	}
	p.edge, p.certificates, p.resolver = edge, h.edge, h.dns
	p.restart(t)
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { edge.follow(ctx, control.NewRouteRecords(p.store, quiet)) })
	t.Cleanup(following.Wait)
	t.Cleanup(cancel)
	if _, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "evil"}); err != nil {
		t.Fatal(err)
	}
	h.newApp(t, "web", hangar.OrgPersonal)
	h.newApp(t, "bad", "evil")
	t.Cleanup(func() { h.everyOneFindsItsOwn(t) })
	return h
}

// everyOneFindsItsOwn checks that each Hostname is found by whose it is, and by nothing else.
func (h *contest) everyOneFindsItsOwn(t *testing.T) {
	t.Helper()
	items, _, err := state.All(context.Background(), h.store, "/", false)
	if err != nil {
		t.Fatal(err)
	}
	var want, found []string
	for _, item := range items {
		if name, ok := strings.CutPrefix(item.Key, "/hostnames/"); ok {
			var of struct {
				App hangar.AppID `json:"app_id"`
				Org hangar.OrgID `json:"org_id"`
			}
			if err := json.Unmarshal(item.Value, &of); err != nil {
				t.Fatal(err)
			}
			want = append(want, string(of.Org)+"/"+string(of.App)+"/"+name)
		}
		if key, ok := strings.CutPrefix(item.Key, "/held-hostnames/"); ok {
			found = append(found, key)
		}
	}
	slices.Sort(want)
	if !slices.Equal(want, found) {
		t.Errorf("hostnames are found as %q, want %q", found, want)
	}
}

// newApp makes an App with a shared address and one of its own.
func (h *contest) newApp(t *testing.T, name hangar.AppName, org hangar.OrgSlug) {
	t.Helper()
	if _, err := h.Apps().CreateApp(admin(t), hangar.AppCreate{Name: name, Org: org}); err != nil {
		t.Fatal(err)
	}
	h.address(t, name, hangar.AddressCreate{Kind: hangar.AddressSharedV4})
	h.own[name] = h.address(t, name, hangar.AddressCreate{Kind: hangar.AddressV4}).IP
}

// claim requests a certificate for an App, and returns what proves the name.
func (h *contest) claim(t *testing.T, app hangar.AppName, name hangar.Hostname) (hangar.HostnameProof, error) {
	t.Helper()
	ctx := h.me
	if app == "bad" || strings.HasPrefix(string(app), "evil") {
		ctx = h.evil
	}
	if name.Wildcard() {
		c, err := h.Certificates().UploadCertificate(ctx, app, name, uploadOf(t, string(name)))
		if err != nil {
			return "", err
		}
		return c.Proof, nil
	}
	c, err := h.Certificates().RequestCertificate(ctx, app, name)
	if err != nil {
		return "", err
	}
	return c.Proof, nil
}

// must claims a name that has to be proven by proof.
func (h *contest) must(t *testing.T, app hangar.AppName, name hangar.Hostname, proof hangar.HostnameProof) {
	t.Helper()
	if got, err := h.claim(t, app, name); err != nil || got != proof {
		t.Fatalf("%s claims %s: proven by %q, %v; want %q", app, name, got, err, proof)
	}
}

// refused claims a name that is another's.
func (h *contest) refused(t *testing.T, app hangar.AppName, name hangar.Hostname) {
	t.Helper()
	_, err := h.claim(t, app, name)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonNameTaken)
}

// txt has the DNS say that a name is an App's organization's.
func (h *contest) txt(t *testing.T, name hangar.Hostname, values ...string) {
	t.Helper()
	h.dns.set(string(name.Ownership("", "").Name), values...)
}

// ownership is the record of a name for an App.
func (h *contest) ownership(t *testing.T, app hangar.AppName, name hangar.Hostname) hangar.HostnameOwnership {
	t.Helper()
	// Another name of the App reveals its ids, however it is proven.
	const probe = "probe.ownership-of-names.net"
	c, err := h.Certificates().RequestCertificate(admin(t), app, probe)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Certificates().RemoveCertificate(admin(t), app, probe, ""); err != nil {
		t.Fatal(err)
	}
	app1, org := strings.TrimPrefix(c.Ownership.AppValue, "app-"), strings.TrimPrefix(c.Ownership.OrgValue, "org-")
	return name.Ownership(hangar.AppID(app1), hangar.OrgID(org))
}

// served are the names that the edge serves for an App, and those that it orders
// certificates for.
func (h *contest) served(t *testing.T, app hangar.AppName) (routed, ordered, custom []hangar.Hostname) {
	t.Helper()
	for c, err := range control.NewRouteRecords(h.store, quiet).WatchRoutes(t.Context()) {
		if err != nil || c.Synced {
			break
		}
		if c.Route != nil && c.Route.App == app {
			routed = c.Route.Hostnames
		}
	}
	for set, err := range hostnames.NewFeed(h.store, vault.New(h.store, h.keys, quiet), quiet).WatchCertificates(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for _, up := range set.Custom {
			custom = append(custom, up.Hostname)
		}
		for _, wanted := range set.ACME {
			ordered = append(ordered, wanted.Hostname)
		}
		return routed, ordered, custom
	}
	return routed, nil, nil
}

// has checks what the edge has of a name for an App.
func (h *contest) has(t *testing.T, app hangar.AppName, name hangar.Hostname, routed, ordered bool) {
	t.Helper()
	r, o, c := h.served(t, app)
	if slices.Contains(r, name) != routed || slices.Contains(o, name) != ordered || !routed && slices.Contains(c, name) {
		t.Fatalf("the edge routes %v to %s, orders %v, has %v; want %s routed: %t, ordered: %t", r, app, o, c, name, routed, ordered)
	}
}

func (h *contest) tend(t *testing.T) {
	t.Helper()
	h.clock.advance(2 * time.Hour) // everything is looked up again
	if err := h.Hostnames.Tend(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (h *contest) issued(name hangar.Hostname) {
	h.edge.mu.Lock()
	defer h.edge.mu.Unlock()
	h.edge.states[name] = hangar.CertificateState{Issued: []hangar.IssuedCertificate{{Kind: hangar.CertificateACME, Status: hangar.CertificateActive}}}
}

const bank hangar.Hostname = "www.bank.com"

// TestTendingGoesOn: a record of one organization that cannot be read delays no hostname of another.
func TestTendingGoesOn(t *testing.T) {
	h := newHostnames(t)
	if _, err := h.Certificates().RequestCertificate(h.evil, "bad", "expires.biz"); err != nil { // is looked at first
		t.Fatal(err)
	}
	h.clock.advance(hangar.HostnameClaimLife + time.Second)
	h.must(t, "web", bank, "")
	evil, err := h.Orgs().Org(admin(t), "evil")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(state.UsageKey(evil.ID), []byte("x"))}}); err != nil {
		t.Fatal(err)
	}
	h.dns.set(string(bank), h.own["web"].String())
	h.clock.advance(2 * time.Hour)
	if err := h.Hostnames.Tend(t.Context()); err == nil {
		t.Error("a record that cannot be read is not reported")
	}
	h.has(t, "web", bank, true, true)
}

// TestHostnameProofs: what the DNS says, and what it proves.
func TestHostnameProofs(t *testing.T) {
	for what, tt := range map[string]struct {
		records        func(h *contest) []string
		proof          hangar.HostnameProof
		routed, orders bool
	}{
		"nothing":             {func(*contest) []string { return nil }, "", false, false},
		"elsewhere":           {func(*contest) []string { return []string{"198.51.100.1"} }, "", false, false},
		"the shared address":  {func(*contest) []string { return []string{sharedIP} }, "", false, true},
		"its own address":     {func(h *contest) []string { return []string{h.own["web"].String()} }, hangar.ProofDNS, true, true},
		"another's address":   {func(h *contest) []string { return []string{h.own["bad"].String()} }, "", false, false},
		"its own name":        {func(*contest) []string { return []string{"web.hangar.localhost.", sharedIP} }, hangar.ProofDNS, true, true},
		"another's name":      {func(*contest) []string { return []string{"bad.hangar.localhost.", sharedIP} }, "", false, false},
		"a door":              {func(*contest) []string { return []string{"api.hangar.localhost.", sharedIP} }, "", false, false},
		"a name that ends so": {func(*contest) []string { return []string{"xweb.hangar.localhost.", sharedIP} }, "", false, false},
		"a name elsewhere":    {func(*contest) []string { return []string{"web.elsewhere.net.", sharedIP} }, "", false, true},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHostnames(t)
			h.dns.set(string(bank), tt.records(h)...)
			h.must(t, "web", bank, tt.proof)
			h.has(t, "web", bank, tt.routed, tt.orders)
			// Later it is seen likewise.
			h.tend(t)
			h.has(t, "web", bank, tt.routed, tt.orders)
		})
	}
	for _, value := range []string{"app", "org"} {
		t.Run("txt with the id of the "+value, func(t *testing.T) {
			h := newHostnames(t)
			o := h.ownership(t, "web", bank)
			h.txt(t, bank, "something else", map[string]string{"app": o.AppValue, "org": o.OrgValue}[value])
			h.refusedToEvil(t, bank)
			h.must(t, "web", bank, hangar.ProofTXT)
			h.has(t, "web", bank, true, true)
		})
	}
	t.Run("wildcard", func(t *testing.T) {
		h := newHostnames(t)
		h.dns.set("*.bank.com", h.own["web"].String())
		h.must(t, "web", "*.bank.com", hangar.ProofDNS)
		h.dns.set("*.bank2.com", "198.51.100.1")
		h.dns.set("hangar-check.bank2.com", h.own["bad"].String()) // one name that is registered below it
		h.must(t, "bad", "*.bank2.com", "")
		h.has(t, "bad", "*.bank2.com", false, false)
	})
	t.Run("vouched for", func(t *testing.T) {
		h := newHostnames(t)
		c, err := h.Certificates().UploadCertificate(admin(t), "web", "shop.test", uploadOf(t, "shop.test"))
		if err != nil || c.Proof != hangar.ProofOperator {
			t.Fatalf("%+v, %v", c, err)
		}
		h.has(t, "web", "shop.test", true, false)
		h.trustNames = true
		h.restart(t)
		h.must(t, "bad", "other.test", hangar.ProofOperator)
	})
}

// refusedToEvil: records that name another organization prove nothing.
func (h *contest) refusedToEvil(t *testing.T, name hangar.Hostname) {
	t.Helper()
	h.must(t, "bad", name, "")
	h.has(t, "bad", name, false, false)
}

// TestUnprovenHostnames: nothing of them reaches the edge, and they end.
func TestUnprovenHostnames(t *testing.T) {
	h := newHostnames(t)
	h.must(t, "bad", bank, "")
	c, err := h.Certificates().UploadCertificate(h.evil, "bad", bank, uploadOf(t, string(bank)))
	if err != nil || c.Proof != "" || c.ClaimEndsAt.Sub(c.CreatedAt) != hangar.HostnameClaimLife {
		t.Fatalf("a self-signed upload: %+v, %v", c, err)
	}
	if !slices.ContainsFunc(c.Issued, func(i hangar.IssuedCertificate) bool { return i.Status == hangar.CertificateUnproven }) {
		t.Errorf("its certificates are %+v", c.Issued)
	}
	check, err := h.Certificates().CheckCertificate(h.evil, "bad", bank)
	if err != nil || check.Configured || len(h.edge.retried) > 0 {
		t.Errorf("checked: %+v, %v; the edge is to ask for %v", check, err, h.edge.retried)
	}
	h.has(t, "bad", bank, false, false)
	h.clock.advance(hangar.HostnameClaimLife - 3*time.Hour)
	h.tend(t)
	if len(h.records(t, "/hostnames/")) != 1 {
		t.Fatal("the claim has ended before its time")
	}
	h.tend(t)
	if left := slices.Concat(h.records(t, "/hostnames/"), h.records(t, "/certificates/")); len(left) != 0 {
		t.Errorf("there remain %v", left)
	}
}

// signed is a certificate for names that an authority has signed, and that authority.
func signed(t *testing.T, names ...string) (hangar.CertificateUpload, *x509.CertPool) {
	t.Helper()
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	from, to := time.Unix(0, 0), time.Unix(1<<32, 0)
	root := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, root, root, rootKey.Public(), rootKey)
	if err != nil {
		t.Fatal(err)
	}
	if root, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: names, NotBefore: from, NotAfter: to, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if der, err = x509.CreateCertificate(rand.Reader, leaf, root, key.Public(), rootKey); err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	return hangar.CertificateUpload{
		Fullchain:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		PrivateKey: string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})),
	}, roots
}

// TestUploadThatProves: a certificate of an authority that the server trusts proves the name,
// and takes it from who had nothing to show.
func TestUploadThatProves(t *testing.T) {
	h := newHostnames(t)
	up, roots := signed(t, string(bank))
	h.must(t, "bad", bank, "")
	_, err := h.Certificates().UploadCertificate(h.me, "web", bank, up)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonNameTaken)
	h.roots = roots
	h.restart(t)
	c, err := h.Certificates().UploadCertificate(h.me, "web", bank, up)
	if err != nil || c.Proof != hangar.ProofCertificate {
		t.Fatalf("%+v, %v", c, err)
	}
	h.has(t, "web", bank, true, false)
	if routed, _, _ := h.served(t, "bad"); len(routed) != 0 {
		t.Errorf("the other still has %v", routed)
	}
	h.refused(t, "bad", bank)
}

// TestSquatting: an earlier claim without a proof does not block a later one with a proof.
func TestSquatting(t *testing.T) {
	for what, prove := range map[string]func(t *testing.T, h *contest){
		"txt":     func(t *testing.T, h *contest) { t.Helper(); h.txt(t, bank, h.ownership(t, "web", bank).OrgValue) },
		"name":    func(_ *testing.T, h *contest) { h.dns.set(string(bank), "web.hangar.localhost.") },
		"address": func(_ *testing.T, h *contest) { h.dns.set(string(bank), h.own["web"].String()) },
	} {
		t.Run(what, func(t *testing.T) {
			h := newHostnames(t)
			h.must(t, "bad", bank, "")
			prove(t, h)
			if got, err := h.claim(t, "web", bank); err != nil || got == "" {
				t.Fatalf("proven by %q, %v", got, err)
			}
			h.has(t, "web", bank, true, true)
			h.has(t, "bad", bank, false, true) // ordered for the other
			h.refused(t, "bad", bank)
			_, err := h.Certificates().Certificate(h.evil, "bad", bank)
			wantError(t, err, hangar.CodeNotFound, hangar.ReasonCertificateNotFound)
		})
	}
	t.Run("contested", func(t *testing.T) {
		// The owner lets the name lead here and comes second: that alone proves it for none of
		// them.
		h := newHostnames(t)
		h.must(t, "bad", bank, "")
		h.dns.set(string(bank), sharedIP)
		_, err := h.claim(t, "web", bank)
		wantError(t, err, hangar.CodeInvalid, hangar.ReasonNameTaken)
		record := h.ownership(t, "web", bank)
		if !strings.Contains(err.Error(), string(record.Name)) || !strings.Contains(err.Error(), record.OrgValue) {
			t.Errorf("it does not say what to do: %v", err)
		}
		h.issued(bank)
		h.tend(t)
		h.tend(t)
		h.has(t, "bad", bank, false, false)
		h.txt(t, bank, record.AppValue)
		h.must(t, "web", bank, hangar.ProofTXT)
	})
	t.Run("by an unproven wildcard", func(t *testing.T) {
		h := newHostnames(t)
		h.must(t, "bad", "*.bank.com", "")
		h.dns.set(string(bank), "web.hangar.localhost.")
		h.must(t, "web", bank, hangar.ProofDNS)
	})
}

// TestLeadingHere: a name that leads to the address that Apps share is served once a
// certificate was issued, and not before; when it leads away again, none is ordered.
func TestLeadingHere(t *testing.T) {
	h := newHostnames(t)
	h.dns.set(string(bank), sharedIP)
	h.must(t, "web", bank, "")
	h.has(t, "web", bank, false, true)
	h.dns.set(string(bank), "198.51.100.1") // between the check and the order
	h.tend(t)
	h.has(t, "web", bank, false, false)
	h.issued(bank) // one from before, that the edge still has
	h.tend(t)
	h.has(t, "web", bank, false, false)
	h.edge.states = map[hangar.Hostname]hangar.CertificateState{}
	h.dns.set(string(bank), sharedIP)
	h.tend(t)
	h.has(t, "web", bank, false, true)
	h.issued(bank)
	h.tend(t)
	h.has(t, "web", bank, true, true)
	c, err := h.Certificates().Certificate(h.me, "web", bank)
	if err != nil || c.Proof != hangar.ProofACME || c.ProvenAt.IsZero() || !c.ClaimEndsAt.IsZero() {
		t.Errorf("%+v, %v", c, err)
	}
	h.dns.set(string(bank)) // an outage of the DNS
	h.clock.advance(hangar.HostnameClaimLife)
	h.tend(t)
	h.has(t, "web", bank, true, true)
}

// TestRelatedHostnames: where another organization has names of the same owner, it takes more
// than that a name leads here.
func TestRelatedHostnames(t *testing.T) {
	t.Run("below a wildcard", func(t *testing.T) {
		h := newHostnames(t)
		h.dns.set("*.bank.com", "web.hangar.localhost.", sharedIP)
		h.must(t, "web", "*.bank.com", hangar.ProofDNS)
		h.refused(t, "bad", bank)
		h.dns.set(string(bank), "bad.hangar.localhost.")
		h.refused(t, "bad", bank)
		h.txt(t, bank, h.ownership(t, "bad", bank).OrgValue) // the owner has delegated it
		h.must(t, "bad", bank, hangar.ProofTXT)
	})
	t.Run("above a name", func(t *testing.T) {
		h := newHostnames(t)
		h.dns.set(string(bank), "web.hangar.localhost.")
		h.must(t, "web", bank, hangar.ProofDNS)
		h.refused(t, "bad", "*.bank.com")
	})
	t.Run("of the same domain", func(t *testing.T) {
		h := newHostnames(t)
		h.dns.set(string(bank), "web.hangar.localhost.")
		h.must(t, "web", bank, hangar.ProofDNS)
		for _, name := range []hangar.Hostname{"bank.com", "a.b.bank.com"} {
			h.dns.set(string(name), sharedIP)
			h.issued(name)
			h.must(t, "bad", name, "")
			h.tend(t)
			h.tend(t)
			h.has(t, "bad", name, false, false)
		}
	})
	t.Run("a wildcard that is proven later", func(t *testing.T) {
		h := newHostnames(t)
		h.dns.set(string(bank), sharedIP)
		h.must(t, "bad", bank, "")
		h.has(t, "bad", bank, false, true)
		h.txt(t, "*.bank.com", h.ownership(t, "web", "*.bank.com").OrgValue)
		h.must(t, "web", "*.bank.com", hangar.ProofTXT)
		h.issued(bank)
		h.tend(t)
		h.tend(t)
		h.has(t, "bad", bank, false, false)
	})
}

// TestDanglingHostnames: DNS records that still lead to what an App had are not those of the
// App that has its name now.
func TestDanglingHostnames(t *testing.T) {
	for what, leave := range map[string]func(t *testing.T, h *contest){
		"the app is destroyed": func(t *testing.T, h *contest) {
			t.Helper()
			if err := h.Apps().DestroyApp(h.me, "web", true); err != nil {
				t.Fatal(err)
			}
			h.newApp(t, "evilweb", "evil")
		},
		"the name is given up": func(t *testing.T, h *contest) {
			t.Helper()
			if _, err := h.Certificates().RemoveCertificate(h.me, "web", bank, ""); err != nil {
				t.Fatal(err)
			}
			if err := h.Apps().DestroyApp(h.me, "web", true); err != nil {
				t.Fatal(err)
			}
			h.newApp(t, "evilweb", "evil")
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHostnames(t)
			h.dns.set(string(bank), "web.hangar.localhost.", sharedIP)
			h.must(t, "web", bank, hangar.ProofDNS)
			h.issued(bank)
			leave(t, h)
			h.newApp(t, "web", "evil") // the name has changed hands
			_, err := h.Certificates().RequestCertificate(h.evil, "web", bank)
			wantError(t, err, hangar.CodeInvalid, hangar.ReasonNameTaken)
			h.dns.set("bank.com", sharedIP) // and so may others of the domain
			h.must(t, "evilweb", "bank.com", "")
			h.has(t, "evilweb", "bank.com", false, false)
			// Its owner has it back at once, as another App.
			h.newApp(t, "new", hangar.OrgPersonal)
			h.must(t, "new", bank, "")
			if _, err := h.Certificates().RemoveCertificate(h.me, "new", bank, ""); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("it is remembered for a while", func(t *testing.T) {
		h := newHostnames(t)
		h.dns.set(string(bank), h.own["web"].String())
		h.must(t, "web", bank, hangar.ProofDNS)
		if err := h.Apps().DestroyApp(h.me, "web", true); err != nil {
			t.Fatal(err)
		}
		h.dns.set(string(bank), "bad.hangar.localhost.")
		h.clock.advance(99 * 24 * time.Hour)
		h.tend(t)
		h.refused(t, "bad", bank)
		h.clock.advance(24 * time.Hour)
		h.must(t, "bad", bank, hangar.ProofDNS)
	})
}

// TestHostnameTakenOver: a proven name changes hands only if the DNS says so by a TXT record
// for the new one, and nothing for the old one; or if it leads to the new one alone, and the old
// one had no more than that it led here.
func TestHostnameTakenOver(t *testing.T) {
	mine := func(t *testing.T, h *contest) string { t.Helper(); return h.ownership(t, "web", bank).OrgValue }
	theirs := func(t *testing.T, h *contest) string { t.Helper(); return h.ownership(t, "bad", bank).AppValue }
	t.Run("by txt", func(t *testing.T) {
		h := newHostnames(t)
		h.dns.set(string(bank), "web.hangar.localhost.")
		h.must(t, "web", bank, hangar.ProofDNS)
		h.txt(t, bank, theirs(t, h))
		h.refused(t, "bad", bank)               // it still leads to its holder
		h.dns.set(string(bank), "198.51.100.1") // no more
		h.txt(t, bank, theirs(t, h), mine(t, h))
		h.refused(t, "bad", bank) // both
		h.has(t, "web", bank, true, true)
		h.txt(t, bank)
		h.refused(t, "bad", bank) // neither
		h.txt(t, bank, theirs(t, h))
		up := uploadOf(t, string(bank))
		if _, err := h.Certificates().UploadCertificate(h.me, "web", bank, up); err != nil {
			t.Fatal(err)
		}
		h.must(t, "bad", bank, hangar.ProofTXT)
		h.has(t, "web", bank, false, true)
		h.has(t, "bad", bank, true, true)
		if left := h.records(t, "/certificates/"); len(left) != 0 {
			t.Errorf("the certificate of the former owner remains: %v", left)
		}
	})
	// led gives web a name that leads to the shared address, and a certificate because of it.
	led := func(t *testing.T) *contest {
		t.Helper()
		h := newHostnames(t)
		h.dns.set(string(bank), sharedIP)
		h.must(t, "web", bank, "")
		h.issued(bank)
		h.tend(t)
		h.has(t, "web", bank, true, true)
		return h
	}
	t.Run("both by what leads here", func(t *testing.T) {
		h := led(t)
		h.refused(t, "bad", bank)
		h.tend(t)
		h.has(t, "web", bank, true, true)
	})
	t.Run("from what led here by txt", func(t *testing.T) {
		h := led(t)
		h.txt(t, bank, theirs(t, h)) // the owner of the domain says whose it is
		h.must(t, "bad", bank, hangar.ProofTXT)
		h.has(t, "web", bank, false, true)
		h.has(t, "bad", bank, true, true)
	})
	for what, record := range map[string]func(h *contest) string{
		"a CNAME":           func(*contest) string { return "bad.hangar.localhost." },
		"an address of its": func(h *contest) string { return h.own["bad"].String() },
	} {
		t.Run("from what led here by "+what, func(t *testing.T) {
			h := led(t)
			h.dns.set(string(bank), record(h))
			h.must(t, "bad", bank, hangar.ProofDNS)
			h.has(t, "web", bank, false, true)
			h.has(t, "bad", bank, true, true)
			h.dns.set(string(bank), sharedIP) // it leads here again, as it would for all
			h.refused(t, "web", bank)
			h.has(t, "bad", bank, true, true)
		})
	}
	t.Run("from what led to it alone by a CNAME", func(t *testing.T) {
		h := newHostnames(t)
		h.dns.set(string(bank), "web.hangar.localhost.")
		h.must(t, "web", bank, hangar.ProofDNS)
		h.dns.set(string(bank), "bad.hangar.localhost.")
		h.refused(t, "bad", bank)
		h.has(t, "web", bank, true, true)
	})
	t.Run("what the operator vouches for", func(t *testing.T) {
		h := newHostnames(t)
		h.upload(t, "web", string(bank))
		h.txt(t, bank, theirs(t, h))
		h.refused(t, "bad", bank)
	})
	t.Run("within the organization", func(t *testing.T) {
		h := newHostnames(t)
		h.newApp(t, "web2", hangar.OrgPersonal)
		h.txt(t, bank, mine(t, h))
		h.must(t, "web", bank, hangar.ProofTXT)
		h.refused(t, "web2", bank)
	})
}

// TestHostnameRaces: of two organizations that claim and prove a name at the same moment, one
// has it.
func TestHostnameRaces(t *testing.T) {
	h := newHostnames(t)
	for i := range 30 {
		name := hangar.Hostname(fmt.Sprintf("www.race%d.com", i))
		h.clock.advance(2 * time.Second) // names may be looked up again
		h.txt(t, name, h.ownership(t, "web", name).OrgValue, h.ownership(t, "bad", name).OrgValue)
		var group sync.WaitGroup
		for _, app := range []hangar.AppName{"web", "bad"} {
			group.Go(func() { _, _ = h.claim(t, app, name) })
		}
		group.Wait()
		web, _, _ := h.served(t, "web")
		bad, _, _ := h.served(t, "bad")
		if slices.Contains(web, name) == slices.Contains(bad, name) {
			t.Fatalf("%s is routed to web: %v, to bad: %v", name, web, bad)
		}
	}
}

// TestUnclaimableHostnames: some names no App gets.
func TestUnclaimableHostnames(t *testing.T) {
	h := newHostnames(t)
	for _, name := range []hangar.Hostname{
		"*.co.uk", "co.uk", "*.com", "*.github.io", "github.io", "metadata.google.internal", "x.flycast", "web.internal", "printer.local", "a.localhost",
		"1.0.0.127.in-addr.arpa", "home.arpa", "a.onion", "a.alt", "x.example", "x.invalid", "127.0.0.1", "[::1]", "single", "oidc.example.com",
		"hangar.localhost", "api.hangar.localhost", "*.hangar.localhost",
	} {
		for who, ctx := range map[string]context.Context{"a tenant": h.me, "an administrator": admin(t)} {
			_, err := h.Certificates().UploadCertificate(ctx, "web", name, uploadOf(t, string(name)))
			if hangar.CodeOf(err) != hangar.CodeInvalid || !strings.Contains(err.Error(), "invalid hostname") {
				t.Errorf("%s gets %s: %v", who, name, err)
			}
		}
	}
	for _, name := range []hangar.Hostname{"bank.co.uk", "*.bank.co.uk", "me.github.io", "shop.test", "nas.lan", "www.example.com"} {
		if why := name.Unclaimable(); why != "" {
			t.Errorf("%s: %s", name, why)
		}
	}
}

// TestLookupsAreShared: an organization that has names looked up all the time gets no more
// than its share, and another is not kept from its own.
func TestLookupsAreShared(t *testing.T) {
	h := newHostnames(t)
	h.must(t, "bad", "a.squat.net", "")
	limited := 0
	for range 100 {
		if _, err := h.Certificates().CheckCertificate(h.evil, "bad", "a.squat.net"); err != nil {
			wantError(t, err, hangar.CodeExhausted, hangar.ReasonRateLimited)
			limited++
		}
	}
	if limited < 70 {
		t.Errorf("only %d of 100 lookups were refused", limited)
	}
	h.must(t, "bad", "b.squat.net", "") // is looked up later
	h.dns.set(string(bank), "web.hangar.localhost.")
	h.must(t, "web", bank, hangar.ProofDNS)
	h.dns.set("b.squat.net", "bad.hangar.localhost.")
	h.tend(t)
	h.tend(t)
	h.has(t, "bad", "b.squat.net", true, true)
}

// TestCheckShowsNoInnerAddresses: what the server's resolver says of names inside of its own
// network is not told to tenants.
func TestCheckShowsNoInnerAddresses(t *testing.T) {
	h := newHostnames(t)
	h.dns.set(string(bank), "10.1.2.3", "192.168.0.1", "fd00::1", "169.254.169.254", "198.51.100.1", sharedIP)
	h.must(t, "web", bank, "")
	check, err := h.Certificates().CheckCertificate(h.me, "web", bank)
	if err != nil || !slices.Equal(check.ResolvedA, []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr(sharedIP)}) || len(check.ResolvedAAAA) != 0 {
		t.Errorf("%v, %v, %v", check.ResolvedA, check.ResolvedAAAA, err)
	}
}

// TestReleasedHostnamesAreBounded: an organization that proves and gives up names all the time
// fills the state with no more than its share, and pushes out its own alone.
func TestReleasedHostnamesAreBounded(t *testing.T) {
	const most = 1000
	h := newHostnames(t)
	evil := strings.TrimPrefix(h.ownership(t, "bad", bank).OrgValue, "org-")
	for _, org := range []string{evil, "other"} {
		for chunk := range slices.Chunk(make([]int, most), state.MaxTxnOps/2) {
			var txn state.Txn
			for range chunk {
				name := "com." + org + "." + strings.ToLower(rand.Text())
				txn.Then = append(txn.Then, state.Put("/held-hostnames/"+org+"//"+name, nil), state.Put("/hostnames/"+name, fmt.Appendf(nil, `{"org_id":%q,"state":"released","updated_at":"2023-11-14T00:00:00Z"}`, org)))
			}
			if _, err := h.store.Txn(t.Context(), txn); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := len(h.records(t, "/hostnames/"))
	for i := range 5 {
		name := hangar.Hostname(fmt.Sprintf("a%d.flood.net", i))
		h.dns.set(string(name), "bad.hangar.localhost.")
		h.must(t, "bad", name, hangar.ProofDNS)
		if _, err := h.Certificates().RemoveCertificate(h.evil, "bad", name, ""); err != nil {
			t.Fatal(err)
		}
	}
	if after := len(h.records(t, "/hostnames/")); after > before {
		t.Errorf("%d names were remembered, and are %d now", before, after)
	}
	others := slices.DeleteFunc(h.records(t, "/hostnames/"), func(key string) bool { return !strings.HasPrefix(key, "/hostnames/com.other.") })
	if len(others) != most {
		t.Errorf("%d of another organization's are left", len(others))
	}
}

// listed is a state that notes which lists were read.
type listed struct {
	state.Store

	mu       sync.Mutex
	prefixes []string
}

func (l *listed) List(ctx context.Context, prefix string, o state.ListOptions) (state.Page, error) {
	l.mu.Lock()
	l.prefixes = append(l.prefixes, prefix)
	l.mu.Unlock()
	return l.Store.List(ctx, prefix, o)
}

// TestRelatedHostnamesAreFoundByDomain: a claim is weighed by the names of its own domain, however
// many hostnames others have.
func TestRelatedHostnamesAreFoundByDomain(t *testing.T) {
	h := newHostnames(t)
	h.txt(t, bank, h.ownership(t, "web", bank).OrgValue)
	h.must(t, "web", bank, hangar.ProofTXT)
	watched := &listed{Store: h.store}
	h.store = watched
	h.restart(t)
	watched.prefixes = nil
	if _, err := h.Certificates().CheckCertificate(h.me, "web", bank); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(watched.prefixes, "/hostnames/com.bank") || slices.Contains(watched.prefixes, "/hostnames/") {
		t.Errorf("lists that were read: %q", watched.prefixes)
	}
}

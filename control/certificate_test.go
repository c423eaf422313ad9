package control_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/hostnames"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/test/contract"
)

// fakeCertificates is what an edge knows of certificates.
type fakeCertificates struct {
	mu      sync.Mutex // guards what follows
	states  map[hangar.Hostname]hangar.CertificateState
	retried []hangar.Hostname
}

func (f *fakeCertificates) ACME() bool { return true }

func (f *fakeCertificates) CertificateState(name hangar.Hostname) hangar.CertificateState {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.states[name]
	s.Issued = slices.Clone(s.Issued)
	return s
}

func (f *fakeCertificates) RetryCertificate(name hangar.Hostname) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retried = append(f.retried, name)
}

// fakeResolver is a DNS.
type fakeResolver map[string][]string

var errNoName = errors.New("no such host")

// of returns the records of a name, or of the wildcard above it.
func (r fakeResolver) of(host string) []string {
	if found, ok := r[host]; ok {
		return found
	}
	_, parent, _ := strings.Cut(host, ".")
	return r["*."+parent]
}

func (r fakeResolver) LookupTXT(_ context.Context, name string) ([]string, error) {
	return r[name], nil
}

func (r fakeResolver) LookupNetIP(_ context.Context, _, host string) (found []netip.Addr, err error) {
	for _, text := range r.of(host) {
		if ip, err := netip.ParseAddr(text); err == nil {
			found = append(found, ip)
		}
	}
	if found == nil {
		err = errNoName
	}
	return found, err
}

func (r fakeResolver) LookupCNAME(_ context.Context, host string) (string, error) {
	for _, text := range r.of(host) {
		if strings.HasSuffix(text, ".") {
			return text, nil
		}
	}
	return host, nil
}

// uploadOf is a certificate for a name at the times of the tests' clocks.
func uploadOf(t *testing.T, name string) hangar.CertificateUpload {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return hangar.CertificateUpload{
		Fullchain:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		PrivateKey: string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})),
	}
}

func (p *plane) upload(t *testing.T, app hangar.AppName, name string) hangar.CertificateUpload {
	t.Helper()
	up := uploadOf(t, name)
	if _, err := p.Certificates().UploadCertificate(admin(t), app, hangar.Hostname(name), up); err != nil {
		t.Fatal(err)
	}
	return up
}

func TestCertificateService(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.clock.advance(time.Since(p.clock.Now()))
		p.certificates = &fakeCertificates{}
		p.restart(t)
		var harness func(ctx func(testing.TB) context.Context) contract.Harness
		harness = func(ctx func(testing.TB) context.Context) contract.Harness {
			return contract.Harness{
				Orgs: p.Orgs(), Apps: p.Apps(), Tokens: p.Tokens(), Certificates: p.Certificates(), ACME: true, Context: ctx,
				As: func(_ testing.TB, credential string) contract.Harness {
					return harness(func(tb testing.TB) context.Context {
						tb.Helper()
						who, err := p.auth.Authenticate(tb.Context(), credential)
						if err != nil {
							return tb.Context()
						}
						return hangar.WithPrincipal(tb.Context(), who)
					})
				},
			}
		}
		contract.CertificateService(t, harness(func(tb testing.TB) context.Context { tb.Helper(); return admin(t) }))
	})
}

// TestUploadedKeysAreEncrypted: nothing of a certificate is in the state in clear, and it is
// there after the key was rotated.
func TestUploadedKeysAreEncrypted(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.app(t, "web")
		up := p.upload(t, "web", "www.example.com")
		items, _, err := state.All(t.Context(), store, "/", false)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range items {
			if bytes.Contains(i.Value, []byte("PRIVATE KEY")) || bytes.Contains(i.Value, []byte("BEGIN CERT")) {
				t.Errorf("%s holds it in clear", i.Key)
			}
		}
		if done, err := p.Encryption().RotateEncryptionKey(admin(t)); err != nil || done.Resealed != 3 { // the seal, this, and the keys of identity tokens
			t.Fatalf("rotated %+v, %v", done, err)
		}
		for set, err := range hostnames.NewFeed(store, vault.New(store, p.keys, quiet), quiet).WatchCertificates(t.Context()) {
			if err != nil || len(set.Custom) != 1 || string(set.Custom[0].PrivateKey) != up.PrivateKey || string(set.Custom[0].Fullchain) != up.Fullchain {
				t.Errorf("the edge gets %+v, %v", set, err)
			}
			break
		}
	})
}

// TestCertificatesFollow: the edge learns of every change, and of nothing that cannot be read.
func TestCertificatesFollow(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.certificates = &fakeCertificates{}
	p.restart(t)
	app := p.app(t, "web")
	if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{
		state.Put("/hostnames/com.example.bad", []byte("{")),
		state.Put("/hostnames/net.example.worse", fmt.Appendf(nil, `{"app":"web","app_id":%q,"org_id":%q,"custom":true,"state":"proven"}`, app.ID, app.Org.ID)),
		state.Put("/held-hostnames/"+string(app.Org.ID)+"/"+string(app.ID)+"/net.example.worse", nil),
		state.Put("/certificates/worse.example.net", []byte(`{"sealed":"AAAA"}`)),
	}}); err != nil {
		t.Fatal(err)
	}
	s, ctx := p.Certificates(), admin(t)
	steps := []struct {
		do           func() error
		acme, custom int
	}{
		{func() error { return nil }, 0, 0},
		{func() error { _, err := s.RequestCertificate(ctx, "web", "a.example.com"); return err }, 1, 0},
		{func() error {
			_, err := s.UploadCertificate(ctx, "web", "a.example.com", uploadOf(t, "a.example.com"))
			return err
		}, 1, 1},
		{func() error {
			_, err := s.UploadCertificate(ctx, "web", "*.example.com", uploadOf(t, "*.example.com"))
			return err
		}, 1, 2},
		{func() error {
			_, err := s.RemoveCertificate(ctx, "web", "a.example.com", hangar.CertificateACME)
			return err
		}, 0, 2},
		{func() error { return p.Apps().DestroyApp(ctx, "web", true) }, 0, 0},
	}
	if err := steps[0].do(); err != nil {
		t.Fatal(err)
	}
	step := 0
	for set, err := range hostnames.NewFeed(p.store, vault.New(p.store, p.keys, quiet), quiet).WatchCertificates(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if len(set.ACME) != steps[step].acme || len(set.Custom) != steps[step].custom {
			continue // an App goes hostname by hostname
		}
		if step++; step == len(steps) {
			break
		}
		if err := steps[step].do(); err != nil {
			t.Fatal(err)
		}
	}
	left := slices.Concat(p.records(t, "/hostnames/"), p.records(t, "/certificates/"))
	// The owner of the unreadable one is unknown; the others are known to be given up.
	if want := []string{"/hostnames/com.example.*", "/hostnames/com.example.a", "/hostnames/com.example.bad", "/hostnames/net.example.worse"}; !slices.Equal(left, want) {
		t.Errorf("there remain %v", left)
	}
}

func TestCheckCertificate(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	edge := &fakeEdge{apps: map[hangar.AppID]*hangar.AppRoute{}, changed: make(chan struct{})}
	p.edge = edge
	known := &fakeCertificates{states: map[hangar.Hostname]hangar.CertificateState{
		"a.example.com": {Issued: []hangar.IssuedCertificate{{Kind: hangar.CertificateACME, Status: hangar.CertificateActive}, {Kind: hangar.CertificateCustom, Status: hangar.CertificateActive}}},
		"b.example.com": {Errors: []hangar.CertificateError{{Code: "dns"}}},
	}}
	p.certificates = known
	p.restart(t)
	var following sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	following.Go(func() { edge.follow(ctx, control.NewRouteRecords(p.store, quiet)) })
	defer following.Wait()
	defer cancel()
	p.app(t, "web")
	v4 := p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressV4}).IP
	v6 := p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressV6}).IP
	p.resolver = fakeResolver{
		"a.example.com.": {v4.String()}, "b.example.com.": {"198.51.100.1", "2001:db8::1"}, "c.example.com.": {v6.String()},
		"d.example.com.": {"web.hangar.localhost.", "198.51.100.1"}, "e.example.com.": {"api.hangar.localhost."}, "*.example.com.": {v4.String()}, "f.example.com.": nil,
	}
	p.restart(t)
	s := p.Certificates()
	for name, want := range map[hangar.Hostname]bool{
		"a.example.com": true, "b.example.com": false, "c.example.com": true, "d.example.com": true, "e.example.com": false, "f.example.com": false,
	} {
		if _, err := s.RequestCertificate(admin(t), "web", name); err != nil {
			t.Fatal(err)
		}
		check, err := s.CheckCertificate(admin(t), "web", name)
		if err != nil || check.Configured != want {
			t.Errorf("%s: configured %t, want %t; %+v, %v", name, check.Configured, want, check, err)
		}
		if !slices.Equal(check.A, []netip.Addr{v4}) || !slices.Equal(check.AAAA, []netip.Addr{v6}) || check.CNAME != "web.hangar.localhost" {
			t.Errorf("%s has to lead to %v, %v, %s", name, check.A, check.AAAA, check.CNAME)
		}
		if len(check.Issued) != 1 || check.Issued[0].Kind != hangar.CertificateACME {
			t.Errorf("%s has %+v", name, check.Issued)
		}
		if !slices.Contains(known.retried, name) {
			t.Errorf("%s was not asked for again", name)
		}
	}
	p.upload(t, "web", "*.example.com")
	check, err := s.CheckCertificate(admin(t), "web", "*.example.com")
	if err != nil || !check.Configured {
		t.Errorf("the wildcard: %+v, %v", check, err)
	}
	for _, name := range []hangar.Hostname{"hangar.localhost", "web.hangar.localhost", "a.b.hangar.localhost", "*.hangar.localhost"} {
		_, err := s.UploadCertificate(admin(t), "web", name, uploadOf(t, string(name)))
		wantError(t, err, hangar.CodeInvalid, "")
	}
}

// TestRequestWithoutACME: a server without an ACME server refuses requests for certificates.
func TestRequestWithoutACME(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	_, err := p.Certificates().RequestCertificate(admin(t), "web", "www.example.com")
	wantError(t, err, hangar.CodeFailedPrecondition, "")
	p.upload(t, "web", "www.example.com")
	if left := p.records(t, "/hostnames/"); len(left) != 1 {
		t.Errorf("there are %v", left)
	}
}

// TestHostnamesAtOnce: of a name and the wildcard that covers it one is refused, if they are
// those of two organizations, although they are asked for at the same moment.
func TestHostnamesAtOnce(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	if _, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "acme", Name: "acme"}); err != nil {
		t.Fatal(err)
	}
	p.app(t, "web")
	if _, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "shop", Org: "acme"}); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		parent := "n" + strconv.Itoa(i) + ".example.com"
		uploads := map[hangar.AppName]string{"web": "www." + parent, "shop": "*." + parent}
		var group sync.WaitGroup
		var given atomic.Int64
		for app, name := range uploads {
			up := uploadOf(t, name)
			group.Go(func() {
				if _, err := p.Certificates().UploadCertificate(admin(t), app, hangar.Hostname(name), up); err == nil {
					given.Add(1)
				}
			})
		}
		if group.Wait(); given.Load() != 1 {
			t.Fatalf("%d of two names that only one may have were given", given.Load())
		}
	}
}

func TestMostHostnames(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.certificates = &fakeCertificates{}
	p.restart(t)
	app, n := p.app(t, "web"), 0
	for chunk := range slices.Chunk(make([]int, hangar.MaxCertificates), state.MaxTxnOps) {
		var txn state.Txn
		for range chunk {
			n++
			txn.Then = append(txn.Then, state.Put(fmt.Sprintf("/held-hostnames/%s/%s/com.example.n%d", app.Org.ID, app.ID, n), nil))
		}
		if _, err := p.store.Txn(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}
	_, err := p.Certificates().RequestCertificate(admin(t), "web", "www.example.com")
	wantError(t, err, hangar.CodeExhausted, "")
}

package certs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/certs"
	"github.com/hangar-platform/hangar/internal/acmetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// feed is a hangar.CertificateFeed that a test writes.
type feed struct {
	mu      sync.Mutex
	set     hangar.CertificateSet
	changed chan struct{}
	broken  bool
}

func newFeed(set hangar.CertificateSet) *feed { return &feed{set: set, changed: make(chan struct{})} }

func (f *feed) put(set hangar.CertificateSet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set = set
	close(f.changed)
	f.changed = make(chan struct{})
}

// WatchCertificates implements hangar.CertificateFeed.
func (f *feed) WatchCertificates(ctx context.Context) iter.Seq2[hangar.CertificateSet, error] {
	return func(yield func(hangar.CertificateSet, error) bool) {
		if f.broken {
			yield(hangar.CertificateSet{}, errors.New("the state is away"))
			return
		}
		for {
			f.mu.Lock()
			set, changed := f.set, f.changed
			f.mu.Unlock()
			if !yield(set, nil) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// pace is one for tests.
func pace() certs.Pace {
	return certs.Pace{Away: 50 * time.Millisecond, Refused: 50 * time.Millisecond, Most: 200 * time.Millisecond, Limited: time.Hour, Again: time.Millisecond}
}

// open opens a Certs without running it.
func open(t *testing.T, o certs.Options) *certs.Certs {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Domain == "" {
		o.Domain = "apps.example.com"
	}
	if o.Pace == (certs.Pace{}) {
		o.Pace = pace()
	}
	if o.Limits == (certs.Limits{}) {
		many := certs.Limit{N: 1000, Per: time.Second}
		o.Limits = certs.Limits{Account: many, Org: many, Domain: many, Own: many, Name: many}
	}
	o.Log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := certs.New(o)
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// run opens a Certs and runs it until the test ends, or stop is called.
func run(t *testing.T, o certs.Options) (c *certs.Certs, stop func()) {
	t.Helper()
	c = open(t, o)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := c.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	t.Cleanup(stop)
	return c, stop
}

func hello(name string, protos ...string) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{ServerName: name, SupportedProtos: protos}
}

func codeOf(err error) hangar.EdgeCode {
	if e, ok := errors.AsType[*hangar.EdgeError](err); ok {
		return e.Code
	}
	return ""
}

const patience = time.Minute

// eventually asks until it is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); {
		if time.Now().After(end) {
			t.Fatalf("not so after %s: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond) // there is no notification for a certificate
	}
}

// served returns the certificate that a name is answered with, once there is one.
func served(t *testing.T, c *certs.Certs, name string) *x509.Certificate {
	t.Helper()
	var leaf *x509.Certificate
	eventually(t, name+" has a certificate", func() bool {
		pair, err := c.Get(hello(name), false)
		if err == nil {
			leaf = pair.Leaf
		}
		return err == nil
	})
	if err := leaf.VerifyHostname(name); err != nil {
		t.Fatal(err)
	}
	return leaf
}

func custom(t *testing.T, name string) hangar.CustomCertificate {
	t.Helper()
	chain, key := selfSigned(t, name)
	return hangar.CustomCertificate{Hostname: hangar.Hostname(name), Fullchain: chain, PrivateKey: key}
}

func wants(names ...hangar.Hostname) (set hangar.CertificateSet) {
	for _, name := range names {
		set.ACME = append(set.ACME, hangar.WantedCertificate{Hostname: name, Org: "org"})
	}
	return set
}

func TestIssued(t *testing.T) {
	a := startAuthority(t, time.Hour)
	for _, kind := range []string{"http-01", "tls-alpn-01"} {
		t.Run(kind, func(t *testing.T) {
			c, _ := run(t, certs.Options{Directory: a.url, Roots: a.roots, Email: "admin@example.com", Challenges: []string{kind}, Feed: newFeed(wants("www.example.com"))})
			a.edge(t, c)
			leaf := served(t, c, "www.example.com")
			if !strings.HasPrefix(leaf.Issuer.CommonName, "Pebble") {
				t.Errorf("issued by %s", leaf.Issuer)
			}
			s := c.CertificateState("www.example.com")
			if len(s.Issued) != 1 || s.Issued[0].Kind != hangar.CertificateACME || s.Issued[0].Status != hangar.CertificateActive || s.Issued[0].KeyType != "ecdsa" {
				t.Errorf("the state is %+v", s)
			}
			if _, err := c.Get(hello("other.example.com"), false); codeOf(err) != hangar.EdgeNoCertificate {
				t.Errorf("another name: %v", err)
			}
		})
	}
}

// TestPlatformNames: certificates of the platform's names are issued before the first request,
// and nothing that an App has uploaded stands in for them.
func TestPlatformNames(t *testing.T) {
	a := startAuthority(t, time.Hour)
	own := []hangar.Hostname{"api.example.com", "oidc.example.com"}
	uploads := newFeed(hangar.CertificateSet{Custom: []hangar.CustomCertificate{custom(t, "*.example.com"), custom(t, "api.example.com")}})
	o := certs.Options{Dir: t.TempDir(), Domain: "example.com", Platform: own, Directory: a.url, Roots: a.roots, Feed: uploads}
	c, stop := run(t, o)
	a.edge(t, c)
	for _, name := range own {
		eventually(t, string(name)+" has a certificate", func() bool {
			s := c.CertificateState(name)
			return slices.ContainsFunc(s.Issued, func(i hangar.IssuedCertificate) bool {
				return i.Kind == hangar.CertificateACME && i.Status == hangar.CertificateActive
			})
		})
		if leaf := served(t, c, string(name)); !strings.HasPrefix(leaf.Issuer.CommonName, "Pebble") {
			t.Errorf("%s is issued by %s", name, leaf.Issuer)
		}
	}
	uploads.put(hangar.CertificateSet{}) // which does not mention them
	eventually(t, "the upload is gone", func() bool {
		_, err := c.Get(hello("x.example.com"), false)
		return err != nil
	})
	made := a.orders.Load()
	stop()
	a.stopped.Store(true)
	o.Feed = &feed{broken: true}
	c, stop = run(t, o)
	for _, name := range own {
		if _, err := c.Get(hello(string(name)), false); err != nil {
			t.Errorf("%s, right after a start: %v", name, err)
		}
	}
	stop()
	if now := a.orders.Load(); now != made {
		t.Errorf("%d orders after a restart, %d before", now, made)
	}

	o.Dir, o.Directory = t.TempDir(), "" // the server's own authority
	o.Feed = newFeed(hangar.CertificateSet{Custom: []hangar.CustomCertificate{custom(t, "*.example.com")}})
	c, _ = run(t, o)
	served(t, c, "x.example.com")
	if leaf := served(t, c, "api.example.com"); !strings.HasPrefix(leaf.Issuer.CommonName, "hangar local CA") {
		t.Errorf("without ACME it is issued by %s", leaf.Issuer)
	}
}

func TestRenewed(t *testing.T) {
	a := startAuthority(t, 30*time.Second)
	c, _ := run(t, certs.Options{Directory: a.url, Roots: a.roots, RenewalRatio: 0.93, Feed: newFeed(wants("www.example.com"))})
	a.edge(t, c)
	first := served(t, c, "www.example.com")
	eventually(t, "another certificate", func() bool {
		now := served(t, c, "www.example.com")
		return now.SerialNumber.Cmp(first.SerialNumber) != 0 && now.NotAfter.After(first.NotAfter)
	})
	if time.Now().After(first.NotAfter) {
		t.Error("it was renewed too late")
	}
}

// TestRestart: issued and uploaded certificates are served, and renewed, without the feed; and
// served without the ACME server.
func TestRestart(t *testing.T) {
	a := startAuthority(t, time.Hour)
	dir := t.TempDir()
	o := certs.Options{Dir: dir, Directory: a.url, Roots: a.roots}
	o.Feed = newFeed(hangar.CertificateSet{ACME: wants("www.example.com").ACME, Custom: []hangar.CustomCertificate{custom(t, "*.up.example.com")}})
	c, stop := run(t, o)
	a.edge(t, c)
	serial := served(t, c, "www.example.com").SerialNumber
	served(t, c, "a.up.example.com")
	stop()

	a.stopped.Store(true)
	o.Feed = &feed{broken: true}
	for _, ratio := range []float64{0.3, 0.9999} { // the second renews at once, and fails
		o.RenewalRatio = ratio
		c, stop = run(t, o)
		for _, name := range []string{"www.example.com", "a.up.example.com"} {
			if _, err := c.Get(hello(name), false); err != nil {
				t.Errorf("right after a start: %v", err)
			}
		}
		stop()
	}
	a.stopped.Store(false)
	c, _ = run(t, o)
	eventually(t, "renewed without the feed", func() bool {
		return served(t, c, "www.example.com").SerialNumber.Cmp(serial) != 0 || a.orders.Load() > 1
	})
}

// TestServerAway: the ACME server is not there at the start, and comes back.
func TestServerAway(t *testing.T) {
	a := startAuthority(t, time.Hour)
	a.stopped.Store(true)
	c, _ := run(t, certs.Options{Directory: a.url, Roots: a.roots, Feed: newFeed(wants("www.example.com"))})
	a.edge(t, c)
	eventually(t, "it says so", func() bool { return len(c.CertificateState("www.example.com").Errors) > 1 })
	s := c.CertificateState("www.example.com")
	if s.Errors[0].Code != "internal" || s.Issued[0].Status != hangar.CertificatePending || s.Errors[0].Timestamp.IsZero() {
		t.Errorf("the state is %+v", s)
	}
	a.stopped.Store(false)
	served(t, c, "www.example.com")
	eventually(t, "errors are forgotten", func() bool { return len(c.CertificateState("www.example.com").Errors) == 0 })
}

func TestRefused(t *testing.T) {
	a := startAuthority(t, time.Hour)
	slow := pace()
	slow.Refused, slow.Most = time.Hour, time.Hour
	names := []hangar.Hostname{"a.nowhere.example.com", acmetest.Blocked, "unanswered.example.com"}
	c, _ := run(t, certs.Options{Directory: a.url, Roots: a.roots, Pace: slow, Challenges: []string{"http-01"}, Feed: newFeed(wants(names...))})
	// The challenges are not answered.
	for name, code := range map[hangar.Hostname]string{names[0]: "connection", names[1]: "rejectedIdentifier", names[2]: "connection"} {
		eventually(t, "the error of "+string(name), func() bool { return len(c.CertificateState(name).Errors) > 0 })
		e := c.CertificateState(name).Errors[0]
		if e.Code != code || e.Message == "" || e.Remediation == "" {
			t.Errorf("%s: %+v, want code %s", name, e, code)
		}
		if _, err := c.Get(hello(string(name)), false); codeOf(err) != hangar.EdgeNoCertificate {
			t.Errorf("%s: %v", name, err)
		}
	}
	a.edge(t, c)
	eventually(t, "it is issued after a retry", func() bool {
		c.RetryCertificate(names[2])
		_, err := c.Get(hello(string(names[2])), false)
		return err == nil
	})
}

// TestRateLimited: no order is sent before the limit has passed, not even after a restart or on
// request.
func TestRateLimited(t *testing.T) {
	a := startAuthority(t, time.Hour)
	limit := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1800")
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Replay-Nonce", "x")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many certificates already issued"}`)
	})
	a.refuse.Store(&limit)
	dir := t.TempDir()
	o := certs.Options{Dir: dir, Directory: a.url, Roots: a.roots, Feed: newFeed(wants("www.example.com"))}
	c, stop := run(t, o)
	eventually(t, "it is limited", func() bool { return !c.CertificateState("www.example.com").RateLimitedUntil.IsZero() })
	s := c.CertificateState("www.example.com")
	if left := time.Until(s.RateLimitedUntil); left < 29*time.Minute || left > 30*time.Minute || s.Errors[0].Code != "rateLimited" {
		t.Errorf("limited for %s: %+v", left, s)
	}
	asked := a.orders.Load()
	c.RetryCertificate("www.example.com")
	stop()
	c, stop = run(t, o)
	if s := c.CertificateState("www.example.com"); s.RateLimitedUntil.IsZero() || len(s.Errors) == 0 {
		t.Errorf("after a restart: %+v", s)
	}
	c.RetryCertificate("www.example.com")
	stop()
	if n := a.orders.Load(); n != asked {
		t.Errorf("%d orders more", n-asked)
	}
}

// TestDemand: Apps' own names get a certificate when they are first asked for.
func TestDemand(t *testing.T) {
	a := startAuthority(t, time.Hour)
	known := func(name hangar.Hostname) (hangar.OrgID, bool) { return "org", strings.HasPrefix(string(name), "app") }
	o := certs.Options{Dir: t.TempDir(), Directory: a.url, Roots: a.roots, Owner: known, DemandWait: patience}
	c, stop := run(t, o)
	a.edge(t, c)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			name := fmt.Sprintf("app%d.apps.example.com", n%2)
			pair, err := c.Get(hello(name), false)
			if err != nil || pair.Leaf.VerifyHostname(name) != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	all.Wait()
	if n := a.orders.Load(); n != 2 {
		t.Errorf("%d orders for two names", n)
	}
	for _, name := range []string{"other.apps.example.com", "x.app.apps.example.com", "apps.example.com"} {
		if _, err := c.Get(hello(name), false); codeOf(err) != hangar.EdgeNoCertificate {
			t.Errorf("%s: %v", name, err)
		}
	}
	stop()
	a.stopped.Store(true)
	o.DemandWait = 20 * time.Millisecond
	c, _ = run(t, o)
	if _, err := c.Get(hello("app1.apps.example.com"), false); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if _, err := c.Get(hello("app2.apps.example.com"), false); codeOf(err) != hangar.EdgeNoCertificate {
		t.Errorf("without the ACME server: %v", err)
	}
	if _, err := c.Get(hello("app2.apps.example.com"), true); err != nil {
		t.Errorf("self-signed: %v", err)
	}
}

// TestUploadIsWrittenLater: an uploaded certificate that the disk refused is written once the disk accepts it,
// without another change of the feed.
func TestUploadIsWrittenLater(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "custom", "www.one.com.pem")
	if err := os.MkdirAll(file, 0o700); err != nil { // in the way of the file
		t.Fatal(err)
	}
	f := newFeed(hangar.CertificateSet{Custom: []hangar.CustomCertificate{custom(t, "www.one.com")}})
	c, _ := run(t, certs.Options{Dir: dir, Feed: f})
	served(t, c, "www.one.com")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the certificate is on the disk", func() bool {
		at, err := os.Stat(file)
		return err == nil && at.Mode().IsRegular()
	})
}

func TestPrecedence(t *testing.T) {
	a := startAuthority(t, time.Hour)
	f := newFeed(wants("www.example.com"))
	c, _ := run(t, certs.Options{Directory: a.url, Roots: a.roots, Feed: f})
	a.edge(t, c)
	issuer := func(name string) string {
		pair, err := c.Get(hello(name), false)
		if err != nil {
			return string(codeOf(err))
		}
		return strings.Join(append(slices.Clone(pair.Leaf.DNSNames), pair.Leaf.Issuer.CommonName), " ")
	}
	served(t, c, "www.example.com")
	issued := issuer("www.example.com")
	set := wants("www.example.com")
	set.Custom = append(set.Custom, custom(t, "*.example.com"))
	f.put(set)
	eventually(t, "the wildcard serves what it covers", func() bool { return issuer("a.example.com") == "*.example.com " })
	for name, want := range map[string]string{
		"www.example.com": issued, "a.b.example.com": string(hangar.EdgeNoCertificate), "example.com": string(hangar.EdgeNoCertificate),
		"WWW.Example.COM.": issued, "*.example.com": string(hangar.EdgeNoName),
	} {
		if got := issuer(name); got != want {
			t.Errorf("%s is served with %q, want %q", name, got, want)
		}
	}
	set.Custom = append(set.Custom, custom(t, "www.example.com"))
	f.put(set)
	eventually(t, "the uploaded one goes before", func() bool { return issuer("www.example.com") == "www.example.com " })
	s := c.CertificateState("www.example.com")
	if len(s.Issued) != 2 || s.Issued[0].Kind != hangar.CertificateCustom {
		t.Errorf("the state is %+v", s)
	}
	f.put(hangar.CertificateSet{})
	eventually(t, "what was removed is not served", func() bool {
		return issuer("www.example.com") == string(hangar.EdgeNoCertificate) && issuer("a.example.com") == string(hangar.EdgeNoCertificate)
	})
	f.put(wants("www.example.com"))
	orders := a.orders.Load()
	eventually(t, "what was issued is still good", func() bool { return issuer("www.example.com") == issued })
	if a.orders.Load() != orders {
		t.Error("it was asked for again")
	}
}

func TestOwnAuthority(t *testing.T) {
	dir := t.TempDir()
	o := certs.Options{Dir: dir, Domain: "hangar.localhost", Owner: func(name hangar.Hostname) (hangar.OrgID, bool) { return "org", name == "web.hangar.localhost" }}
	c := open(t, o)
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(filepath.Join(dir, certs.AuthorityFile))
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		t.Fatalf("no authority: %v", err)
	}
	for _, tt := range []struct {
		name       string
		selfSigned bool
		code       hangar.EdgeCode
	}{
		{"web.hangar.localhost", false, ""},
		{"WEB.hangar.localhost", false, ""},
		{"other.hangar.localhost", false, hangar.EdgeNoCertificate},
		{"www.example.com", false, hangar.EdgeNoCertificate},
		{"www.example.com", true, ""},
		{"", false, hangar.EdgeNoName},
		{"", true, hangar.EdgeNoName}, // there is no connection whose address could be named
		{"a b", true, hangar.EdgeNoName},
	} {
		pair, err := c.Get(hello(tt.name), tt.selfSigned)
		if codeOf(err) != tt.code || (err == nil) != (tt.code == "") {
			t.Errorf("%q: %v, want %q", tt.name, err, tt.code)
			continue
		}
		if err != nil {
			continue
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: strings.ToLower(tt.name)}); err != nil {
			t.Errorf("%q: %v", tt.name, err)
		}
		if again, _ := c.Get(hello(tt.name), tt.selfSigned); again != pair {
			t.Errorf("%q has another certificate each time", tt.name)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "ca.key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	open(t, o)
	if again, _ := os.ReadFile(filepath.Join(dir, certs.AuthorityFile)); string(again) != string(ca) {
		t.Error("a restart has made another authority")
	}
}

// TestExpired: an expired certificate is refused, also on the disk.
func TestExpired(t *testing.T) {
	chain, key := acmetest.SelfSigned(t, "www.example.com", time.Now().Add(-time.Hour), time.Now().Add(-time.Minute))
	f := newFeed(hangar.CertificateSet{Custom: []hangar.CustomCertificate{{Hostname: "www.example.com", Fullchain: chain, PrivateKey: key}, {Hostname: "bad.example.com", Fullchain: []byte("x"), PrivateKey: key}}})
	dir := t.TempDir()
	c, stop := run(t, certs.Options{Dir: dir, Feed: f})
	expired := func(c *certs.Certs) bool {
		_, err := c.Get(hello("www.example.com"), false)
		return codeOf(err) == hangar.EdgeBadCertificate
	}
	eventually(t, "it is refused as expired", func() bool { return expired(c) })
	if s := c.CertificateState("www.example.com"); s.Issued[0].Status != hangar.CertificateExpired {
		t.Errorf("the state is %+v", s)
	}
	stop()
	if err := os.WriteFile(filepath.Join(dir, "custom", "damaged.example.com.pem"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c = open(t, certs.Options{Dir: dir}); !expired(c) {
		t.Error("after a restart it is not")
	}
}

func BenchmarkGet(b *testing.B) {
	chain, key := selfSigned(b, "www.example.com")
	dir := b.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "custom"), 0o700); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "custom", "www.example.com.pem"), append(chain, key...), 0o600); err != nil {
		b.Fatal(err)
	}
	c := certs.New(certs.Options{Dir: dir, Domain: "hangar.localhost", Owner: func(hangar.Hostname) (hangar.OrgID, bool) { return "org", true }})
	if err := c.Open(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"www.example.com", "web.hangar.localhost"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				h := hello(name)
				for pb.Next() {
					if _, err := c.Get(h, false); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

package platform_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/hostnames"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/state/statetest"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/edge/certs"
	"github.com/hangar-platform/hangar/internal/acmetest"
	"github.com/hangar-platform/hangar/internal/freeport"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// issuing is a cluster state, an ACME server, and edges on both. The ACME server validates all names at one
// edge.
type issuing struct {
	t         *testing.T
	store     statetest.Store
	keys      *keyset.Keyset
	directory string
	roots     *x509.CertPool
	locked    time.Duration               // for how long an edge that is dead keeps its locks
	orders    atomic.Int64                // that were placed
	at        atomic.Pointer[certs.Certs] // where names are validated
	resolved  atomic.Pointer[func()]      // is called before each validation
}

func newIssuing(t *testing.T) *issuing {
	t.Helper()
	store, err := state.OpenEtcd(t.Context(), state.EtcdConfig{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	i := &issuing{t: t, store: store, roots: x509.NewCertPool(), locked: time.Minute}
	keys, err := keyset.Create(filepath.Join(t.TempDir(), keyset.File))
	if err != nil {
		t.Fatal(err)
	}
	i.keys = keys
	var ports [2]int
	for n := range ports {
		if ports[n], err = freeport.Port(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	server := acmetest.Start(t, acmetest.Options{HTTPPort: ports[0], TLSPort: ports[1], Life: time.Hour, Resolve: func(string) netip.Addr {
		if f := i.resolved.Load(); f != nil {
			(*f)()
		}
		return netip.MustParseAddr("127.0.0.1")
	}})
	i.count(server)
	i.listen(ports)
	return i
}

// count stands before the ACME server and counts orders.
func (i *issuing) count(server *acmetest.Server) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: server.Own}}
	proxy := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := r.Clone(r.Context())
		out.RequestURI, out.URL.Scheme, out.URL.Host = "", "https", server.Address
		resp, err := transport.RoundTrip(out)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		if r.URL.Path == "/order-plz" && resp.StatusCode == http.StatusCreated {
			i.orders.Add(1)
		}
		maps.Copy(w.Header(), resp.Header)
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	i.t.Cleanup(func() { proxy.Close(); transport.CloseIdleConnections() })
	i.directory = proxy.URL + "/dir"
	i.roots.AddCert(proxy.Certificate())
}

// listen has the edge at which names are validated answer.
func (i *issuing) listen(ports [2]int) {
	var listeners [2]net.Listener
	for n, port := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			i.t.Fatal(err)
		}
		listeners[n] = l
	}
	plain := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !i.at.Load().Challenge(w, r) {
			http.NotFound(w, r)
		}
	})}
	secure := &http.Server{
		ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){"acme-tls/1": func(*http.Server, *tls.Conn, http.Handler) {}},
		TLSConfig: &tls.Config{NextProtos: []string{"acme-tls/1"}, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return i.at.Load().Get(hello, false)
		}},
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = plain.Serve(listeners[0]) })
	serving.Go(func() { _ = secure.ServeTLS(listeners[1], "", "") })
	i.t.Cleanup(func() { plain.Close(); secure.Close(); serving.Wait() })
}

// wanted is a hangar.CertificateFeed that never changes.
type wanted []hangar.Hostname

// WatchCertificates implements hangar.CertificateFeed.
func (w wanted) WatchCertificates(ctx context.Context) iter.Seq2[hangar.CertificateSet, error] {
	return func(yield func(hangar.CertificateSet, error) bool) {
		var set hangar.CertificateSet
		for _, name := range w {
			set.ACME = append(set.ACME, hangar.WantedCertificate{Hostname: name, Org: "org"})
		}
		if yield(set, nil) {
			<-ctx.Done()
		}
	}
}

// lateStore is a CertificateStore whose locks are to be had only once a test lets it. It counts what is read of
// notes.
type lateStore struct {
	hangar.CertificateStore
	locks chan struct{} // closed when locks are to be had

	reading, most, reads atomic.Int64 // notes that are read now, at most at once, and ever
}

// SharedNote implements hangar.CertificateStore.
func (s *lateStore) SharedNote(ctx context.Context, key string) (json.RawMessage, error) {
	s.reads.Add(1)
	if now := s.reading.Add(1); now > s.most.Load() {
		s.most.Store(now)
	}
	defer s.reading.Add(-1)
	return s.CertificateStore.SharedNote(ctx, key)
}

// LockShared implements hangar.CertificateStore.
func (s *lateStore) LockShared(ctx context.Context, key string) (hangar.CertificateLock, error) {
	select {
	case <-s.locks:
		return s.CertificateStore.LockShared(ctx, key)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// issuingEdge is one edge.
type issuingEdge struct {
	*certs.Certs
	state *statetest.Away
	store *lateStore
	locks chan struct{} // closed: it may order
	stop  func()
}

// edge runs an edge. change may be nil.
func (i *issuing) edge(host hangar.HostID, change func(*certs.Options)) *issuingEdge {
	i.t.Helper()
	log := slog.New(slog.NewTextHandler(i.t.Output(), nil)).With("edge", host)
	e := &issuingEdge{state: &statetest.Away{Store: i.store}, locks: make(chan struct{})}
	mirror := control.NewMirror(e.state, log)
	if err := mirror.Open(i.t.Context()); err != nil {
		i.t.Fatal(err)
	}
	e.store = &lateStore{CertificateStore: hostnames.NewOrders(mirror, vault.New(mirror, i.keys, log), i.locked, log), locks: e.locks}
	many := certs.Limit{N: 1000, Per: time.Second}
	o := certs.Options{
		Dir: i.t.TempDir(), Domain: "apps.example.com", Host: host, Directory: i.directory, Roots: i.roots, Log: log,
		Shared: e.store,
		Pace:   certs.Pace{Away: 50 * time.Millisecond, Refused: time.Hour, Most: time.Hour, Limited: time.Hour, Again: time.Hour},
		Limits: certs.Limits{Account: many, Org: many, Domain: many, Own: many, Name: many},
	}
	if change != nil {
		change(&o)
	}
	e.Certs = certs.New(o)
	if err := e.Open(i.t.Context()); err != nil {
		i.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = e.Run(ctx) // it ends with ctx
	}()
	e.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		if err := errors.Join(e.Close(), mirror.Close()); err != nil {
			i.t.Error(err)
		}
	})
	i.t.Cleanup(e.stop)
	return e
}

// kill ends an edge so that it does nothing more in the state, as a server without power.
func (e *issuingEdge) kill() {
	e.state.Lost.Store(true)
	e.stop()
}

// serves returns the certificate that an edge serves for a name, once it has one.
func (i *issuing) serves(e *issuingEdge, name hangar.Hostname) *x509.Certificate {
	i.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		pair, err := e.Get(&tls.ClientHelloInfo{ServerName: string(name)}, false)
		if err == nil {
			return pair.Leaf
		}
		time.Sleep(10 * time.Millisecond) // no event reports a certificate
	}
	i.t.Fatalf("there is no certificate of %s: %+v", name, e.CertificateState(name))
	return nil
}

// TestCertificatesAreOrderedOnce: one edge orders, the ACME server validates at another, and both serve the
// same certificate with one account.
func TestCertificatesAreOrderedOnce(t *testing.T) {
	for _, kind := range []string{"http-01", "tls-alpn-01"} {
		t.Run(kind, func(t *testing.T) {
			i := newIssuing(t)
			names := wanted{"one.example.org", "two.example.org"}
			use := func(o *certs.Options) { o.Feed, o.Challenges = names, []string{kind} }
			a, b := i.edge("aaaaaaaa", use), i.edge("bbbbbbbb", use)
			i.at.Store(b.Certs)
			close(a.locks)
			for _, name := range names {
				if first, second := i.serves(a, name), i.serves(b, name); !first.Equal(second) {
					t.Errorf("%s has two certificates", name)
				}
			}
			close(b.locks)
			c := i.edge("cccccccc", use) // it joins later
			close(c.locks)
			for _, name := range names {
				if !i.serves(c, name).Equal(i.serves(a, name)) {
					t.Errorf("%s has another certificate at an edge that has joined later", name)
				}
			}
			if n := i.orders.Load(); n != int64(len(names)) {
				t.Errorf("%d orders for %d names", n, len(names))
			}
			items, _, err := state.All(t.Context(), i.store, state.ACMEPrefix, true)
			if err != nil {
				t.Fatal(err)
			}
			if len(items) != len(names)+1 {
				t.Errorf("%d records of %d certificates and one account", len(items), len(names))
			}
		})
	}
}

// TestChallengesAreReadSparingly: requests below the path of challenges, which anyone can send, read the state
// only while a name is being ordered, and then one at a time.
func TestChallengesAreReadSparingly(t *testing.T) {
	i := newIssuing(t)
	const name = "www.example.org"
	use := func(o *certs.Options) { o.Feed = wanted{name} }
	a, b := i.edge("aaaaaaaa", use), i.edge("bbbbbbbb", use)
	i.at.Store(b.Certs)
	flood := func() {
		var asking sync.WaitGroup
		for range 100 {
			asking.Go(func() {
				r := httptest.NewRequest(http.MethodGet, "http://"+name+"/.well-known/acme-challenge/guess", nil)
				if b.Challenge(httptest.NewRecorder(), r) {
					t.Error("a guess was answered")
				}
			})
		}
		asking.Wait()
	}
	flood()
	if n := b.store.reads.Load(); n != 0 {
		t.Errorf("without an order in flight, requests read the state %d times", n)
	}
	flooded := make(chan struct{})
	ordering := sync.OnceFunc(func() {
		defer close(flooded)
		for tries := 0; b.store.reads.Load() == 0 && tries < 100; tries++ {
			time.Sleep(10 * time.Millisecond) // no event reports that the other edge knows of the order
			flood()
		}
	})
	i.resolved.Store(&ordering)
	close(a.locks)
	<-flooded
	i.serves(b, name)
	if reads, most := b.store.reads.Load(), b.store.most.Load(); reads == 0 || most != 1 {
		t.Errorf("%d reads, %d at once", reads, most)
	}
}

// TestOrderOfADeadEdge: an edge is killed while the ACME server validates its order. Another one finishes,
// and the dead one changes nothing when it is back.
func TestOrderOfADeadEdge(t *testing.T) {
	i := newIssuing(t)
	i.locked = 5 * time.Second
	const name = "www.example.org"
	use := func(o *certs.Options) { o.Feed = wanted{name} }
	a, b := i.edge("aaaaaaaa", use), i.edge("bbbbbbbb", use)
	i.at.Store(b.Certs)
	killed := make(chan struct{})
	kill := sync.OnceFunc(func() {
		a.kill()
		close(b.locks)
		close(killed)
	})
	i.resolved.Store(&kill)
	close(a.locks)
	<-killed
	issued := i.serves(b, name)
	if n := i.orders.Load(); n != 2 {
		t.Errorf("%d orders, want that of the dead edge and one more", n)
	}
	if _, err := a.Get(&tls.ClientHelloInfo{ServerName: name}, false); err == nil {
		t.Error("the dead edge has a certificate: it was not killed in the middle")
	}
	again := i.edge("aaaaaaaa", use)
	close(again.locks)
	if !i.serves(again, name).Equal(issued) || i.orders.Load() != 2 {
		t.Errorf("after its return there are %d orders", i.orders.Load())
	}
}

// TestEdgesShareFailures: what the ACME server has refused one edge, another does not ask for; and orders of
// one count against the limits of all.
func TestEdgesShareFailures(t *testing.T) {
	i := newIssuing(t)
	few := certs.Limit{N: 2, Per: time.Hour}
	limit := func(o *certs.Options) { o.Limits.Org = few }
	refused := wanted{"a." + acmetest.Blocked, "b." + acmetest.Blocked}
	a := i.edge("aaaaaaaa", func(o *certs.Options) { limit(o); o.Feed = refused })
	b := i.edge("bbbbbbbb", func(o *certs.Options) { limit(o); o.Feed = append(slices.Clone(refused), "c.example.org") })
	i.at.Store(b.Certs)
	close(a.locks)
	for _, name := range refused {
		for len(a.CertificateState(name).Errors) == 0 {
			time.Sleep(10 * time.Millisecond) // no event reports it
		}
		// Before it knows of the failure, the second edge may have found the limit used up.
		failed := a.CertificateState(name).Errors[0]
		for !slices.Contains(b.CertificateState(name).Errors, failed) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	close(b.locks)
	for b.CertificateState("c.example.org").RateLimitedUntil.IsZero() {
		if _, err := b.Get(&tls.ClientHelloInfo{ServerName: "c.example.org"}, false); err == nil {
			t.Fatal("the second edge ordered although the organization has used its orders up at the first")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestCertificatesOfBeforeAreShared: an edge shares what it had issued before there were others.
func TestCertificatesOfBeforeAreShared(t *testing.T) {
	i := newIssuing(t)
	const name = "www.example.org"
	dir := t.TempDir()
	use := func(o *certs.Options) { o.Feed, o.Dir = wanted{name}, dir }
	alone := i.edge("aaaaaaaa", func(o *certs.Options) { use(o); o.Shared = nil })
	i.at.Store(alone.Certs)
	issued := i.serves(alone, name)
	alone.stop()
	a := i.edge("aaaaaaaa", use)
	close(a.locks)
	b := i.edge("bbbbbbbb", func(o *certs.Options) { o.Feed = wanted{name} })
	if !i.serves(b, name).Equal(issued) || i.orders.Load() != 1 {
		t.Errorf("the second edge has another certificate, after %d orders", i.orders.Load())
	}
	// Without the state, each serves what it has.
	b.state.Lost.Store(true)
	if !i.serves(b, name).Equal(issued) {
		t.Error("without the state there is another certificate")
	}
}

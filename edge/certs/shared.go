package certs

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"golang.org/x/sync/singleflight"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// pruneEvery is the time between two runs of pruneShared.
const pruneEvery = 12 * time.Hour

// shared is what this edge shares with the others about one ACME server. The keys, below the name of the
// server:
//
//	account             the account, and its lock
//	issued/<name>       a certificate with its key
//	attempts/<name>     why there is none
//	orders/<name>       the lock of a name, with a note
type shared struct {
	store hangar.CertificateStore // nil: there are no other edges
	root  string
	host  hangar.HostID

	reading singleflight.Group // of notes, by name
	listed  chan struct{}      // closed once known has what the other edges had shared before

	mu    sync.Mutex // guards known
	known map[hangar.Hostname]sharedState
}

// sharedState is what this edge knows of the shared values of a name.
type sharedState struct {
	sum      [sha256.Size]byte // of the certificate; zero: there is none
	notAfter time.Time         // of the certificate
	failed   time.Time         // of the last attempt; zero: there is none
	ordered  bool              // an edge holds the lock of the name
}

// sharedCertificate is a certificate that was issued, for all edges.
type sharedCertificate struct {
	Chain string      `json:"chain"` // PEM
	Key   string      `json:"private_key"`
	Order sharedOrder `json:"order"`
}

// sharedOrder is an order with what every edge needs to count it.
type sharedOrder struct {
	Host    hangar.HostID `json:"host"`
	Counted bool          `json:"counted,omitempty"`
	Org     hangar.OrgID  `json:"org_id,omitempty"`
	Own     bool          `json:"own,omitempty"`
	Renewal bool          `json:"renewal,omitempty"`
}

func (o sharedOrder) request(name hangar.Hostname) orderRequest {
	return orderRequest{name: name, org: o.Org, own: o.Own, renewal: o.Renewal}
}

// note is what the holder of a name's lock publishes to the other edges.
type note struct {
	Order     sharedOrder `json:"order"`
	Challenge challenge   `json:"challenge,omitzero"`
}

// challenge is the answer that the ACME server expects.
type challenge struct {
	Token         string `json:"token,omitempty"`
	Authorization string `json:"key_authorization,omitempty"`
}

const (
	issuedKind   = "issued"
	attemptsKind = "attempts"
	ordersKind   = "orders"
)

func newShared(store hangar.CertificateStore, root string, host hangar.HostID) *shared {
	return &shared{store: store, root: root, host: host, listed: make(chan struct{}), known: map[hangar.Hostname]sharedState{}}
}

// used reports whether values are shared with other edges.
func (s *shared) used() bool { return s != nil && s.store != nil }

func (s *shared) key(kind string, name hangar.Hostname) string {
	return path.Join(s.root, kind, string(name))
}

// named returns the kind of a key, and the name in it.
func (s *shared) named(key string) (kind string, name hangar.Hostname) {
	rest, ours := strings.CutPrefix(key, s.root+"/")
	if !ours {
		return "", ""
	}
	kind, text, _ := strings.Cut(rest, "/")
	return kind, hangar.Hostname(text)
}

func (s *shared) lock(ctx context.Context, name hangar.Hostname) (hangar.CertificateLock, error) {
	return s.store.LockShared(ctx, s.key(ordersKind, name))
}

// has returns the digest of the shared certificate of a name, as this edge knows it.
func (s *shared) has(name hangar.Hostname) [sha256.Size]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[name].sum
}

// ordered reports whether an edge is ordering a certificate for a name, as this edge knows it. It waits
// for the first listing.
func (s *shared) ordered(ctx context.Context, name hangar.Hostname) bool {
	select {
	case <-s.listed:
	case <-ctx.Done():
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[name].ordered
}

func (s *shared) change(name hangar.Hostname, change func(*sharedState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.known[name]
	change(&now)
	if now == (sharedState{}) {
		delete(s.known, name)
		return
	}
	s.known[name] = now
}

func (s *shared) note(ctx context.Context, name hangar.Hostname) (n note, err error) {
	b, err := s.store.SharedNote(ctx, s.key(ordersKind, name))
	if err == nil {
		err = json.Unmarshal(b, &n)
	}
	return n, err
}

// load reads a value into v; false: there is none.
func (s *shared) load(ctx context.Context, key string, v any) (bool, error) {
	b, err := s.store.LoadShared(ctx, key)
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	return err == nil, err
}

func (s *shared) give(lock hangar.CertificateLock, key string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return lock.StoreShared(lock.Context(), key, b)
}

// order returns an order of this edge for the other edges to count.
func (s *shared) order(req orderRequest, counted bool) sharedOrder {
	return sharedOrder{Host: s.host, Counted: counted, Org: req.org, Own: req.own, Renewal: req.renewal}
}

// place publishes that this edge places an order.
func (s *shared) place(lock hangar.CertificateLock, req orderRequest, counted bool) (note, error) {
	n := note{Order: s.order(req, counted)}
	return n, n.write(lock)
}

func (n note) write(lock hangar.CertificateLock) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return lock.Note(lock.Context(), b)
}

func (s *shared) giveAttempt(lock hangar.CertificateLock, name hangar.Hostname, a *attempt) error {
	return s.give(lock, s.key(attemptsKind, name), a)
}

// placedKey is the key of a context that holds the current *placedOrder.
type placedKey struct{}

// placedOrder is an order in flight that is published to the other edges.
type placedOrder struct {
	lock hangar.CertificateLock
	note note
}

// show publishes a challenge, because the ACME server may validate at any edge.
func show(ctx context.Context, ch acme.Challenge) error {
	placed, ok := ctx.Value(placedKey{}).(*placedOrder)
	if !ok {
		return nil
	}
	shown := placed.note
	shown.Challenge = challenge{Token: ch.Token, Authorization: ch.KeyAuthorization}
	return shown.write(placed.lock)
}

// share orders a certificate unless another edge has done so or is doing it.
func (c *Certs) share(ctx context.Context, req orderRequest, current *entry) time.Time {
	if !c.platform(req.name) { // names that have to wait do not load the state
		if held := c.budget.room(req, time.Now()); held != nil {
			return held.until
		}
	}
	at, done, err := c.catchUp(ctx, req)
	if err != nil {
		return c.again(ctx, req.name, err)
	}
	if done {
		return at
	}
	ctx, cancel := context.WithTimeout(ctx, 2*orderTimeout) // an order of another edge, and this one
	defer cancel()
	lock, err := c.shared.lock(ctx, req.name)
	if err != nil {
		return c.again(ctx, req.name, err)
	}
	defer lock.Release()
	if at, done, err = c.catchUp(lock.Context(), req); err != nil {
		return c.again(ctx, req.name, err)
	}
	if done {
		return at
	}
	return c.order(lock.Context(), lock, req, current)
}

// catchUp adopts a certificate that another edge has ordered, or its failed attempt.
func (c *Certs) catchUp(ctx context.Context, req orderRequest) (at time.Time, done bool, err error) {
	var issued sharedCertificate
	there, err := c.shared.load(ctx, c.shared.key(issuedKind, req.name), &issued)
	if err != nil {
		return at, false, err
	}
	if there {
		e, err := c.adopt(ctx, req.name, &issued)
		if err != nil {
			return at, false, err
		}
		if c.fresh(e, time.Now()) {
			c.forget(req.name)
			return c.due(e), true, nil
		}
	}
	var failed attempt
	there, err = c.shared.load(ctx, c.shared.key(attemptsKind, req.name), &failed)
	if err != nil || !there || !c.learn(req, &failed) {
		return at, false, err
	}
	return failed.Next, true, nil
}

// learn adopts a failed attempt of another edge; false: it is not newer, or no longer matters.
func (c *Certs) learn(req orderRequest, failed *attempt) bool {
	now := time.Now()
	if failed.Org != req.org || failed.future(now) || !failed.Next.After(now) {
		return false
	}
	if last := c.attempts.get(req.name); last != nil && !failed.At.After(last.At) {
		return false
	}
	if err := c.attempts.put(req.name, failed); err != nil {
		c.log.Error("attempt is not on the disk", keyName, string(req.name), keyError, err)
	}
	c.budget.drop(req.name) // the order of the attempt may have taken what this edge waits for
	return true
}

// adoptTimeout bounds the writing of the files of a certificate.
const adoptTimeout = time.Minute

// adopt installs a shared certificate for handshakes and on the disk, unless this edge has one that is valid for
// longer. It returns the certificate that is served afterwards.
func (c *Certs) adopt(ctx context.Context, name hangar.Hostname, issued *sharedCertificate) (*entry, error) {
	chain, private := []byte(issued.Chain), []byte(issued.Key)
	sum := sumOf(chain, private)
	var unkept error
	defer func() { c.logUnkept(name, unkept) }() // without the lock
	c.adopting.Lock()
	defer c.adopting.Unlock()
	current := c.table.Load().issued[name]
	if current != nil && current.sum == sum {
		c.shared.change(name, func(s *sharedState) { s.sum, s.notAfter = sum, current.notAfter })
		return current, nil
	}
	e, err := newEntry(chain, private)
	if err != nil {
		return nil, fmt.Errorf("read the shared certificate of %s: %w", name, err)
	}
	c.shared.change(name, func(s *sharedState) { s.sum, s.notAfter = sum, e.notAfter })
	if current != nil && !e.notAfter.After(current.notAfter) {
		return current, nil
	}
	c.install(name, e)
	unkept = c.keep(ctx, name, e, issued)
	return e, nil
}

// logUnkept logs why a certificate is not on the disk. Until it is, the next start serves the one before, until the
// state is read.
func (c *Certs) logUnkept(name hangar.Hostname, err error) {
	if err != nil {
		c.log.Error("shared certificate is not on the disk", keyName, string(name), keyError, err)
	}
}

// keepAgain writes an adopted certificate to the disk, unless it is there or another one was adopted meanwhile.
func (c *Certs) keepAgain(ctx context.Context, name hangar.Hostname, e *entry) {
	var unkept error
	defer func() { c.logUnkept(name, unkept) }() // without the lock
	c.adopting.Lock()
	defer c.adopting.Unlock()
	if issued := e.unkept.Load(); issued != nil && c.table.Load().issued[name] == e {
		unkept = c.keep(ctx, name, e, issued)
	}
}

// keep writes a certificate to the disk, as certmagic does. c.adopting is held.
func (c *Certs) keep(ctx context.Context, name hangar.Hostname, e *entry, issued *sharedCertificate) error {
	e.unkept.Store(issued)
	meta, err := json.Marshal(certmagic.CertificateResource{SANs: []string{string(name)}})
	if err != nil {
		return err
	}
	ctx, cancel := finish.Within(ctx, adoptTimeout)
	defer cancel()
	storage, key, keys := c.issuer.storage, c.issuer.IssuerKey(), certmagic.StorageKeys
	if err := storage.Store(ctx, keys.SitePrivateKey(key, string(name)), []byte(issued.Key)); err != nil {
		return err
	}
	if err := storage.Store(ctx, keys.SiteCert(key, string(name)), []byte(issued.Chain)); err != nil {
		return err
	}
	if err := storage.Store(ctx, keys.SiteMeta(key, string(name)), meta); err != nil {
		return err
	}
	e.unkept.Store(nil)
	return nil
}

// giveIssued publishes a certificate of this edge.
func (c *Certs) giveIssued(lock hangar.CertificateLock, req orderRequest, e *entry) error {
	var given sharedCertificate
	if unkept := e.unkept.Load(); unkept != nil {
		given = *unkept
	} else {
		chain, private, err := c.readFiles(req.name)
		if err != nil {
			return err
		}
		if sumOf(chain, private) != e.sum {
			return fmt.Errorf("the files of %s are of another certificate", req.name)
		}
		given.Chain, given.Key = string(chain), string(private)
	}
	given.Order = c.shared.order(req, !c.platform(req.name))
	if err := c.shared.give(lock, c.shared.key(issuedKind, req.name), given); err != nil {
		return err
	}
	failed := false
	c.shared.change(req.name, func(s *sharedState) {
		s.sum, s.notAfter, failed = e.sum, e.notAfter, !s.failed.IsZero()
	})
	if failed {
		return lock.StoreShared(lock.Context(), c.shared.key(attemptsKind, req.name), nil)
	}
	return nil
}

// publish shares a certificate that was issued before this edge shared any, or while the state
// could not be reached.
func (c *Certs) publish(ctx context.Context, req orderRequest, current *entry) time.Time {
	at := c.install(req.name, current)
	lock, err := c.shared.lock(ctx, req.name)
	if err != nil {
		return c.again(ctx, req.name, err)
	}
	defer lock.Release()
	var issued sharedCertificate
	there, err := c.shared.load(lock.Context(), c.shared.key(issuedKind, req.name), &issued)
	if err != nil {
		return c.again(ctx, req.name, err)
	}
	if there {
		if e, err := c.adopt(lock.Context(), req.name, &issued); err == nil && e != current {
			return c.due(e)
		} else if err == nil && c.shared.has(req.name) == current.sum {
			return at
		}
	}
	if err := c.giveIssued(lock, req, current); err != nil {
		return c.again(ctx, req.name, err)
	}
	return at
}

// followShared applies the shared values of other edges until ctx ends.
func (c *Certs) followShared(ctx context.Context) {
	ready := sync.OnceFunc(func() { close(c.shared.listed) })
	_ = pause.Between(ctx, pause.Feeds, func(ctx context.Context) error {
		listed := map[string]bool{} // keys; nil once the existing values, which are not fresh, were yielded
		for batch, err := range c.shared.store.WatchShared(ctx) {
			if err != nil {
				return err
			}
			for _, v := range batch.Values {
				if listed != nil {
					listed[v.Key] = true
				}
				c.applyShared(ctx, v, listed == nil)
			}
			if batch.Listed && listed != nil {
				c.dropUnlisted(ctx, listed)
				listed = nil
				ready()
				c.publishAll()
			}
		}
		return nil
	}, func(err error) {
		c.log.WarnContext(ctx, "what other edges do cannot be followed", keyError, err)
	})
}

// dropUnlisted applies deletions that happened while the watch was down.
func (c *Certs) dropUnlisted(ctx context.Context, listed map[string]bool) {
	c.shared.mu.Lock()
	names := slices.Collect(maps.Keys(c.shared.known))
	c.shared.mu.Unlock()
	for _, name := range names {
		for _, kind := range []string{issuedKind, attemptsKind, ordersKind} {
			if key := c.shared.key(kind, name); !listed[key] {
				c.applyShared(ctx, hangar.SharedValue{Key: key, Note: kind == ordersKind}, false)
			}
		}
	}
}

// publishAll schedules the names whose certificate is not shared yet.
func (c *Certs) publishAll() {
	for name, e := range c.table.Load().issued {
		if c.shared.has(name) != e.sum {
			c.jobs.set(name, time.Now())
		}
	}
}

// orderable reports whether this edge may order a certificate for a name.
func (c *Certs) orderable(name hangar.Hostname) bool {
	if _, wanted := c.table.Load().wanted[name]; wanted {
		return true
	}
	_, known := c.options.Owner(name)
	return known && c.demandable(name)
}

// applyShared applies one shared value. fresh says that it was written just now.
func (c *Certs) applyShared(ctx context.Context, v hangar.SharedValue, fresh bool) {
	kind, name := c.shared.named(v.Key)
	var err error
	switch {
	case kind == ordersKind && v.Note:
		err = c.applyNote(name, v.Value)
	case kind == issuedKind:
		err = c.applyIssued(ctx, name, v.Value, fresh)
	case kind == attemptsKind:
		err = c.applyAttempt(name, v.Value)
	}
	if err != nil {
		c.log.Error("what another edge has shared is skipped", keyName, string(name), keyError, err)
	}
}

// applyNote notes that a name is being ordered. It counts an order of another edge once: the note is written again
// with each challenge.
func (c *Certs) applyNote(name hangar.Hostname, value json.RawMessage) error {
	c.shared.change(name, func(s *sharedState) { s.ordered = value != nil })
	if value == nil {
		return nil
	}
	var n note
	if err := json.Unmarshal(value, &n); err != nil {
		return err
	}
	if n.Order.Counted && n.Order.Host != c.options.Host && n.Challenge == (challenge{}) {
		c.budget.placed(n.Order.request(name), time.Now())
	}
	return nil
}

func (c *Certs) applyIssued(ctx context.Context, name hangar.Hostname, value json.RawMessage, fresh bool) error {
	if value == nil {
		c.shared.change(name, func(s *sharedState) { s.sum, s.notAfter = [sha256.Size]byte{}, time.Time{} })
		return nil
	}
	var issued sharedCertificate
	if err := json.Unmarshal(value, &issued); err != nil {
		return err
	}
	if fresh && issued.Order.Counted && issued.Order.Host != c.options.Host {
		c.budget.issued(issued.Order.request(name), time.Now())
	}
	if !c.orderable(name) { // catchUp reads it when the name is wanted
		e, err := newEntry([]byte(issued.Chain), []byte(issued.Key))
		if err == nil {
			c.shared.change(name, func(s *sharedState) { s.sum, s.notAfter = e.sum, e.notAfter })
		}
		return err
	}
	e, err := c.adopt(ctx, name, &issued)
	if err != nil {
		return err
	}
	if c.fresh(e, time.Now()) {
		c.forget(name)
	}
	c.jobs.set(name, c.dueAt(c.table.Load(), name, time.Now()))
	return nil
}

func (c *Certs) applyAttempt(name hangar.Hostname, value json.RawMessage) error {
	if value == nil {
		c.shared.change(name, func(s *sharedState) { s.failed = time.Time{} })
		return nil
	}
	var failed attempt
	if err := json.Unmarshal(value, &failed); err != nil {
		return err
	}
	c.shared.change(name, func(s *sharedState) { s.failed = failed.At })
	org, wanted := c.table.Load().wanted[name]
	if !wanted {
		org, _ = c.options.Owner(name)
	}
	if c.orderable(name) && c.learn(orderRequest{name: name, org: org}, &failed) {
		c.jobs.set(name, failed.Next)
	}
	return nil
}

// pruneShared removes the shared state of names that no App wants any more.
func (c *Certs) pruneShared(ctx context.Context) {
	for pause.For(ctx, pruneEvery) == nil {
		for _, name := range c.prunable(time.Now()) {
			if err := c.prune(ctx, name); err != nil {
				c.log.WarnContext(ctx, "what is shared about a name stays", keyName, string(name), keyError, err)
			}
		}
	}
}

func (c *Certs) prunable(now time.Time) (names []hangar.Hostname) {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	for name, s := range c.shared.known {
		if !s.ordered && now.After(s.notAfter.Add(expiredKept)) && now.After(s.failed.Add(expiredKept)) && !c.orderable(name) {
			names = append(names, name)
		}
	}
	return names
}

func (c *Certs) prune(ctx context.Context, name hangar.Hostname) error {
	lock, err := c.shared.lock(ctx, name)
	if err != nil {
		return err
	}
	defer lock.Release()
	for _, kind := range []string{issuedKind, attemptsKind} {
		if err := lock.StoreShared(lock.Context(), c.shared.key(kind, name), nil); err != nil {
			return err
		}
	}
	return nil
}

package certs

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// pruneEvery is how often what is shared about names that no App has any more is looked for.
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

	mu    sync.Mutex // guards known
	known map[hangar.Hostname]sharedState
}

// sharedState is what is shared about a name.
type sharedState struct {
	sum      [sha256.Size]byte // of the certificate; zero: there is none
	notAfter time.Time         // of the certificate
	failed   time.Time         // of the last attempt; zero: there is none
}

// sharedCertificate is a certificate that was issued, for all edges.
type sharedCertificate struct {
	Chain string      `json:"chain"` // PEM
	Key   string      `json:"private_key"`
	Order sharedOrder `json:"order"`
}

// sharedOrder is an order as all edges count it.
type sharedOrder struct {
	Host    hangar.HostID `json:"host"`
	Counted bool          `json:"counted,omitempty"`
	Org     hangar.OrgID  `json:"org_id,omitempty"`
	Own     bool          `json:"own,omitempty"`
	Renewal bool          `json:"renewal,omitempty"`
}

func (o sharedOrder) wish(name hangar.Hostname) wish {
	return wish{name: name, org: o.Org, own: o.Own, renewal: o.Renewal}
}

// note is what the holder of the lock of a name tells the other edges.
type note struct {
	Order     sharedOrder `json:"order"`
	Challenge challenge   `json:"challenge,omitzero"`
}

// challenge is what the ACME server is to find.
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
	return &shared{store: store, root: root, host: host, known: map[hangar.Hostname]sharedState{}}
}

// used reports whether there may be other edges.
func (s *shared) used() bool { return s != nil && s.store != nil }

func (s *shared) key(kind string, name hangar.Hostname) string {
	return path.Join(s.root, kind, string(name))
}

// named returns of which kind a key is, and the name in it.
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

// has returns the digest of the shared certificate of a name as far as this edge knows.
func (s *shared) has(name hangar.Hostname) [sha256.Size]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[name].sum
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

// load reads a value into v, and reports whether there is one.
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

// order is an order of this edge as all edges count it.
func (s *shared) order(w wish, counted bool) sharedOrder {
	return sharedOrder{Host: s.host, Counted: counted, Org: w.org, Own: w.own, Renewal: w.renewal}
}

// place tells the other edges that an order is placed.
func (s *shared) place(lock hangar.CertificateLock, w wish, counted bool) (note, error) {
	n := note{Order: s.order(w, counted)}
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

// placedKey is the key of a context that holds the *placedOrder which is under way.
type placedKey struct{}

// placedOrder is an order of which other edges know.
type placedOrder struct {
	lock hangar.CertificateLock
	note note
}

// show lets other edges answer the ACME server, too: it may validate at any of them.
func show(ctx context.Context, ch acme.Challenge) error {
	placed, ok := ctx.Value(placedKey{}).(*placedOrder)
	if !ok {
		return nil
	}
	shown := placed.note
	shown.Challenge = challenge{Token: ch.Token, Authorization: ch.KeyAuthorization}
	return shown.write(placed.lock)
}

// share has a certificate ordered unless another edge has done so, or is about to.
func (c *Certs) share(ctx context.Context, w wish, current *entry) time.Time {
	if !c.platform(w.name) { // names that have to wait ask the state nothing
		if held := c.budget.room(w, time.Now()); held != nil {
			return held.until
		}
	}
	at, done, err := c.catchUp(ctx, w)
	if err != nil {
		return c.again(ctx, w.name, err)
	}
	if done {
		return at
	}
	ctx, cancel := context.WithTimeout(ctx, 2*orderTimeout) // one of another edge, and this one
	defer cancel()
	lock, err := c.shared.lock(ctx, w.name)
	if err != nil {
		return c.again(ctx, w.name, err)
	}
	defer lock.Release()
	if at, done, err = c.catchUp(lock.Context(), w); err != nil {
		return c.again(ctx, w.name, err)
	}
	if done {
		return at
	}
	return c.order(lock.Context(), lock, w, current)
}

// catchUp takes over what another edge has had issued, or an attempt of it that this edge does not know.
func (c *Certs) catchUp(ctx context.Context, w wish) (at time.Time, done bool, err error) {
	var issued sharedCertificate
	there, err := c.shared.load(ctx, c.shared.key(issuedKind, w.name), &issued)
	if err != nil {
		return at, false, err
	}
	if there {
		e, err := c.adopt(ctx, w.name, &issued)
		if err != nil {
			return at, false, err
		}
		if c.fresh(e, time.Now()) {
			c.forget(w.name)
			return e.renewAt(c.options.RenewalRatio), true, nil
		}
	}
	var failed attempt
	there, err = c.shared.load(ctx, c.shared.key(attemptsKind, w.name), &failed)
	if err != nil || !there || !c.learn(w, &failed) {
		return at, false, err
	}
	return failed.Next, true, nil
}

// learn takes over an attempt of another edge, and reports whether it was news.
func (c *Certs) learn(w wish, failed *attempt) bool {
	if last := c.attempts.get(w.name); failed.Org != w.org || last != nil && !failed.At.After(last.At) || !failed.Next.After(time.Now()) {
		return false
	}
	if err := c.attempts.put(w.name, failed); err != nil {
		c.log.Error("attempt is not on the disk", keyName, string(w.name), keyError, err)
	}
	return true
}

// adoptTimeout bounds the writing of the files of a certificate.
const adoptTimeout = time.Minute

// adopt puts a shared certificate on the disk and lets handshakes meet it, unless this edge has one that is
// valid for longer. It returns the one that is served then.
func (c *Certs) adopt(ctx context.Context, name hangar.Hostname, issued *sharedCertificate) (*entry, error) {
	chain, private := []byte(issued.Chain), []byte(issued.Key)
	sum := sumOf(chain, private)
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
	meta, err := json.Marshal(certmagic.CertificateResource{SANs: []string{string(name)}})
	if err != nil {
		return nil, err
	}
	writing, cancel := finish.Within(ctx, adoptTimeout)
	defer cancel()
	key, keys := c.issuer.IssuerKey(), certmagic.StorageKeys
	for file, data := range map[string][]byte{
		keys.SitePrivateKey(key, string(name)): private, keys.SiteMeta(key, string(name)): meta, keys.SiteCert(key, string(name)): chain,
	} {
		if err := c.issuer.storage.Store(writing, file, data); err != nil {
			return nil, fmt.Errorf("keep the shared certificate of %s: %w", name, err)
		}
	}
	c.install(name, e)
	return e, nil
}

// giveIssued shares a certificate that is on the disk.
func (c *Certs) giveIssued(lock hangar.CertificateLock, w wish, e *entry) error {
	chain, private, err := c.readFiles(w.name)
	if err != nil {
		return err
	}
	err = c.shared.give(lock, c.shared.key(issuedKind, w.name), sharedCertificate{
		Chain: string(chain), Key: string(private),
		Order: c.shared.order(w, !c.platform(w.name)),
	})
	if err != nil {
		return err
	}
	failed := false
	c.shared.change(w.name, func(s *sharedState) {
		s.sum, s.notAfter, failed = e.sum, e.notAfter, !s.failed.IsZero()
	})
	if failed {
		return lock.StoreShared(lock.Context(), c.shared.key(attemptsKind, w.name), nil)
	}
	return nil
}

// publish shares a certificate that this edge had before it shared any, or while the state was away.
func (c *Certs) publish(ctx context.Context, w wish, current *entry) time.Time {
	at := c.install(w.name, current)
	lock, err := c.shared.lock(ctx, w.name)
	if err != nil {
		return c.again(ctx, w.name, err)
	}
	defer lock.Release()
	var issued sharedCertificate
	there, err := c.shared.load(lock.Context(), c.shared.key(issuedKind, w.name), &issued)
	if err != nil {
		return c.again(ctx, w.name, err)
	}
	if there {
		if e, err := c.adopt(lock.Context(), w.name, &issued); err == nil && e != current {
			return e.renewAt(c.options.RenewalRatio)
		} else if err == nil && c.shared.has(w.name) == current.sum {
			return at
		}
	}
	if err := c.giveIssued(lock, w, current); err != nil {
		return c.again(ctx, w.name, err)
	}
	return at
}

// followShared takes over what other edges have done until ctx ends.
func (c *Certs) followShared(ctx context.Context) {
	for delay := feedPause; ctx.Err() == nil; delay = min(2*delay, feedMost) {
		before := true // values of this time are no news
		for batch, err := range c.shared.store.WatchShared(ctx) {
			if err != nil {
				c.log.WarnContext(ctx, "what other edges do cannot be followed", keyError, err)
				break
			}
			for _, v := range batch.Values {
				c.applyShared(ctx, v, !before)
			}
			if batch.Listed && before {
				before, delay = false, feedPause
				c.publishAll()
			}
		}
		_ = pause.For(ctx, delay)
	}
}

// publishAll has certificates shared that are not.
func (c *Certs) publishAll() {
	for name, e := range c.table.Load().issued {
		if c.shared.has(name) != e.sum {
			c.orders.set(name, time.Now())
		}
	}
}

// orderable reports whether this edge may have a certificate of a name issued.
func (c *Certs) orderable(name hangar.Hostname) bool {
	if _, wanted := c.table.Load().wanted[name]; wanted {
		return true
	}
	_, known := c.options.Owner(name)
	return known && c.demandable(name)
}

// applyShared takes over one value. fresh says that it was written just now.
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

// applyNote counts an order of another edge once: the note is written again with each challenge.
func (c *Certs) applyNote(name hangar.Hostname, value json.RawMessage) error {
	var n note
	if value == nil {
		return nil
	}
	if err := json.Unmarshal(value, &n); err != nil {
		return err
	}
	if n.Order.Counted && n.Order.Host != c.options.Host && n.Challenge == (challenge{}) {
		c.budget.placed(n.Order.wish(name), time.Now())
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
		c.budget.issued(issued.Order.wish(name), time.Now())
	}
	if !c.orderable(name) { // it is read again when the name is wanted
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
	c.orders.set(name, c.dueAt(c.table.Load(), name, time.Now()))
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
	if c.orderable(name) && c.learn(wish{name: name, org: org}, &failed) {
		c.orders.set(name, failed.Next)
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
		if now.After(s.notAfter.Add(expiredKept)) && now.After(s.failed.Add(expiredKept)) && !c.orderable(name) {
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

package auth

import (
	"bytes"
	"cmp"
	"context"
	"crypto/subtle"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// entry is what is known of a token id: its record, or (Record nil) that it is gone.
// Entries never change, but for the time of use.
type entry struct {
	*Record
	revision state.Revision // of that state
	used     *atomic.Int64  // Unix seconds of the last use known; 0: none
}

// bucket is the beginning of a digest. To find a record by it tells who measures
// times something about a digest only, from which no token can be made; whether the
// digest is the one is compared in constant time.
type bucket [8]byte

// memory is the records of all tokens and the accounts of users, as requests are verified by.
//
// It receives changes from two sides: from the feed of the state, in order but late, and from
// this process itself, at once. The revisions decide which is newer; a token that was revoked
// here leaves a mark until the feed confirms it, so that a stale event of its creation does
// not bring it back.
type memory struct {
	mu      sync.RWMutex // guards what follows
	tokens  map[hangar.TokenID]entry
	digests map[bucket][]entry // of existing tokens
	lives   map[hangar.TokenID]life
	seen    state.Revision // up to which the feed was followed
	users   accounts
}

// life is how long a record is valid. It is made only for records that a caller asks about.
type life struct {
	ctx context.Context //nolint:containedctx // it stands for the record, and for no call
	end context.CancelFunc
}

func newMemory() memory {
	return memory{
		tokens: map[hangar.TokenID]entry{}, digests: map[bucket][]entry{}, lives: map[hangar.TokenID]life{},
		users: accounts{byID: map[hangar.UserID]accountEntry{}},
	}
}

// life returns a context that ends when the record of a token does not count any more.
func (m *memory) life(id hangar.TokenID, now time.Time) context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l, ok := m.lives[id]; ok {
		return l.ctx
	}
	e := m.tokens[id]
	if e.Record == nil {
		return newLife(now, now).ctx
	}
	if _, ok := e.principal(m.users.byID[e.UserID].Account); !ok {
		return newLife(now, now).ctx
	}
	l := newLife(e.Grant.Until, now)
	m.lives[id] = l
	return l.ctx
}

// newLife lasts until a time; zero: without an end.
func newLife(until, now time.Time) (l life) {
	forever := context.Background() //nolint:forbidigo // a record lasts longer than any call
	if until.IsZero() {
		l.ctx, l.end = context.WithCancel(forever)
	} else {
		l.ctx, l.end = context.WithTimeout(forever, until.Sub(now))
	}
	return l
}

// lookup finds the record of a digest and whom its token stands for, and notes that it is used.
func (m *memory) lookup(digest []byte, now time.Time) (Record, hangar.Principal, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var found entry
	for _, e := range m.digests[bucket(digest)] {
		if subtle.ConstantTimeCompare(e.Digest, digest) == 1 {
			found = e
		}
	}
	if found.Record == nil || !found.Grant.Until.IsZero() && !now.Before(found.Grant.Until) {
		return Record{}, hangar.Principal{}, false
	}
	p, ok := found.principal(m.users.byID[found.UserID].Account)
	if second := now.Unix(); ok && found.used.Load() < second {
		found.used.Store(second)
	}
	return *found.Record, p, ok
}

// learn takes what this process has written.
func (m *memory) learn(r *Record, revision state.Revision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision > m.seen {
		m.set(r.ID, r, revision)
	}
}

// forget takes that this process has deleted a token.
func (m *memory) forget(id hangar.TokenID, revision state.Revision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision > m.seen {
		m.set(id, nil, revision)
	}
}

// set replaces what is known of an id, unless that is newer. The caller holds mu.
func (m *memory) set(id hangar.TokenID, r *Record, revision state.Revision) {
	old, known := m.tokens[id]
	if known && old.revision >= revision {
		return
	}
	m.drop(old)
	e := entry{Record: r, revision: revision, used: old.used}
	if e.used == nil {
		e.used = new(atomic.Int64)
	}
	m.tokens[id] = e
	if r != nil {
		key := bucket(r.Digest)
		m.digests[key] = append(m.digests[key], e)
	}
}

// drop makes a record not to be found by its digest, and ends its life. The caller
// holds mu.
func (m *memory) drop(e entry) {
	if e.Record == nil {
		return
	}
	if l, ok := m.lives[e.ID]; ok {
		delete(m.lives, e.ID)
		l.end()
	}
	key := bucket(e.Digest)
	m.digests[key] = slices.DeleteFunc(slices.Clone(m.digests[key]), func(o entry) bool { return o.Record == e.Record })
	if len(m.digests[key]) == 0 {
		delete(m.digests, key)
	}
}

// change is one thing that the feed said: a record, or that it is gone.
type change struct {
	id     hangar.TokenID
	record *Record
	at     state.Revision
}

// followTokens takes changes from the feed, which are all there were up to a revision.
func (m *memory) followTokens(changes []change, seen state.Revision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range changes {
		m.set(c.id, c.record, c.at)
	}
	m.advance(seen)
}

// replace takes everything that there is at a revision.
func (m *memory) replace(all []change, at state.Revision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	there := make(map[hangar.TokenID]struct{}, len(all))
	for _, c := range all {
		there[c.id] = struct{}{}
		m.set(c.id, c.record, c.at)
	}
	for id := range m.tokens {
		if _, ok := there[id]; !ok {
			m.set(id, nil, at)
		}
	}
	m.advance(at)
}

// advance notes how far the feed was followed and drops the marks that it has
// caught up with. The caller holds mu.
func (m *memory) advance(seen state.Revision) {
	m.seen = max(m.seen, seen)
	for id, e := range m.tokens {
		if e.Record == nil && e.revision <= m.seen {
			delete(m.tokens, id)
		}
	}
}

// Find returns the record of a token.
func (m *memory) Find(id hangar.TokenID) (Record, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e := m.tokens[id]
	if e.Record == nil {
		return Record{}, false
	}
	return e.record(), true
}

// List returns the tokens that match, in the order of their creation. match must not call m.
func (m *memory) List(match func(*hangar.Token) bool) []hangar.Token {
	m.mu.RLock()
	var list []hangar.Token
	for _, e := range m.tokens {
		if e.Record != nil && match(&e.Token) {
			list = append(list, e.record().Token)
		}
	}
	m.mu.RUnlock()
	slices.SortFunc(list, func(a, b hangar.Token) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// record is a copy with the time of use filled in.
func (e entry) record() Record {
	r := *e.Record
	r.Digest = bytes.Clone(r.Digest)
	if used := e.used.Load(); used > 0 {
		r.LastUsed = time.Unix(used, 0).UTC()
	}
	return r
}

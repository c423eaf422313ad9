// Short keys, so that tests make many.
//
//go:debug rsa1024min=0

package oidc

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shortKey is a key that is made in no time.
func shortKey() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 512) }

// openVault encrypts nothing.
type openVault struct{ store state.Store }

func (v openVault) Open(item state.Item) ([]byte, error) { return item.Value, nil }

func (v openVault) Put(ctx context.Context, key string, plain []byte, unchanged state.Compare) error {
	_, err := v.store.Txn(ctx, state.Txn{If: []state.Compare{unchanged}, Then: []state.Op{state.Put(key, plain)}})
	return err
}

// faulty is a store as one server sees it. While it is cut off, it answers with what
// was known last, as a mirror does.
type faulty struct {
	state.Store
	last   state.Item // what was read last
	cut    bool
	late   bool // news has not arrived yet, but transactions do
	before bool // the next transaction fails without effect
	after  bool // the next transaction has its effect, and fails
}

var errAway = errors.New("the state is away")

func (f *faulty) Get(ctx context.Context, key string) (state.Item, error) {
	if f.cut {
		if f.last.Key == "" {
			return state.Item{}, errAway
		}
		return f.last, nil
	}
	switch {
	case f.late && f.last.Key == "":
		return state.Item{}, state.ErrNotFound
	case f.late:
		return f.last, nil
	}
	item, err := f.Store.Get(ctx, key)
	if err == nil {
		f.last = item
	}
	return item, err
}

func (f *faulty) heal() { f.cut, f.late = false, false }

func (f *faulty) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	if f.cut || f.before {
		f.before = false
		return 0, errAway
	}
	revision, err := f.Store.Txn(ctx, txn)
	f.late = false
	if err == nil && f.after {
		f.after = false
		return 0, errAway
	}
	return revision, err
}

// server is one of several that share a state.
type server struct {
	*Issuer
	store *faulty
	skew  time.Duration
	cutAt time.Time
}

// sight is a set of keys that a verifier has seen, or the key of a token.
type sight struct {
	at   time.Time
	keys []string
}

// model is a cluster, and what third parties have seen of it.
type model struct {
	t       *rapid.T
	ctx     context.Context //nolint:containedctx // of the test
	policy  Policy
	now     time.Time
	store   state.Store
	servers []*server
	shown   []sight
	tokens  []sight
}

// maxLag is for how long a server may be cut off: by so much the times of the policy
// are longer than they would have to be with one server.
func (m *model) maxLag() time.Duration {
	return min(m.policy.Lead-m.policy.MaxAge, m.policy.Linger) - 2*maxSkew
}

const maxSkew = time.Minute // of a clock

func (m *model) start(s *server) {
	s.Issuer = New(Config{
		Store: s.store, Vault: openVault{s.store}, Policy: m.policy, NewKey: shortKey, Now: func() time.Time { return m.now.Add(s.skew) },
	})
}

func (m *model) any() *server { return rapid.SampledFrom(m.servers).Draw(m.t, "server") }

// faults may make the next transaction of a server fail.
func (m *model) faults(s *server) {
	switch rapid.IntRange(0, 5).Draw(m.t, "fault") {
	case 0:
		s.store.before = true
	case 1:
		s.store.after = true
	}
}

func (m *model) tend(*rapid.T) {
	s := m.any()
	m.faults(s)
	if _, err := s.tend(m.ctx, nil); err != nil && !errors.Is(err, errAway) {
		m.t.Fatal(err)
	}
}

func (m *model) rotate(*rapid.T) {
	s := m.any()
	m.faults(s)
	if _, err := s.Rotate(m.ctx); err != nil && !errors.Is(err, errAway) {
		m.t.Fatal(err)
	}
}

// kill has a server start again, which it can only with the state.
func (m *model) kill(*rapid.T) {
	s := m.any()
	if s.store.cut {
		m.t.Skip("cut off")
	}
	s.store.before, s.store.after = false, false
	m.start(s)
	if err := s.Open(m.ctx); err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) cut(*rapid.T) {
	s := m.any()
	if !s.store.cut && s.store.last.Key != "" {
		s.store.cut, s.cutAt = true, m.now
	}
}

func (m *model) delay(*rapid.T) {
	s := m.any()
	if !s.store.cut && !s.store.late {
		s.store.late, s.cutAt = true, m.now
	}
}

func (m *model) heal(*rapid.T) { m.any().store.heal() }

func (m *model) pass(*rapid.T) {
	longest := rapid.SampledFrom([]time.Duration{time.Minute, m.maxLag(), hangar.IdentityTokenLifetime, 2 * m.policy.Period}).Draw(m.t, "longest")
	d := time.Duration(rapid.Int64Range(0, int64(longest)).Draw(m.t, "time"))
	for _, s := range m.servers {
		if m.now.Add(d).Sub(s.cutAt) > m.maxLag() {
			s.store.heal()
		}
	}
	m.now = m.now.Add(d)
}

// check looks at everything as third parties do.
func (m *model) check(*rapid.T) {
	for n, s := range m.servers {
		keys, err := s.Keys(m.ctx)
		if hangar.CodeOf(err) == hangar.CodeUnavailable {
			continue // never had any
		}
		if err != nil {
			m.t.Fatal(err)
		}
		all := sight{at: m.now}
		for i, k := range keys {
			all.keys = append(all.keys, k.ID)
			if k.State == hangar.SigningKeyCurrent {
				m.tokens = append(m.tokens, sight{m.now, []string{k.ID}})
			}
			if i > 0 && k.NotBefore != keys[i-1].NotAfter {
				m.t.Fatalf("server %d: between keys there is a gap: %+v", n, keys)
			}
		}
		m.shown = append(m.shown, all)
	}
	old := func(s sight) bool { return m.now.Sub(s.at) > hangar.IdentityTokenLifetime+m.policy.MaxAge }
	m.shown, m.tokens = slices.DeleteFunc(m.shown, old), slices.DeleteFunc(m.tokens, old)
	for _, token := range m.tokens {
		for _, set := range m.shown {
			age := token.at.Sub(set.at) // at which the set is used; negative: it was fetched later
			if age <= m.policy.MaxAge && -age < hangar.IdentityTokenLifetime && !slices.Contains(set.keys, token.keys[0]) {
				m.t.Fatalf("a token of %s is signed by %s, which is not among the keys of %s: %v",
					token.at, token.keys[0], set.at, set.keys)
			}
		}
	}
}

// TestKeysAreAlwaysKnown: several servers that make, replace and drop keys, are killed,
// cut off from the state and fail in the middle, always sign with keys that are in
// every set that a verifier may still have cached.
func TestKeysAreAlwaysKnown(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{t: rt, ctx: t.Context(), policy: DefaultPolicy(), now: time.Unix(1_700_000_000, 0), store: state.NewMemory()}
		m.policy.Period = rapid.SampledFrom([]time.Duration{MinPeriod, DefaultPeriod}).Draw(rt, "period")
		for n := range 3 {
			s := &server{store: &faulty{Store: m.store}, skew: time.Duration(rapid.Int64Range(0, int64(maxSkew)).Draw(rt, "skew"))}
			m.servers = append(m.servers, s)
			m.start(s)
			if n == 0 {
				s.store.late, s.cutAt = rapid.Bool().Draw(rt, "late"), m.now
				continue // starts when it is first needed
			}
			// The first server makes the first set.
			m.faults(s)
			if err := s.Open(m.ctx); err != nil {
				m.start(s)
				if err := s.Open(m.ctx); err != nil {
					rt.Fatal(err)
				}
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": m.check, "tend": m.tend, "rotate": m.rotate, "kill": m.kill, "cut": m.cut, "delay": m.delay, "heal": m.heal, "pass": m.pass,
		})
		// In the end, when all clocks agree, there is one next key, and no superfluous
		// one.
		m.now = m.now.Add(2 * maxSkew)
		s := m.servers[0]
		s.store.heal()
		s.store.before, s.store.after = false, false
		if _, err := s.tend(m.ctx, nil); err != nil {
			rt.Fatal(err)
		}
		known, now := s.known.Load(), m.now.Add(s.skew)
		current := known.current(now)
		if current+2 != len(known.Keys) || m.policy.shown(known.record, now) != 0 {
			rt.Fatalf("left are %+v", known.list(m.policy, now))
		}
		if left := known.until(current).Sub(now); left > max(m.policy.Period, m.policy.Lead)+2*maxSkew {
			rt.Fatalf("the current key signs for %s more", left)
		}
	})
}

// pair opens two issuers that share a state, each with a mirror of its own.
func pair(t *testing.T, policy Policy) []*Issuer {
	t.Helper()
	store := state.NewMemory()
	var issuers []*Issuer
	for range 2 {
		mirror := state.NewMirror(state.MirrorConfig{Store: store, Log: slog.New(slog.DiscardHandler)})
		if err := mirror.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = mirror.Close() })
		i := New(Config{Store: mirror, Vault: openVault{mirror}, Policy: policy, NewKey: shortKey, Issuer: "https://oidc.example", Audience: "https://example"})
		if err := i.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		issuers = append(issuers, i)
	}
	return issuers
}

// keySet is a set of keys as a verifier fetched it.
type keySet struct {
	at time.Time
	jose.JSONWebKeySet
}

func fetch(t *testing.T, i *Issuer) keySet {
	t.Helper()
	document, err := i.KeySet(t.Context())
	set := keySet{at: time.Now()}
	if err == nil {
		err = json.Unmarshal(document.Body, &set.JSONWebKeySet)
	}
	if err != nil {
		t.Error(err)
	}
	return set
}

// verifies reports whether a token is good with a set of keys.
func (s keySet) verifies(token string) error {
	parsed, err := jose.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		return err
	}
	kid := parsed.Signatures[0].Header.KeyID
	keys := s.Key(kid)
	if len(keys) != 1 {
		return fmt.Errorf("%d keys are %s", len(keys), kid)
	}
	_, err = parsed.Verify(keys[0])
	return err
}

// TestRotationUnderLoad has two servers sign a token every other millisecond while keys come
// and go several times a second, by themselves and on request. Every token is good with
// every set of keys that was fetched from either server not longer than MaxAge before.
func TestRotationUnderLoad(t *testing.T) { synctest.Test(t, rotateUnderLoad) }

func rotateUnderLoad(t *testing.T) {
	const maxAge = 200 * time.Millisecond
	issuers := pair(t, Policy{Period: 700 * time.Millisecond, MaxAge: maxAge, Lead: 500 * time.Millisecond, Linger: time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	type issued struct {
		at   time.Time
		text string
	}
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		sets    []keySet
		tokens  []issued
	)
	every := func(d time.Duration, do func()) {
		running.Go(func() {
			tick := time.NewTicker(d)
			defer tick.Stop()
			for ctx.Err() == nil {
				do()
				<-tick.C
			}
		})
	}
	for n, i := range issuers {
		running.Go(func() { _ = i.Run(ctx) })
		every(2*time.Millisecond, func() {
			token, err := i.Issue(t.Context(), hangar.IdentityClaims{OrgName: "acme"}, hangar.IdentityTokenRequest{})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			tokens = append(tokens, issued{time.Now(), token})
		})
		every(20*time.Millisecond, func() {
			set := fetch(t, i)
			mu.Lock()
			defer mu.Unlock()
			sets = append(sets, set)
		})
		every(time.Duration(n+1)*230*time.Millisecond, func() { // more often than a key becomes ready
			if _, err := i.Rotate(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	slices.SortFunc(sets, func(a, b keySet) int { return a.at.Compare(b.at) })
	used := map[string]int{}
	for _, token := range tokens {
		// The oldest set is the one that is least likely to do.
		at, _ := slices.BinarySearchFunc(sets, token.at.Add(-maxAge), func(s keySet, t time.Time) int { return s.at.Compare(t) })
		if at == len(sets) || sets[at].at.After(token.at) {
			continue
		}
		if err := sets[at].verifies(token.text); err != nil {
			t.Fatalf("a token of %s with the keys of %s: %v", token.at, sets[at].at, err)
		}
		used[token.text[:strings.IndexByte(token.text, '.')]]++
	}
	if len(used) < 5 {
		t.Errorf("only %d keys have signed %d tokens", len(used), len(tokens))
	}
	t.Logf("%d tokens of %d keys, %d sets of keys", len(tokens), len(used), len(sets))
}

// TestSchedule: Run replaces keys by itself, and drops them in time.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := state.NewMemory()
		i := New(Config{Store: store, Vault: openVault{store}, NewKey: shortKey})
		if err := i.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- i.Run(ctx) }()
		began := time.Now()
		ids := func() (ids []string) {
			keys, err := i.Keys(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range keys {
				ids = append(ids, string(k.State)+" "+k.ID)
			}
			return ids
		}
		first, rotation := ids(), began
		for range 3 {
			rotation = rotation.Add(DefaultPeriod)
			time.Sleep(time.Until(rotation) - time.Minute)
			if now := ids(); !slices.Equal(now, first) {
				t.Errorf("after %s: %v became %v", time.Since(began), first, now)
			}
			time.Sleep(2 * time.Minute)
			now := ids()
			if len(now) != 3 || now[0] != "retired"+strings.TrimPrefix(first[0], "current") || now[1] != "current"+strings.TrimPrefix(first[1], "next") {
				t.Errorf("after %s: %v became %v", time.Since(began), first, now)
			}
			time.Sleep(hangar.IdentityTokenLifetime + i.cfg.Policy.Linger)
			if first = ids(); !slices.Equal(first, now[1:]) {
				t.Errorf("after %s: %v became %v", time.Since(began), now, first)
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestWithoutTheState: a server that knows the keys keeps signing and publishing them.
func TestWithoutTheState(t *testing.T) {
	var log strings.Builder
	store := &faulty{Store: state.NewMemory()}
	now := time.Unix(1_700_000_000, 0)
	i := New(Config{
		Store: store, Vault: openVault{store}, NewKey: shortKey, Now: func() time.Time { return now }, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	works := func(when string) {
		t.Helper()
		token, err := i.Issue(t.Context(), hangar.IdentityClaims{OrgName: "acme"}, hangar.IdentityTokenRequest{})
		if err == nil {
			err = fetch(t, i).verifies(token)
		}
		if err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	_, err := i.Issue(t.Context(), hangar.IdentityClaims{}, hangar.IdentityTokenRequest{})
	if hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("before there are keys: %v", err)
	}
	if err := i.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	store.cut, store.last = true, state.Item{}
	works("without the state")
	if _, err := i.Rotate(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("rotated without the state: %v", err)
	}
	now = now.Add(DefaultPeriod + time.Minute)
	works("with the next key")
	now = now.Add(10 * DefaultPeriod)
	works("with the same key for too long")
	store.cut = false
	if _, err := i.tend(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	works("with the state again")
	log.Reset()

	// Nor does a record that cannot be read end it.
	for _, bad := range []string{"", "{", `{"keys":[]}`, `{"keys":[{"kid":"x","private":"AAAA"}]}`} {
		if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(recordKey, []byte(bad))}}); err != nil {
			t.Fatal(err)
		}
		works("with the record " + bad)
		works("again with the record " + bad)
	}
	if n := strings.Count(log.String(), "\n"); n != 4 {
		t.Errorf("the log has %d lines about it:\n%s", n, log.String())
	}
}

// BenchmarkIssue makes tokens and, in turn, signatures alone with the same key, so that
// both suffer alike from other load.
func BenchmarkIssue(b *testing.B) {
	i, private := benchmarked(b)
	claims := hangar.IdentityOf(&hangar.App{Name: "shop", Org: hangar.Org{Slug: "acme"}}, &hangar.Machine{Name: "web-1"})
	digest := sha256.Sum256([]byte("token"))
	var tokens, signatures time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := i.Issue(b.Context(), claims, hangar.IdentityTokenRequest{Audience: "sts.example.com"}); err != nil {
			b.Fatal(err)
		}
		between := time.Now()
		if _, err := rsa.SignPKCS1v15(rand.Reader, private, crypto.SHA256, digest[:]); err != nil {
			b.Fatal(err)
		}
		tokens, signatures = tokens+between.Sub(began), signatures+time.Since(between)
	}
	b.ReportMetric(float64(b.N)/tokens.Seconds(), "tokens/s")
	b.ReportMetric(float64(tokens)/float64(signatures), "times-a-signature")
}

func BenchmarkKeySet(b *testing.B) {
	i, _ := benchmarked(b)
	for b.Loop() {
		if _, err := i.KeySet(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// benchmarked is an issuer with a key of the usual size.
func benchmarked(b *testing.B) (*Issuer, *rsa.PrivateKey) {
	b.Helper()
	private, err := newRSA()
	if err != nil {
		b.Fatal(err)
	}
	store := state.NewMemory()
	i := New(Config{Store: store, Vault: openVault{store}, Issuer: "https://oidc.example", NewKey: func() (*rsa.PrivateKey, error) { return private, nil }})
	if err := i.Open(b.Context()); err != nil {
		b.Fatal(err)
	}
	return i, private
}

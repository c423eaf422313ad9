package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/connlimit"
)

// The limits of lookups at resolvers.
const (
	// attemptPatience is how long one resolver may take, and stagger how long to wait before asking
	// the next one, too.
	attemptPatience = 2 * time.Second
	stagger         = 500 * time.Millisecond
	minAttempts     = 3
	// lookupPatience bounds a lookup.
	lookupPatience = 4500 * time.Millisecond // less than clients wait
	// stalePatience is how long a client waits before it gets a stale answer.
	stalePatience = 500 * time.Millisecond
	// failureTime is how long a failed question is not sent to resolvers again.
	failureTime = time.Second
	// maxLookups bounds the lookups in flight. All Machines of one network together have at most half.
	maxLookups = 1024
)

// resolver looks up names that are not local.
type resolver struct {
	upstreams func() []netip.AddrPort
	now       func() time.Time
	cache     *cache
	preferred atomic.Int64 // the one of upstreams that answered last

	lookups sync.WaitGroup
	open    *connlimit.Count[hangar.NetworkID] // lookups in flight, by the network that began them

	mu      sync.Mutex // guards what follows
	flights map[string]*flight
	failed  map[string]time.Time // time of the failure; at most maxFailed
}

// flight is a lookup in progress.
type flight struct {
	done  chan struct{} // closed when reply or err is set
	reply *reply
	err   error
}

const maxFailed = 10_000

var (
	errNoResolver = errors.New("this server has no resolver")
	errRefused    = errors.New("no resolver gave an answer")
	errBusy       = errors.New("too many lookups")
)

// servedReply is a reply for one client.
type servedReply struct {
	reply *reply
	left  uint32 // seconds it may be kept
}

// appendKey appends the properties of a question that distinguish answers.
func appendKey(out []byte, q *query) []byte {
	var bits byte
	if q.do {
		bits |= 1
	}
	if q.flags&flagCD != 0 {
		bits |= 2
	}
	out = append(out, bits)
	out = binary.BigEndian.AppendUint16(out, q.qtype)
	return append(out, q.name...)
}

// cached returns a reply from memory: a fresh one, or a stale one if a lookup failed a moment ago.
func (r *resolver) cached(q *query, now time.Time) (servedReply, bool) {
	var buf [3 + maxNameBytes]byte
	got := r.cache.get(appendKey(buf[:0], q), now)
	switch {
	case got == nil:
		return servedReply{}, false
	case got.fresh(now):
		return servedReply{got, got.left(now)}, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return servedReply{got, staleTTL}, r.failedLately(got.key, now)
}

// failedLately requires the lock.
func (r *resolver) failedLately(key string, now time.Time) bool {
	at, ok := r.failed[key]
	return ok && now.Sub(at) < failureTime
}

// resolve returns the reply to a question from a network, or a stale one if no resolver answers in
// time. ctx is the server's: a lookup outlives its first caller.
func (r *resolver) resolve(ctx context.Context, from hangar.NetworkID, q *query) (servedReply, error) {
	key := string(appendKey(nil, q))
	now := r.now()
	kept := r.cache.get([]byte(key), now)
	if kept != nil && kept.fresh(now) {
		return servedReply{kept, kept.left(now)}, nil
	}
	f, err := r.join(ctx, from, key, q, now)
	if err == nil {
		var patience <-chan time.Time
		if kept != nil {
			t := time.NewTimer(stalePatience)
			defer t.Stop()
			patience = t.C
		}
		select {
		case <-f.done:
			if f.err == nil {
				return servedReply{f.reply, f.reply.left(r.now())}, nil
			}
			err = f.err
		case <-patience:
		case <-ctx.Done():
			return servedReply{}, ctx.Err()
		}
	}
	if kept != nil {
		return servedReply{kept, staleTTL}, nil
	}
	return servedReply{}, err
}

// join returns the lookup of a key, which it starts if none is in progress.
func (r *resolver) join(ctx context.Context, from hangar.NetworkID, key string, q *query, now time.Time) (*flight, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.flights[key]; f != nil {
		return f, nil
	}
	if r.failedLately(key, now) {
		return nil, errRefused
	}
	if !r.open.Take(from) {
		return nil, errBusy
	}
	f := &flight{done: make(chan struct{})}
	r.flights[key] = f
	m := question(q)
	r.lookups.Go(func() {
		defer r.open.Leave(from)
		r.lookUp(ctx, key, f, m)
	})
	return f, nil
}

// lookUp asks the resolvers and wakes the waiters.
func (r *resolver) lookUp(ctx context.Context, key string, f *flight, m *dns.Msg) {
	ctx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	defer close(f.done)
	got, err := r.ask(ctx, m)
	now := r.now()
	if err == nil {
		f.reply, err = newReply(key, got, now)
	}
	f.err = err
	if err == nil && f.reply.fresh(now) {
		r.cache.put(f.reply)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.flights, key)
	if err == nil {
		delete(r.failed, key)
		return
	}
	if len(r.failed) >= maxFailed {
		clear(r.failed)
	}
	r.failed[key] = now
}

// question is the question to resolvers.
func question(q *query) *dns.Msg {
	m := new(dns.Msg)
	m.Id = dns.Id()
	m.RecursionDesired = true
	m.AuthenticatedData = true // the asker understands the bit
	m.CheckingDisabled = q.flags&flagCD != 0
	name, _, _ := dns.UnpackDomainName(q.name, 0) // never fails: the name was parsed
	m.Question = []dns.Question{{Name: name, Qtype: q.qtype, Qclass: dns.ClassINET}}
	m.SetEdns0(maxUDP, q.do)
	return m
}

// ask asks the resolvers, beginning with the one that answered last. It asks the next one when one
// fails or is slow, and returns the first good answer.
func (r *resolver) ask(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	upstreams := r.upstreams()
	if len(upstreams) == 0 {
		return nil, errNoResolver
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		which int
		msg   *dns.Msg
		err   error
	}
	attempts := max(minAttempts, len(upstreams))
	results := make(chan result, attempts)
	first := int(r.preferred.Load())
	begun, open := 0, 0
	begin := func() {
		if begun == attempts {
			return
		}
		which := (first + begun) % len(upstreams)
		begun++
		open++
		r.lookups.Go(func() {
			msg, err := attempt(ctx, upstreams[which], m)
			results <- result{which, msg, err}
		})
	}
	begin()
	tick := time.NewTicker(stagger)
	defer tick.Stop()
	var last error
	for open > 0 {
		select {
		case got := <-results:
			open--
			if got.err == nil {
				r.preferred.Store(int64(got.which))
				return got.msg, nil
			}
			last = got.err
			begin()
		case <-tick.C:
			begin()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, last
}

// attempt asks one resolver over UDP, and over TCP if the answer was truncated.
func attempt(ctx context.Context, upstream netip.AddrPort, m *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptPatience)
	defer cancel()
	m = m.Copy()
	m.Id = dns.Id()
	got, err := exchange(ctx, "udp", upstream, m)
	if err == nil && (got.Rcode == dns.RcodeFormatError || got.Rcode == dns.RcodeNotImplemented) && got.IsEdns0() == nil {
		m.Extra = nil // the resolver does not know EDNS
		got, err = exchange(ctx, "udp", upstream, m)
	}
	if err == nil && got.Truncated {
		got, err = exchange(ctx, "tcp", upstream, m)
	}
	if err != nil {
		return nil, err
	}
	if got.Rcode != dns.RcodeSuccess && got.Rcode != dns.RcodeNameError {
		return nil, errRefused
	}
	return got, nil
}

// exchange sends a question and returns the answer to it. It ends with ctx.
func exchange(ctx context.Context, network string, upstream netip.AddrPort, m *dns.Msg) (*dns.Msg, error) {
	client := dns.Client{Net: network, UDPSize: maxUDP, Timeout: attemptPatience}
	conn, err := client.DialContext(ctx, upstream.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	got, _, err := client.ExchangeWithConnContext(ctx, m, conn)
	if err != nil {
		return nil, err
	}
	if !got.Response || len(got.Question) != 1 || got.Question[0].Qtype != m.Question[0].Qtype ||
		dns.CanonicalName(got.Question[0].Name) != m.Question[0].Name {
		return nil, errBadReply
	}
	return got, nil
}

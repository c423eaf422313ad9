package lease

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
)

// Defaults of a Config.
const (
	DefaultTTL       = 5 * time.Second
	DefaultLockDelay = time.Second
	MinTTL           = time.Second
)

// Fractions of the TTL.
const (
	renewals = 5 // number within one TTL
	// margin is the fraction of the TTL that this node does not use. It allows for different clocks
	// of the store and this node, and for commits in progress.
	margin   = 5
	patience = 2 // timeout of one call of the store
)

// Config configures an Elected.
type Config struct {
	Store     Store
	Self      Peer // what other nodes see of this one; Run adds the ID
	Candidate bool // this node may become the primary
	// TTL is how long the lease outlives a node that died; it is at least MinTTL, and the store may grant more.
	// LockDelay is how long others wait in addition, which allows for clocks that run at different rates. 0 means
	// the default.
	TTL, LockDelay time.Duration
	Wall           func() time.Time // the wall clock; nil: time.Now
	Log            *slog.Logger
}

// Elected is a Lease that is a record in a Store. The epoch is based on the revision of that record,
// which grows with each change.
//
// The holder renews its session of the store often. It relies on a session for only a part of the time
// that the store has granted, by a clock that continues while the machine sleeps. When the record is
// gone, each node publishes how far its databases are, and the candidate that is furthest ahead takes
// the lease.
type Elected struct {
	c     Config
	store Store
	clock *Clock
	poked chan struct{} // wakes the session

	mu       sync.Mutex
	term     Term
	changed  chan struct{}
	deadline time.Duration // on the clock; the session may have expired after it
	rev      int64         // revision of the primary's record, while this node holds the lease
	given    int64         // revision of the primary's record on which this node no longer relies, because it tried to give it away
	claim    bool          // take the lease without a quorum
	holdoff  time.Duration // on the clock; this node does not take the lease before it
}

// NewElected returns a Lease. It does no I/O. Run closes the store.
func NewElected(c Config) *Elected {
	c.TTL, c.LockDelay = max(cmp.Or(c.TTL, DefaultTTL), MinTTL), cmp.Or(c.LockDelay, DefaultLockDelay)
	if c.Wall == nil {
		c.Wall = time.Now
	}
	return &Elected{c: c, store: c.Store, clock: NewClock(c.Wall), changed: make(chan struct{}), poked: make(chan struct{}, 1)}
}

// Run implements Lease. It returns ErrCluster if the records in the store are of another cluster.
func (e *Elected) Run(ctx context.Context, m Member) error {
	defer e.store.Close()
	for ctx.Err() == nil {
		err := e.session(ctx, m)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, ErrCluster) {
			return err
		}
		e.c.Log.Warn("no session of the lease's store", "error", err)
		_ = pause.For(ctx, e.c.TTL/renewals)
	}
	return nil
}

// ErrCluster is returned when the records of the lease are of another cluster than the node.
var ErrCluster = errors.New("the node belongs to another cluster")

// Term implements Lease.
func (e *Elected) Term() (Term, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term, e.changed
}

// Valid implements Lease.
func (e *Elected) Valid(epoch uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term.Held && e.term.Epoch == epoch && e.clock.Now() < e.deadline
}

// setTerm changes the term, if it differs. The caller holds e.mu.
func (e *Elected) setTerm(t Term) {
	if t.Epoch == e.term.Epoch && t.Held == e.term.Held && t.Primary == e.term.Primary {
		return
	}
	e.term = t
	close(e.changed)
	e.changed = make(chan struct{})
}

// poke wakes the session.
func (e *Elected) poke() {
	select {
	case e.poked <- struct{}{}:
	default:
	}
}

// renewed records that the store has granted the session another ttl, which counts from asked on the
// clock, when the request was sent.
func (e *Elected) renewed(asked, ttl time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	late := e.clock.Now() >= e.deadline
	e.deadline = max(e.deadline, asked+ttl-ttl/margin)
	if late {
		e.poke()
	}
}

// lapse ends a held term once the session's grant is over.
func (e *Elected) lapse() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term.Held && e.clock.Now() >= e.deadline {
		e.setTerm(Term{Epoch: e.term.Epoch}) // until a renewal proves that the record is still this node's
	}
}

// call bounds one call of the store.
func (e *Elected) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.c.TTL/patience)
}

// giveAway ends the term of this node, and returns the revision of the primary's record.
func (e *Elected) giveAway() (int64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.term.Held || e.clock.Now() >= e.deadline {
		return 0, ErrNotHeld
	}
	e.given = e.rev
	e.setTerm(Term{Epoch: e.term.Epoch})
	return e.rev, nil
}

// Handoff implements Lease.
func (e *Elected) Handoff(ctx context.Context, to uint64) error {
	key := nodeKey(to)
	bounded, cancel := e.call(ctx)
	defer cancel()
	got, err := e.store.Read(bounded)
	if err != nil {
		return fmt.Errorf("hand over the lease: %w", err)
	}
	record, ok := got.Records[key]
	if !ok {
		return fmt.Errorf("node %016X is not in the election", to)
	}
	var n nodeRecord
	if err := json.Unmarshal([]byte(record.Value), &n); err != nil {
		return fmt.Errorf("record %s: %w", key, err)
	}
	if !n.Candidate {
		return fmt.Errorf("%s is not a candidate", n.Hostname)
	}
	rev, err := e.giveAway()
	if err != nil {
		return err
	}
	defer e.poke()
	return e.swap(ctx, "hand over the lease", rev, Change{Put: []Put{
		{Key: keyPrimary, Value: encode(n.Peer), Session: record.Session},
		{Key: keyTerm, Value: encode(termRecord{Peer: n.Peer})},
	}})
}

// Resign implements Lease.
func (e *Elected) Resign(ctx context.Context) error {
	e.mu.Lock()
	e.holdoff = e.clock.Now() + 2*e.c.TTL
	e.mu.Unlock()
	rev, err := e.giveAway()
	if err != nil {
		return err
	}
	defer e.poke()
	return e.swap(ctx, "give up the lease", rev, Change{
		Delete: []string{keyPrimary}, Put: []Put{{Key: keyTerm, Value: encode(termRecord{Peer: e.c.Self, Resigned: true})}},
	})
}

// Claim implements Lease.
func (e *Elected) Claim() error {
	e.mu.Lock()
	e.claim, e.holdoff = true, 0
	e.mu.Unlock()
	e.poke()
	return nil
}

// SetQuorum implements Lease.
func (e *Elected) SetQuorum(ctx context.Context, epoch uint64, q Quorum) error {
	e.mu.Lock()
	rev, held := e.rev, e.term.Held && e.term.Epoch == epoch
	e.mu.Unlock()
	if !held {
		return ErrNotHeld
	}
	return e.swap(ctx, "note the quorum", rev, Change{Put: []Put{{Key: keyQuorum, Value: encode(q)}}})
}

// swap makes a change if the primary's record has the given revision.
func (e *Elected) swap(ctx context.Context, what string, rev int64, c Change) error {
	bounded, cancel := e.call(ctx)
	defer cancel()
	c.If = append(c.If, Condition{Key: keyPrimary, Revision: rev})
	_, done, err := e.store.Swap(bounded, c)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !done {
		return fmt.Errorf("%s: %w", what, ErrNotHeld)
	}
	return nil
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot fail: values of these types can be encoded
	}
	return string(b)
}

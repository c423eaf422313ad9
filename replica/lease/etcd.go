package lease

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/hangar-platform/hangar/internal/pause"
)

// Defaults of an EtcdConfig.
const (
	DefaultPrefix    = "/hangar-db"
	DefaultTTL       = 5 * time.Second
	DefaultLockDelay = time.Second
	MinTTL           = time.Second
)

// Parts of the TTL.
const (
	renewals = 5 // within one TTL
	// margin is the part of the TTL that this node does not use: by so much the clocks of etcd and of this node may
	// differ, and a commit that has begun may take.
	margin   = 5
	patience = 2 // for one call of etcd
)

// keepAlive is how often a silent connection to etcd is tried; servers refuse less than 5 seconds.
const keepAlive = 10 * time.Second

// maxReconnect bounds the time between two attempts to connect to etcd.
const maxReconnect = 2 * time.Second

// EtcdConfig says where the lease is kept, and for whom.
type EtcdConfig struct {
	Endpoints          []string    // "http://10.0.0.1:2379"
	TLS                *tls.Config // towards the Endpoints; nil: as their scheme says
	Username, Password string
	Prefix             string // of the keys of this cluster; empty: DefaultPrefix
	Self               Peer   // what others learn of this node; Run knows its ID
	Candidate          bool   // this node may be primary
	// TTL is how long the lease outlives a node that died, at least MinTTL; etcd may grant more. LockDelay is how
	// long others wait in addition, so that clocks may differ by that. 0: the defaults.
	TTL, LockDelay time.Duration
	// Dial opens connections to etcd; nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	Log  *slog.Logger
}

// Etcd is a Lease that is a key in etcd. The epoch is the revision of that key, which grows with each change.
//
// The holder renews its lease of etcd often, and believes in it only for a part of the time that etcd has granted,
// by a clock that runs on while the machine sleeps. When the key has gone, each node says how far it is; the
// candidate that is furthest takes the key.
type Etcd struct {
	c      EtcdConfig
	client *clientv3.Client
	clock  *Clock
	poked  chan struct{} // has the session look at its state

	mu       sync.Mutex
	term     Term
	changed  chan struct{}
	deadline time.Duration // of the clock, after which the lease of etcd may be over
	rev      int64         // of the primary's key, while it is this node's
	given    int64         // revision of a key of this node that it wanted to give away: it no longer relies on it
	claim    bool          // take the lease although the quorum is not there
	holdoff  time.Duration // of the clock, before which this node is no candidate
}

// NewEtcd returns a Lease that Run keeps. It connects in the background.
func NewEtcd(c EtcdConfig) (*Etcd, error) {
	c.Prefix = strings.TrimSuffix(cmp.Or(c.Prefix, DefaultPrefix), "/") + "/"
	c.TTL, c.LockDelay = max(cmp.Or(c.TTL, DefaultTTL), MinTTL), cmp.Or(c.LockDelay, DefaultLockDelay)
	options := []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnect},
		MinConnectTimeout: maxReconnect,
	})}
	if c.Dial != nil {
		options = append(options, grpc.WithContextDialer(c.Dial))
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: c.TLS, Username: c.Username, Password: c.Password,
		DialTimeout: c.TTL, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: c.TTL, DialOptions: options,
		Logger: zap.NewNop(), // what fails is an error of a call
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return &Etcd{c: c, client: client, clock: NewClock(), changed: make(chan struct{}), poked: make(chan struct{}, 1)}, nil
}

// Run implements Lease. It returns an error if the keys are of another cluster.
func (e *Etcd) Run(ctx context.Context, m Member) error {
	defer e.client.Close()
	for ctx.Err() == nil {
		err := e.session(ctx, m)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, ErrCluster) {
			return err
		}
		e.c.Log.Warn("no lease of etcd", "err", err)
		_ = pause.For(ctx, e.c.TTL/renewals)
	}
	return nil
}

// ErrCluster is returned when the keys in etcd are of another cluster than the node.
var ErrCluster = errors.New("the node belongs to another cluster")

// Term implements Lease.
func (e *Etcd) Term() (Term, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term, e.changed
}

// Valid implements Lease.
func (e *Etcd) Valid(epoch uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term.Held && e.term.Epoch == epoch && e.clock.Now() < e.deadline
}

// setTerm makes a term the present one, if it differs. e.mu is held.
func (e *Etcd) setTerm(t Term) {
	if t.Epoch == e.term.Epoch && t.Held == e.term.Held && t.Primary == e.term.Primary {
		return
	}
	e.term = t
	close(e.changed)
	e.changed = make(chan struct{})
}

// poke has the session look at its state.
func (e *Etcd) poke() {
	select {
	case e.poked <- struct{}{}:
	default:
	}
}

// renewed notes that etcd has granted the lease for ttl, which was asked for at a time of the clock.
func (e *Etcd) renewed(asked, ttl time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	late := e.clock.Now() >= e.deadline
	e.deadline = max(e.deadline, asked+ttl-ttl/margin)
	if late {
		e.poke()
	}
}

// call bounds one call of etcd.
func (e *Etcd) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.c.TTL/patience)
}

// giveAway stops relying on the key of a term that this node holds, and returns the revision of that key.
func (e *Etcd) giveAway() (int64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.term.Held || e.clock.Now() >= e.deadline {
		return 0, ErrNotHeld
	}
	e.given = e.rev
	e.setTerm(Term{Epoch: e.term.Epoch})
	return e.rev, nil
}

// Handoff implements Lease. If it fails, this node holds the lease again, in another term.
func (e *Etcd) Handoff(ctx context.Context, to uint64) error {
	key := e.c.Prefix + keyNode + fmt.Sprintf(nodeDigits, to)
	bounded, cancel := e.call(ctx)
	defer cancel()
	got, err := e.client.Get(bounded, key)
	if err != nil {
		return fmt.Errorf("hand over the lease: %w", err)
	}
	if len(got.Kvs) == 0 {
		return fmt.Errorf("node %016X has no lease of etcd", to)
	}
	var n nodeRecord
	if err := json.Unmarshal(got.Kvs[0].Value, &n); err != nil {
		return fmt.Errorf("etcd key %s: %w", key, err)
	}
	if !n.Candidate {
		return fmt.Errorf("%s is no candidate", n.Hostname)
	}
	rev, err := e.giveAway()
	if err != nil {
		return err
	}
	defer e.poke()
	peer, term := encode(n.Peer), encode(termRecord{Peer: n.Peer})
	return e.swap(ctx, "hand over the lease", rev,
		clientv3.OpPut(e.c.Prefix+keyPrimary, peer, clientv3.WithLease(clientv3.LeaseID(got.Kvs[0].Lease))),
		clientv3.OpPut(e.c.Prefix+keyTerm, term))
}

// Resign implements Lease.
func (e *Etcd) Resign(ctx context.Context) error {
	e.mu.Lock()
	e.holdoff = e.clock.Now() + 2*e.c.TTL
	e.mu.Unlock()
	rev, err := e.giveAway()
	if err != nil {
		return err
	}
	defer e.poke()
	return e.swap(ctx, "give up the lease", rev,
		clientv3.OpDelete(e.c.Prefix+keyPrimary),
		clientv3.OpPut(e.c.Prefix+keyTerm, encode(termRecord{Peer: e.c.Self, Resigned: true})))
}

// Claim implements Lease.
func (e *Etcd) Claim() error {
	e.mu.Lock()
	e.claim, e.holdoff = true, 0
	e.mu.Unlock()
	e.poke()
	return nil
}

// SetQuorum implements Lease.
func (e *Etcd) SetQuorum(ctx context.Context, epoch uint64, q Quorum) error {
	e.mu.Lock()
	rev, held := e.rev, e.term.Held && e.term.Epoch == epoch
	e.mu.Unlock()
	if !held {
		return ErrNotHeld
	}
	return e.swap(ctx, "note the quorum", rev, clientv3.OpPut(e.c.Prefix+keyQuorum, encode(q)))
}

// swap does something while the primary's key has a revision.
func (e *Etcd) swap(ctx context.Context, what string, rev int64, ops ...clientv3.Op) error {
	bounded, cancel := e.call(ctx)
	defer cancel()
	r, err := e.client.Txn(bounded).If(clientv3.Compare(clientv3.ModRevision(e.c.Prefix+keyPrimary), "=", rev)).Then(ops...).Commit()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !r.Succeeded {
		return fmt.Errorf("%s: %w", what, ErrNotHeld)
	}
	return nil
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // no value of these types is without an encoding
	}
	return string(b)
}

package replica

import (
	"context"
	"math"
	"sync"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/measure"
	"github.com/hangar-platform/hangar/replica/tail"
)

// observers are the packages and programs around a node that wait for its changes, need its log, or
// add to its metrics.
type observers struct {
	mu      sync.Mutex
	changed chan struct{} // closed with each change of a position or a role; nil without waiters
	needs   []func(db string) ltx.TXID
	sources []measure.Source
}

// notify wakes the waiters for a position or role. It does not block.
func (o *observers) notify() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}

// until waits until ok returns true. It calls ok after each change.
func (o *observers) until(ctx context.Context, ok func() bool) error {
	for {
		o.mu.Lock()
		if o.changed == nil {
			o.changed = make(chan struct{})
		}
		changed := o.changed
		o.mu.Unlock()
		if ok() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// keep returns the last transaction of a database that no package around the node needs.
func (o *observers) keep(db string) ltx.TXID {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := ltx.TXID(math.MaxUint64)
	for _, needs := range o.needs {
		all = min(all, needs(db))
	}
	return all
}

// KeepLog makes the logs keep the transactions after the one that needs returns, within Config.LogLimit.
func (n *Node) KeepLog(needs func(db string) ltx.TXID) {
	n.observers.mu.Lock()
	defer n.observers.mu.Unlock()
	n.observers.needs = append(n.observers.needs, needs)
}

// Measure adds the series of a source to GET /metrics.
func (n *Node) Measure(s measure.Source) {
	n.observers.mu.Lock()
	defer n.observers.mu.Unlock()
	n.observers.sources = append(n.observers.sources, s)
}

// WaitPrimary waits until the node is the primary or connected to one. It returns the hostname of the
// primary, or "" for this node.
func (n *Node) WaitPrimary(ctx context.Context) (string, error) {
	var hostname string
	err := n.observers.until(ctx, func() bool {
		var ok bool
		hostname, ok = n.Primary()
		return ok || n.Writable()
	})
	return hostname, err
}

// PrimaryPeer returns the primary: this node, or the one to which this node is connected. ok is false if
// there is none.
func (n *Node) PrimaryPeer() (peer lease.Peer, self, ok bool) {
	if n.Writable() {
		return lease.Peer{Node: n.ID(), Hostname: n.c.Hostname}, true, true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.upstream, false, n.upstream != lease.Peer{}
}

// Position returns the ID of the last transaction of a database, 0 if there is none.
func (n *Node) Position(name string) ltx.TXID {
	db := n.Find(name)
	if db == nil {
		return 0
	}
	return db.Pos().TXID
}

// Committed returns the last transaction of a database, 0 if there is none, and the epoch in which it was
// committed. With capture Tail it first waits until everything is captured that programs have committed so
// far. With an error, there may be later transactions.
func (n *Node) Committed(ctx context.Context, name string) (epoch uint64, id ltx.TXID, err error) {
	if t, ok := n.captures().(*tail.Tail); ok {
		err = t.Settled(ctx, name)
	}
	if db := n.Find(name); db != nil {
		epoch, id = db.Mark()
	}
	return epoch, id, err
}

// WaitMark waits until readers of a database on this node see a transaction that was committed in an
// epoch, or one of a later epoch: a new primary reuses the IDs of transactions that were lost. Epoch 0
// means any epoch.
func (n *Node) WaitMark(ctx context.Context, name string, epoch uint64, id ltx.TXID) error {
	wanted := lease.Mark{Epoch: epoch, TXID: uint64(id)}
	return n.observers.until(ctx, func() bool {
		db := n.Find(name)
		if db == nil {
			return id == 0
		}
		at, last := db.Mark()
		if epoch == 0 {
			return last >= id
		}
		return !(lease.Mark{Epoch: at, TXID: uint64(last)}).Before(wanted)
	})
}

// PrimaryEpoch returns the epoch in which this node is the primary, 0 if it is not.
func (n *Node) PrimaryEpoch() uint64 {
	epoch := n.leading.Load()
	if epoch == 0 || !n.c.Lease.Valid(epoch) {
		return 0
	}
	return epoch
}

// WaitTXID waits until readers of a database on this node see a transaction.
func (n *Node) WaitTXID(ctx context.Context, db string, id ltx.TXID) error {
	return n.observers.until(ctx, func() bool { return n.Position(db) >= id })
}

// WaitReplicas waits, on the primary, until a number of connected candidates have a transaction of a
// database. With at least Config.Replicas of them, it also waits until an election cannot lose the
// transaction. It returns database.ErrFenced if this node is not the primary, or no longer: then other
// nodes may have the transaction or not.
func (n *Node) WaitReplicas(ctx context.Context, name string, id ltx.TXID, replicas int) error {
	for {
		news := n.sender.News()
		_, changed := n.c.Lease.Term()
		enough := len(n.candidates(map[string]ltx.TXID{name: id})) > replicas && (replicas < n.c.Replicas || n.stored(name, id))
		if !n.Writable() {
			return database.ErrFenced
		}
		if enough {
			return nil
		}
		select {
		case <-news:
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

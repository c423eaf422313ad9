package replica

import (
	"context"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/tail"
)

// What a proxy before an App asks its node: who the primary is, what the node has, and whether others have it.

// PrimaryPeer returns the node that may be written: this one, or the one that this node follows. ok is false while
// none is known.
func (n *Node) PrimaryPeer() (peer lease.Peer, self, ok bool) {
	if n.Writable() {
		return lease.Peer{Node: n.ID(), Hostname: n.c.Hostname}, true, true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.upstream, false, n.upstream != lease.Peer{}
}

// AwaitPrimary waits until a primary is known, and returns what PrimaryPeer does. It returns the cause of the end
// of ctx.
func (n *Node) AwaitPrimary(ctx context.Context) (peer lease.Peer, self bool, err error) {
	err = n.beside.until(ctx, func() bool {
		var ok bool
		peer, self, ok = n.PrimaryPeer()
		return ok
	})
	return peer, self, err
}

// Position returns the ID of the last transaction of a database, 0 if there is none.
func (n *Node) Position(name string) ltx.TXID {
	db := n.Find(name)
	if db == nil {
		return 0
	}
	return db.Pos().TXID
}

// settleTime bounds how long Committed waits for capture.
const settleTime = time.Second

// Committed is Position, but where logs are read it first waits until what programs have committed so far is
// captured.
func (n *Node) Committed(ctx context.Context, name string) ltx.TXID {
	if t, ok := n.captures().(*tail.Tail); ok {
		ctx, cancel := context.WithTimeout(ctx, settleTime)
		defer cancel()
		if err := t.Settled(ctx, name); err != nil {
			n.c.Log.Warn("it is not known whether all transactions are captured", "db", name, "err", err)
		}
	}
	return n.Position(name)
}

// AwaitPosition waits until readers of a database on this node see a transaction. It returns the cause of the end
// of ctx.
func (n *Node) AwaitPosition(ctx context.Context, name string, id ltx.TXID) error {
	return n.beside.until(ctx, func() bool { return n.Position(name) >= id })
}

// AwaitReplicas waits, on the primary, until a transaction of a database is on as many connected candidates. It
// returns the cause of the end of ctx, or database.ErrFenced if this node is not, or no longer, the primary: then it
// is not known whether others have the transaction. With Config.Replicas of them, it is also not returned before
// the transaction is safe from an election.
func (n *Node) AwaitReplicas(ctx context.Context, name string, id ltx.TXID, replicas int) error {
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

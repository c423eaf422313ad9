package replica

import (
	"context"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/lease"
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
	for {
		if peer, self, ok := n.PrimaryPeer(); ok {
			return peer, self, nil
		}
		if pause.For(ctx, 5*time.Millisecond) != nil {
			return lease.Peer{}, false, context.Cause(ctx)
		}
	}
}

// Position returns the ID of the last transaction of a database, 0 if there is none.
func (n *Node) Position(name string) ltx.TXID {
	db := n.Find(name)
	if db == nil {
		return 0
	}
	return db.Pos().TXID
}

// AwaitPosition waits until a database of this node has a transaction. It returns the cause of the end of ctx.
func (n *Node) AwaitPosition(ctx context.Context, name string, id ltx.TXID) error {
	for {
		db := n.Find(name)
		if db == nil {
			if pause.For(ctx, 5*time.Millisecond) != nil {
				return context.Cause(ctx)
			}
			continue
		}
		changed := db.Log().Changed()
		if db.Pos().TXID >= id {
			return nil
		}
		// The log has a transaction shortly before the database has.
		if db.Log().Pos().TXID >= id {
			if pause.For(ctx, time.Millisecond) != nil {
				return context.Cause(ctx)
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
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

package replica

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/lease"
)

// syncing tracks on which nodes a transaction must be before it is acknowledged.
type syncing struct {
	mu   sync.Mutex
	now  lease.Quorum        // in the lease
	next *lease.Quorum       // possibly in the lease
	late map[string]ltx.TXID // by database: a transaction that replicas did not get in time
	last map[string]ltx.TXID // by database: the last acknowledged transaction of this term
	outs int                 // commits that were not acknowledged in time
}

// ErrNotSynced is returned for a transaction that too few replicas have acknowledged in time.
var ErrNotSynced = errors.New("not enough replicas have the transaction")

// quorum maintains the record of the nodes that have all transactions.
type quorum struct{ *Node }

// beginSync takes over the quorum of earlier terms.
func (n quorum) beginSync(term lease.Term) {
	n.sync.mu.Lock()
	defer n.sync.mu.Unlock()
	n.sync.now, n.sync.next = term.Quorum, nil
	clear(n.sync.late)
	clear(n.sync.last)
}

// stored reports whether enough nodes have a transaction of this primary.
func (n *Node) stored(db string, id ltx.TXID) bool {
	if n.c.Replicas == 0 {
		return true
	}
	has := n.candidates(map[string]ltx.TXID{db: id})
	if n.fixed() {
		return len(has) > n.c.Replicas
	}
	n.sync.mu.Lock()
	defer n.sync.mu.Unlock()
	is := func(node uint64) bool { return slices.Contains(has, node) }
	return n.sync.now.Copies > n.c.Replicas && n.sync.now.Stores(is) && (n.sync.next == nil || n.sync.next.Stores(is))
}

// fixed reports whether the primary never changes.
func (n *Node) fixed() bool {
	_, fixed := n.c.Lease.(*lease.Static)
	return fixed
}

// late reports whether a database still waits for replicas to acknowledge a transaction that timed
// out.
func (n *Node) late(db *database.DB) bool {
	if n.c.Replicas == 0 {
		return false
	}
	n.sync.mu.Lock()
	id, late := n.sync.late[db.Name()]
	n.sync.mu.Unlock()
	if !late || !n.stored(db.Name(), id) {
		return late
	}
	n.sync.mu.Lock()
	defer n.sync.mu.Unlock()
	if n.sync.late[db.Name()] == id {
		delete(n.sync.late, db.Name())
		n.sync.last[db.Name()] = max(n.sync.last[db.Name()], id)
	}
	return false
}

// Replicated implements mount.Databases.
func (n programs) Replicated(ctx context.Context, db *database.DB) error {
	if f, ok := n.forwarding(db.Name()); ok && !n.Writable() {
		err := n.send(ctx, db, f)
		if err != nil {
			n.c.Log.Error("a transaction that was committed here does not reach the primary", "db", db.Name(), "error", err)
		}
		return err
	}
	if n.c.Replicas == 0 {
		return nil
	}
	name, id := db.Name(), db.Pos().TXID
	n.sync.mu.Lock()
	_, late := n.sync.late[name]
	n.sync.mu.Unlock()
	if late {
		return nil // undoing a late transaction does not wait
	}
	err := n.await(ctx, name, id, n.c.SyncTimeout)
	if errors.Is(err, database.ErrFenced) {
		return err // whether others have it depends on the next primary
	}
	n.sync.mu.Lock()
	if err == nil {
		n.sync.last[name] = max(n.sync.last[name], id)
		n.sync.mu.Unlock()
		return nil
	}
	n.sync.late[name] = id
	n.sync.outs++
	n.sync.mu.Unlock()
	n.c.Log.Error("a transaction was not acknowledged: the database accepts no other one until it is", "db", name, "txid", id.String(),
		"replicas", n.c.Replicas, "error", err)
	return err
}

// unacknowledged returns how many transactions were not acknowledged in time so far.
func (n *Node) unacknowledged() int {
	n.sync.mu.Lock()
	defer n.sync.mu.Unlock()
	return n.sync.outs
}

// await waits until enough nodes have a transaction.
func (n programs) await(ctx context.Context, db string, id ltx.TXID, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		news := n.sender.News()
		_, changed := n.c.Lease.Term()
		if n.stored(db, id) {
			// After the term, the next primary may have been elected without this commit.
			if !n.Writable() {
				return database.ErrFenced
			}
			return nil
		}
		if !n.Writable() {
			return database.ErrFenced
		}
		select {
		case <-news:
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return ErrNotSynced
		}
	}
}

// Synced implements mount.Databases.
func (n programs) Synced(db *database.DB) (ltx.TXID, uint64, bool) {
	epoch := n.leading.Load()
	id := db.Pos().TXID
	if !n.stored(db.Name(), id) {
		n.sync.mu.Lock()
		id = n.sync.last[db.Name()]
		n.sync.mu.Unlock()
	}
	return id, epoch, n.Writable() && epoch == n.leading.Load()
}

// quorumPause is the minimum time between changes of the quorum.
const quorumPause = 200 * time.Millisecond

// keepQuorum keeps the quorum equal to the connected, caught-up candidates until ctx ends.
func (n quorum) keepQuorum(ctx context.Context, term lease.Term) {
	for n.c.Replicas == 0 && term.Quorum.Promises() && ctx.Err() == nil {
		// The configuration no longer requires a quorum.
		if n.c.Lease.SetQuorum(ctx, term.Epoch, lease.Quorum{}) == nil {
			break
		}
		_ = pause.For(ctx, quorumPause)
	}
	for n.c.Replicas > 0 && !n.fixed() && ctx.Err() == nil {
		news := n.sender.News()
		if err := n.changeQuorum(ctx, term); err != nil && ctx.Err() == nil {
			n.c.Log.Warn("the quorum was not recorded", "error", err)
		}
		select {
		case <-news:
			_ = pause.For(ctx, quorumPause)
		case <-ctx.Done():
		}
	}
	<-ctx.Done()
}

// changeQuorum changes the quorum if it differs from the connected candidates.
func (n quorum) changeQuorum(ctx context.Context, term lease.Term) error {
	n.sync.mu.Lock()
	now := n.sync.now
	n.sync.mu.Unlock()
	next := lease.Quorum{Nodes: n.candidates(nil), Copies: n.c.Replicas + 1}
	if next.Equal(now) || len(next.Nodes) < next.Copies {
		return nil
	}
	n.setNext(&next) // from here on, a transaction must be stored by both quorums
	// Once the nodes of the next quorum have the current positions, they have all commits that were
	// acknowledged before.
	marks := map[string]ltx.TXID{}
	for _, db := range n.All() {
		marks[db.Name()] = db.Pos().TXID
	}
	for {
		news := n.sender.News()
		if within(next.Nodes, n.candidates(marks)) {
			break
		}
		if !slices.Equal(next.Nodes, n.candidates(nil)) {
			// Another quorum is needed, with which commits may not have to wait for a node that does not answer. This
			// one is not in the lease yet.
			n.setNext(nil)
			n.sender.Announce()
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil
		}
	}
	for {
		err := n.c.Lease.SetQuorum(ctx, term.Epoch, next)
		if err == nil {
			break
		}
		if ctx.Err() != nil || errors.Is(err, lease.ErrNotHeld) {
			return err
		}
		// The lease may have the new quorum: until that is known, both count.
		n.c.Log.Warn("the quorum was not recorded", "error", err)
		if pause.For(ctx, quorumPause) != nil {
			return err
		}
	}
	n.sync.mu.Lock()
	n.sync.now, n.sync.next = next, nil
	n.sync.mu.Unlock()
	n.sender.Announce()
	return nil
}

// within reports whether others contains all of nodes.
func within(nodes, others []uint64) bool {
	return !slices.ContainsFunc(nodes, func(node uint64) bool { return !slices.Contains(others, node) })
}

func (n quorum) setNext(q *lease.Quorum) {
	n.sync.mu.Lock()
	defer n.sync.mu.Unlock()
	n.sync.next = q
}

// candidates returns this node and the connected candidates that have all of marks. With a fixed
// primary, all replicas count.
func (n *Node) candidates(marks map[string]ltx.TXID) []uint64 {
	all := map[uint64]bool{n.ID(): true}
	for _, f := range n.sender.Followers(marks) {
		if f.Candidate || n.fixed() {
			all[f.Node] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

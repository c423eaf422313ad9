package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/tail"
)

// Run is primary or follows one, as the lease has it, until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.c.Lease.Run(ctx) })
	g.Go(func() error { return n.play(ctx) })
	if t, ok := n.captures().(*tail.Tail); ok {
		g.Go(func() error { return t.Run(ctx) })
	}
	g.Go(func() error {
		for pause.For(ctx, n.c.TrimInterval) == nil {
			if err := n.trim(); err != nil {
				n.c.Log.Error("old transactions could not be removed", "err", err)
			}
		}
		return nil
	})
	return g.Wait()
}

// play takes the part of each term.
func (n *Node) play(ctx context.Context) error {
	for ctx.Err() == nil {
		term, changed := n.c.Lease.Term()
		inTerm, end := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- n.during(inTerm, term) }()
		var err error
		select {
		case <-ctx.Done():
		case <-changed:
		case err = <-done:
			done <- nil
		}
		end()
		if err = errors.Join(err, <-done); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// during is one term.
func (n *Node) during(ctx context.Context, term lease.Term) error {
	if !term.Held {
		if n.writable.Swap(false) {
			n.c.Log.Info("no longer the primary")
		}
		n.setRole()
		if term.Primary.URL == "" {
			<-ctx.Done()
			return nil
		}
		return n.follow(ctx, term.Primary)
	}
	if err := n.lead(term); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// lead makes this node the primary.
func (n *Node) lead(term lease.Term) error {
	n.mu.Lock()
	n.id.Epoch = max(n.id.Epoch, term.Epoch)
	if n.id.Cluster == "" {
		n.id.Cluster = newClusterID()
	}
	err := n.saveIdentity()
	n.mu.Unlock()
	if err != nil {
		return err
	}
	n.writable.Store(true)
	for _, db := range n.All() {
		db.SetEpoch(term.Epoch)
		if !n.strict {
			continue // whoever reads the log of a database compares the two, while no one writes
		}
		differed, err := db.Reconcile()
		if err != nil {
			n.writable.Store(false)
			return fmt.Errorf("database %s: %w", db.Name(), err)
		}
		if differed {
			n.c.Log.Warn("a database differed from its log, which begins anew", "db", db.Name(), "pos", db.Pos().String())
		}
	}
	n.c.Log.Info("primary", "epoch", term.Epoch)
	n.setRole()
	n.once.Do(func() { close(n.ready) })
	return nil
}

// connected notes which primary the node is connected to; the zero Peer means none.
func (n *Node) connected(to lease.Peer) {
	n.mu.Lock()
	n.upstream = to
	n.mu.Unlock()
	n.setRole()
}

// caughtUp notes that the primary has said that the node has all its transactions.
func (n *Node) caughtUp(at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard, n.followed = at, true
	n.once.Do(func() { close(n.ready) })
}

// Ready waits until the node is the primary, or has had all transactions of the primary.
func (n *Node) Ready(ctx context.Context) error {
	select {
	case <-n.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close stops to show the databases and closes them. The caller has ended Run.
func (n *Node) Close() error {
	n.hub.Close()
	n.writable.Store(false) // a program that still has a database open commits nothing more
	var err error
	if c := n.captures(); c != nil {
		err = c.Close()
	}
	return errors.Join(err, n.closeDatabases())
}

// captures returns what sees commits, or nil before Open.
func (n *Node) captures() capturer {
	n.captureMu.Lock()
	defer n.captureMu.Unlock()
	return n.capture
}

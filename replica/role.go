package replica

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/stream"
	"github.com/hangar-platform/hangar/replica/tail"
)

// Run is the primary or follows it, as the lease decides, until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.c.Lease.Run(ctx, member{n}) })
	g.Go(func() error {
		roles{n}.run(ctx)
		return nil
	})
	if t, ok := n.captures().(*tail.Tail); ok {
		g.Go(func() error { return t.Run(ctx) })
	}
	g.Go(func() error {
		_ = pause.Between(ctx, pause.Backoff{First: minBackoff, Most: maxBackoff}, roles{n}.finish, func(err error) {
			n.c.Log.Error("the last transaction of a database cannot be written yet, and programs cannot write to it", "error", err)
		})
		return nil
	})
	g.Go(func() error {
		for pause.For(ctx, n.c.TrimInterval) == nil {
			if err := n.trim(); err != nil {
				n.c.Log.Error("old transactions could not be removed", "error", err)
			}
		}
		return nil
	})
	return g.Wait()
}

// roles makes a node lead or follow, as the terms of the lease require.
type roles struct{ *Node }

// run leads or follows, term after term, until ctx ends.
func (n roles) run(ctx context.Context) {
	for ctx.Err() == nil {
		term, changed := n.c.Lease.Term()
		inTerm, end := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() { n.runTerm(inTerm, term) })
		select {
		case <-ctx.Done():
		case <-changed:
		}
		end()
		running.Wait()
	}
}

// runTerm leads or follows in one term, until ctx ends.
func (n roles) runTerm(ctx context.Context, term lease.Term) {
	if !term.Held {
		n.setRole()
		if term.Primary.URL == "" {
			<-ctx.Done()
			return
		}
	}
	n.roleMu.Lock()
	defer n.roleMu.Unlock()
	n.insist(ctx, term, func() error { return n.raise(term.Epoch) })
	if !term.Held {
		n.follow(ctx, term.Primary)
		return
	}
	defer func() {
		if n.leading.Swap(0) != 0 {
			n.c.Log.Info("no longer the primary", "epoch", term.Epoch)
		}
	}()
	n.insist(ctx, term, func() error { return n.lead(ctx, term) })
	quorum(n).keepQuorum(ctx, term)
}

// insist does something that a role needs, until it succeeds or ctx ends. Meanwhile the node has no role, and another
// candidate may take the lease.
func (n roles) insist(ctx context.Context, term lease.Term, do func() error) {
	if ctx.Err() != nil {
		return
	}
	trying, done := context.WithCancel(ctx)
	defer done()
	_ = pause.Between(trying, pause.Backoff{First: minBackoff, Most: maxBackoff}, func(context.Context) error {
		err := do()
		if err == nil {
			done()
			return nil
		}
		n.setRole()
		if term.Held {
			n.resign(ctx)
		}
		return err
	}, func(err error) {
		n.c.Log.Error("the node cannot take its role yet", "primary", term.Held, "epoch", term.Epoch, "error", err)
	})
}

// resign gives up a lease that this node cannot use.
func (n roles) resign(ctx context.Context) {
	err := finish.Do(ctx, resignTimeout, func(ctx finish.Context) error { return n.c.Lease.Resign(ctx) })
	if err != nil && !errors.Is(err, lease.ErrNotHeld) && !errors.Is(err, lease.ErrFixed) {
		n.c.Log.Warn("the lease was not given up", "error", err)
	}
}

// raise records an epoch. The node then rejects everything of an earlier epoch.
func (n *Node) raise(epoch uint64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.identify(n.id.Cluster, max(epoch, n.id.Epoch))
}

// epoch returns the highest epoch that the node has seen.
func (n *Node) epoch() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.id.Epoch
}

// gatherTimeout bounds how long a new primary fetches transactions from others.
const gatherTimeout = 30 * time.Second

// gather fetches the transactions that the other nodes of the election have and this one lacks.
func (n roles) gather(ctx context.Context, term lease.Term) error {
	ctx, cancel := context.WithTimeout(ctx, gatherTimeout)
	defer cancel()
	transport := n.newTransport()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var errs []error
	for _, s := range term.Heard {
		if s.Unclear(n.marks()) {
			marks, err := askMarks(ctx, client, s.URL)
			if err != nil {
				errs = append(errs, fmt.Errorf("databases of %s: %w", s.Hostname, err))
			}
			s.Marks = marks
		}
		for _, name := range s.Ahead(n.marks()) {
			db, err := n.Database(name, true)
			if err == nil {
				err = db.Settle(ctx)
			}
			got := 0
			if err == nil {
				got, err = stream.Fetch(ctx, client, s.URL, db)
			}
			if got > 0 {
				n.c.Log.Info("fetched transactions from another node", "db", name, "from", s.Hostname, "count", got)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("database %s of %s: %w", name, s.Hostname, err))
			}
		}
	}
	return errors.Join(errs...)
}

// marksLimit bounds the marks of another node, in bytes.
const marksLimit = 64 << 20

// askMarks returns how far the databases of another node are.
func askMarks(ctx context.Context, client *http.Client, node string) (marks map[string]lease.Mark, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(node, "/")+"/marks", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", node, resp.Status)
	}
	return marks, json.NewDecoder(io.LimitReader(resp.Body, marksLimit)).Decode(&marks)
}

// resignTimeout bounds giving up an unusable lease.
const resignTimeout = 5 * time.Second

// lead makes this node the primary.
func (n roles) lead(ctx context.Context, term lease.Term) error {
	if err := n.gather(ctx, term); err != nil && ctx.Err() == nil {
		if term.Quorum.Promises() {
			n.c.Log.Error("not the primary: acknowledged transactions cannot be fetched from other nodes", "error", err)
			n.resign(ctx)
			<-ctx.Done()
			return nil
		}
		n.c.Log.Warn("transactions of another node cannot be fetched, and may be lost", "error", err)
	}
	n.mu.Lock()
	err := n.identify(cmp.Or(n.id.Cluster, lease.NewClusterID()), n.id.Epoch)
	n.mu.Unlock()
	if err != nil {
		return err
	}
	n.holds.Add(1) // until the databases match their positions
	admit := sync.OnceFunc(func() { n.holds.Add(-1) })
	defer admit()
	epoch := n.epoch()
	for _, db := range n.All() {
		db.SetEpoch(epoch)
		err := n.finishOne(ctx, db)
		if err != nil && term.Quorum.Promises() {
			return fmt.Errorf("an acknowledged transaction is missing: %w", err)
		}
		if err != nil {
			n.c.Log.Warn("the last transaction of a database cannot be written yet, and programs cannot write to it", "error", err)
		}
	}
	quorum(n).beginSync(term)
	n.leading.Store(term.Epoch)
	for _, db := range n.All() {
		if !n.strict || database.Torn(db) {
			continue // the tail compares the database with its position while no program writes
		}
		differed, err := db.Reconcile()
		if errors.Is(err, database.ErrFenced) {
			return nil // the term is already over
		}
		if err != nil {
			n.leading.Store(0)
			return fmt.Errorf("database %s: %w", db.Name(), err)
		}
		if differed {
			n.c.Log.Warn("a database differed from its position: its content became a new transaction", "db", db.Name(), "pos", db.Pos().String())
		}
	}
	admit() // before clients see that this node is the primary
	n.setRole()
	n.c.Log.Info("primary", "epoch", epoch)
	n.once.Do(func() { close(n.ready) })
	return nil
}

// finish writes what could not be written while this node was the primary already.
func (n roles) finish(ctx context.Context) error {
	var errs []error
	for _, db := range n.All() {
		if n.Writable() {
			errs = append(errs, n.finishOne(ctx, db))
		}
	}
	return errors.Join(errs...)
}

// finishOne writes the last transaction of the log of a database if it is missing.
func (n roles) finishOne(ctx context.Context, db *database.DB) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := database.Finish(ctx, db); err != nil {
		return fmt.Errorf("database %s: %w", db.Name(), err)
	}
	return nil
}

// connected records the primary that the node is connected to; the zero Peer means none.
func (n *Node) connected(to lease.Peer) {
	n.mu.Lock()
	n.upstream = to
	n.mu.Unlock()
	n.setRole()
}

// Ready waits until the node has become the primary, or has caught up with one.
func (n *Node) Ready(ctx context.Context) error {
	select {
	case <-n.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close unmounts and closes the databases. The caller has ended Run.
func (n *Node) Close() error {
	n.hub.Close()
	n.leading.Store(0) // open programs cannot commit any more
	var err error
	if c := n.captures(); c != nil {
		err = c.Close()
	}
	return errors.Join(err, n.closeDatabases())
}

// captures returns the capturer, or nil before Open.
func (n *Node) captures() capturer {
	n.captureMu.Lock()
	defer n.captureMu.Unlock()
	return n.capture
}

package replica

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/tail"
)

// beside is what programs and packages beside a node have to do with it.
type beside struct {
	mu         sync.Mutex
	changed    chan struct{} // closed with each change of a position or a role; nil while no one waits
	needs      []func(db string) ltx.TXID
	collectors []prometheus.Collector
}

// tell wakes those who wait for a position or a role. It does not block.
func (b *beside) tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// until waits until ok, which is called again after each change.
func (b *beside) until(ctx context.Context, ok func() bool) error {
	for {
		b.mu.Lock()
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
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

// keep returns the last transaction of a database that nothing beside the node needs.
func (b *beside) keep(db string) ltx.TXID {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := ltx.TXID(math.MaxUint64)
	for _, needs := range b.needs {
		all = min(all, needs(db))
	}
	return all
}

// KeepLog has the log keep transactions after that which needs returns, within Config.LogLimit.
func (n *Node) KeepLog(needs func(db string) ltx.TXID) {
	n.beside.mu.Lock()
	defer n.beside.mu.Unlock()
	n.beside.needs = append(n.beside.needs, needs)
}

// Measure has GET /metrics answer with another collector, too. It is called before Handler.
func (n *Node) Measure(c prometheus.Collector) {
	n.beside.mu.Lock()
	defer n.beside.mu.Unlock()
	n.beside.collectors = append(n.beside.collectors, c)
}

// WaitPrimary waits until the node is the primary or connected to one, and returns the hostname of that
// one, or "" for itself.
func (n *Node) WaitPrimary(ctx context.Context) (string, error) {
	var hostname string
	err := n.beside.until(ctx, func() bool {
		var ok bool
		hostname, ok = n.Primary()
		return ok || n.Writable()
	})
	return hostname, err
}

func (n *Node) txid(db string) ltx.TXID {
	if d := n.Find(db); d != nil {
		return d.Pos().TXID
	}
	return 0
}

// settleTime bounds how long Committed waits for capture.
const settleTime = time.Second

// Committed returns the last transaction of a database, 0 if there is none. Where logs are read it waits until
// what programs have committed so far is captured.
func (n *Node) Committed(ctx context.Context, db string) ltx.TXID {
	if t, ok := n.captures().(*tail.Tail); ok {
		ctx, cancel := context.WithTimeout(ctx, settleTime)
		defer cancel()
		if err := t.Settled(ctx, db); err != nil {
			n.c.Log.Warn("it is not known whether all transactions are captured", "db", db, "err", err)
		}
	}
	return n.txid(db)
}

// WaitTXID waits until readers of a database on this node see a transaction.
func (n *Node) WaitTXID(ctx context.Context, db string, id ltx.TXID) error {
	return n.beside.until(ctx, func() bool { return n.txid(db) >= id })
}

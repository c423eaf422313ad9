package replica

import (
	"context"
	"math"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/superfly/ltx"
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

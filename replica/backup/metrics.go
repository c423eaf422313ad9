package backup

import (
	"sync"
	"time"

	"github.com/hangar-platform/hangar/replica/measure"
)

// counts are what a Backup has done.
type counts struct {
	mu                                                 sync.Mutex
	failures, transactions, snapshots, deleted, merged int
	bytes                                              int64
	last                                               time.Time // when something was last stored
}

func (c *counts) add(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *counts) failed()       { c.add(func() { c.failures++ }) }
func (c *counts) stored(n int)  { c.add(func() { c.transactions += n }) }
func (c *counts) snapshot()     { c.add(func() { c.snapshots++ }) }
func (c *counts) removed(n int) { c.add(func() { c.deleted += n }) }
func (c *counts) joined()       { c.add(func() { c.merged++ }) }
func (c *counts) sent(n int64) {
	c.add(func() {
		c.bytes += n
		c.last = time.Now()
	})
}

// Measure implements measure.Source.
func (b *Backup) Measure(p *measure.Page) {
	const prefix = "hangar_db_backup_"
	b.counts.mu.Lock()
	c := &b.counts
	last := 0.0
	if !c.last.IsZero() {
		last = float64(c.last.UnixMilli()) / 1000
	}
	p.Counter(prefix+"errors_total", "Attempts of the backup that have failed.", float64(c.failures))
	p.Counter(prefix+"transactions_total", "Transactions that were stored.", float64(c.transactions))
	p.Counter(prefix+"snapshots_total", "Snapshots that were stored.", float64(c.snapshots))
	p.Counter(prefix+"removed_objects_total", "Objects of the backup that were removed.", float64(c.deleted))
	p.Counter(prefix+"merged_objects_total", "Objects that were made of older ones.", float64(c.merged))
	p.Counter(prefix+"sent_bytes_total", "Bytes that were stored.", float64(c.bytes))
	p.Gauge(prefix+"last_success_timestamp_seconds", "When something was stored last; 0 if nothing was.", last)
	b.counts.mu.Unlock()
	if _, _, _, ok := b.o.Node.Leading(); !ok {
		return
	}
	for _, db := range b.o.Node.All() {
		b.mu.Lock()
		var stored uint64
		if s := b.states[db.Name()]; s != nil {
			stored = uint64(s.cursor.TXID)
		}
		b.mu.Unlock()
		behind := float64(uint64(db.Pos().TXID)) - float64(stored)
		p.Gauge(prefix+"behind_transactions", "Transactions that the backup does not have yet.", max(0, behind), "db", db.Name())
	}
}

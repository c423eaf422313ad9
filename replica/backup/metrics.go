package backup

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are what a Backup has done.
type counts struct {
	mu                                                 sync.Mutex
	failures, transactions, snapshots, deleted, merged int
	bytes                                              int64
	last                                               time.Time // when something was stored
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

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("hangar_db_backup_"+name, help, labels, nil)
}

var (
	errorsDesc       = describe("errors_total", "Attempts of the backup that have failed.")
	transactionsDesc = describe("transactions_total", "Transactions that were stored.")
	snapshotsDesc    = describe("snapshots_total", "Snapshots that were stored.")
	removedDesc      = describe("removed_objects_total", "Objects of the backup that were removed.")
	mergedDesc       = describe("merged_objects_total", "Objects that were made of older ones.")
	bytesDesc        = describe("sent_bytes_total", "Bytes that were stored.")
	lastDesc         = describe("last_success_timestamp_seconds", "When something was stored last; 0 if nothing was.")
	behindDesc       = describe("behind_transactions", "Transactions that the backup does not have yet.", "db")
)

// Describe implements prometheus.Collector.
func (b *Backup) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(b, out) }

// Collect implements prometheus.Collector.
func (b *Backup) Collect(out chan<- prometheus.Metric) {
	b.counts.mu.Lock()
	c := &b.counts
	last := 0.0
	if !c.last.IsZero() {
		last = float64(c.last.UnixMilli()) / 1000
	}
	for desc, v := range map[*prometheus.Desc]float64{
		errorsDesc: float64(c.failures), transactionsDesc: float64(c.transactions), snapshotsDesc: float64(c.snapshots),
		removedDesc: float64(c.deleted), mergedDesc: float64(c.merged), bytesDesc: float64(c.bytes),
	} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, v)
	}
	out <- prometheus.MustNewConstMetric(lastDesc, prometheus.GaugeValue, last)
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
		out <- prometheus.MustNewConstMetric(behindDesc, prometheus.GaugeValue, max(0, behind), db.Name())
	}
}

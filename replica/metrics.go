package replica

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// collector reads the state of a node when it is asked.
type collector struct {
	n *Node

	primary, lag, subscribers, cut, followers *prometheus.Desc
	txid, pages, logBytes, diverged, orphans  *prometheus.Desc
	epoch, asideFiles, asideBytes, late, outs *prometheus.Desc
}

func newCollector(n *Node) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("hangar_db_"+name, help, labels, nil)
	}
	return &collector{
		n:           n,
		primary:     desc("primary", "1 while this node is the primary."),
		lag:         desc("lag_seconds", "Time since this node had all transactions of the primary; 0 on the primary."),
		subscribers: desc("event_subscribers", "Subscribers of the event stream."),
		cut:         desc("event_subscribers_cut_total", "Subscribers that were cut off because they did not keep up."),
		followers:   desc("replicas", "Replicas that are connected to this node."),
		txid:        desc("txid", "ID of the last transaction.", "db"),
		pages:       desc("pages", "Size of the database in pages.", "db"),
		logBytes:    desc("log_bytes", "Bytes of the transaction log on disk.", "db"),
		diverged:    desc("diverged", "1 while the content is known to differ from the position.", "db"),
		epoch:       desc("epoch", "The highest epoch of a primary that this node has seen."),
		asideFiles:  desc("aside_files", "Files of what this node had and its primary had not."),
		asideBytes:  desc("aside_bytes", "Bytes of those files."),
		late:        desc("late", "1 while no program may write because replicas do not have the last transaction.", "db"),
		outs:        desc("unacknowledged_total", "Transactions that replicas did not acknowledge in time."),
		orphans:     desc("orphan_transactions", "Transactions that were committed locally without the right to, until they are replaced.", "db"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	subs, cut := c.n.hub.Count()
	gauge(c.primary, number(c.n.Writable()))
	gauge(c.lag, c.n.Lag().Seconds())
	gauge(c.subscribers, float64(subs))
	out <- prometheus.MustNewConstMetric(c.cut, prometheus.CounterValue, float64(cut))
	gauge(c.followers, float64(c.n.sender.Count()))
	files, size := c.n.aside.now()
	gauge(c.epoch, float64(c.n.epoch()))
	gauge(c.asideFiles, float64(files))
	gauge(c.asideBytes, float64(size))
	out <- prometheus.MustNewConstMetric(c.outs, prometheus.CounterValue, float64(c.n.unacknowledged()))
	for _, db := range c.n.All() {
		last := db.Last()
		diverged, orphans := db.Diverged()
		gauge(c.txid, float64(last.Pos.TXID), last.Name)
		gauge(c.pages, float64(last.Pages), last.Name)
		gauge(c.logBytes, float64(db.Log().Size()), last.Name)
		gauge(c.diverged, number(diverged), last.Name)
		gauge(c.late, number(c.n.late(db)), last.Name)
		gauge(c.orphans, float64(orphans), last.Name)
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// metrics serves the metrics of the node in the format of Prometheus.
func (n endpoints) metrics() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(n.Node))
	n.beside.mu.Lock()
	r.MustRegister(n.beside.collectors...)
	n.beside.mu.Unlock()
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

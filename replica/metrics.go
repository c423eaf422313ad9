package replica

import (
	"net/http"
	"slices"

	"github.com/hangar-platform/hangar/replica/measure"
)

// measure adds the series of the node.
func (n *Node) measure(p *measure.Page) {
	const prefix = "hangar_db_"
	subs, cut := n.hub.Count()
	files, size := n.aside.now()
	p.Gauge(prefix+"primary", "1 while this node is the primary.", number(n.Writable()))
	p.Gauge(prefix+"lag_seconds", "Time since this node last had all transactions of the primary; 0 on the primary.", n.Lag().Seconds())
	p.Gauge(prefix+"event_subscribers", "Subscribers of the event stream.", float64(subs))
	p.Counter(prefix+"event_subscribers_cut_total", "Subscribers that were cut off because they did not keep up.", float64(cut))
	p.Gauge(prefix+"replicas", "Replicas that are connected to this node.", float64(n.sender.Count()))
	p.Gauge(prefix+"epoch", "The highest epoch of a primary that this node has seen.", float64(n.epoch()))
	p.Gauge(prefix+"aside_files", "Files of transactions that this node had and its primary lacked.", float64(files))
	p.Gauge(prefix+"aside_bytes", "Bytes of those files.", float64(size))
	p.Counter(prefix+"unacknowledged_total", "Transactions that replicas did not acknowledge in time.", float64(n.unacknowledged()))
	for _, db := range n.All() {
		last := db.Last()
		diverged, orphans := db.Diverged()
		gauge := func(name, help string, v float64) { p.Gauge(prefix+name, help, v, "db", last.Name) }
		gauge("txid", "ID of the last transaction.", float64(last.Pos.TXID))
		gauge("pages", "Size of the database in pages.", float64(last.Pages))
		gauge("log_bytes", "Bytes of the transaction log on disk.", float64(db.Log().Size()))
		gauge("diverged", "1 while the content is known to differ from the position.", number(diverged))
		gauge("late", "1 while no program may write because replicas do not have the last transaction.", number(n.late(db)))
		gauge("orphan_transactions", "Transactions that were committed locally while this node might not, until they are replaced.", float64(orphans))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// metrics serves the metrics of the node in the format of Prometheus.
func (n endpoints) metrics(w http.ResponseWriter, _ *http.Request) {
	var p measure.Page
	n.measure(&p)
	n.observers.mu.Lock()
	sources := slices.Clone(n.observers.sources)
	n.observers.mu.Unlock()
	for _, s := range sources {
		s.Measure(&p)
	}
	w.Header().Set("Content-Type", measure.ContentType)
	_, _ = p.WriteTo(w) // the client may be gone
}

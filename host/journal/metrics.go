package journal

import "github.com/prometheus/client_golang/prometheus"

// newLatency returns the histogram of commits as their callers see them.
func newLatency() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "hangar_journal_commit_duration_seconds", Help: "How long commits to the journal took that wrote something, from the call until it was on disk",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
	})
}

// The metrics of Collect.
var (
	transactionsDesc = prometheus.NewDesc("hangar_journal_transactions_total", "Transactions of the journal, each of which has flushed the disk; commits that come together share one", nil, nil)
	failuresDesc     = prometheus.NewDesc("hangar_journal_failures_total", "Commits that the disk has not taken", nil, nil)
	rerunsDesc       = prometheus.NewDesc("hangar_journal_reruns_total", "Commits that were repeated because another one of their transaction failed", nil, nil)
	unreadableDesc   = prometheus.NewDesc("hangar_journal_unreadable_total", "Values of the journal that could not be read and were skipped", nil, nil)
	waitingDesc      = prometheus.NewDesc("hangar_journal_waiting_commits", "Commits that wait for the transaction before theirs", nil, nil)
	brokenDesc       = prometheus.NewDesc("hangar_journal_broken", "1 once the disk has failed in a way after which nothing is committed until the daemon starts again", nil, nil)
)

// Describe implements prometheus.Collector.
func (j *Journal) Describe(ch chan<- *prometheus.Desc) {
	j.latency.Describe(ch)
	for _, d := range []*prometheus.Desc{transactionsDesc, failuresDesc, rerunsDesc, unreadableDesc, waitingDesc, brokenDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (j *Journal) Collect(ch chan<- prometheus.Metric) {
	j.latency.Collect(ch)
	stats, broken := j.Stats(), 0.0
	select {
	case <-j.fault:
		broken = 1
	default:
	}
	j.mu.Lock()
	waiting := len(j.queue)
	j.mu.Unlock()
	for _, m := range []struct {
		desc  *prometheus.Desc
		kind  prometheus.ValueType
		value float64
	}{
		{transactionsDesc, prometheus.CounterValue, float64(stats.Transactions)},
		{failuresDesc, prometheus.CounterValue, float64(stats.Failures)},
		{rerunsDesc, prometheus.CounterValue, float64(stats.Reruns)},
		{unreadableDesc, prometheus.CounterValue, float64(stats.Unreadable)},
		{waitingDesc, prometheus.GaugeValue, float64(waiting)},
		{brokenDesc, prometheus.GaugeValue, broken},
	} {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value)
	}
}

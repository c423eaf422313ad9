package notify

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
)

// The kinds of receivers, and the results of sending.
const (
	kindWebhook = "webhook"
	kindEmail   = "email"

	resultSent    = "sent"
	resultFailed  = "failed"
	resultLimited = "limited" // the organization has reached its limit of e-mails
	resultDropped = "dropped" // given up after the last attempt failed
)

func kindOf(r hangar.AlertReceiver) string {
	if r.Email != nil {
		return kindEmail
	}
	return kindWebhook
}

func newCounts() *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hangar_alert_notifications_total",
		Help: "Attempts to notify receivers of alerts: sent, failed, limited (an organization has sent too many e-mails), dropped (given up after failures)",
	}, []string{"kind", "result"})
	for _, result := range []string{resultSent, resultFailed, resultDropped} {
		c.WithLabelValues(kindWebhook, result)
		c.WithLabelValues(kindEmail, result)
	}
	c.WithLabelValues(kindEmail, resultLimited)
	return c
}

// count counts an attempt to send a message.
func (r *receiver) count(err error) {
	result := resultSent
	switch {
	case errors.Is(err, errTooManyMails):
		result = resultLimited
	case err != nil:
		result = resultFailed
	}
	r.n.counts.WithLabelValues(kindOf(r.spec), result).Inc()
}

// waitingDesc is the metric that Collect measures.
var waitingDesc = prometheus.NewDesc("hangar_alert_waiting_changes", "Changes of alerts (started to fire, resolved) that receivers have not been notified of yet", nil, nil)

// Describe implements prometheus.Collector.
func (n *Notifier) Describe(ch chan<- *prometheus.Desc) {
	n.counts.Describe(ch)
	ch <- waitingDesc
}

// Collect implements prometheus.Collector.
func (n *Notifier) Collect(ch chan<- prometheus.Metric) {
	n.counts.Collect(ch)
	n.mu.Lock()
	var all []*receiver
	for _, o := range n.orgs {
		all = append(all, o.receivers...)
	}
	n.mu.Unlock()
	waiting := 0
	for _, r := range all {
		waiting += r.report().Waiting
	}
	ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(waiting))
}

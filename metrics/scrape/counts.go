package scrape

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are the metrics of a Scraper.
type counts struct {
	scrapes          *prometheus.CounterVec
	samples          prometheus.Counter
	duration         prometheus.Histogram
	series, underWay *atomic.Int64
}

func newCounts() counts {
	c := counts{
		scrapes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_scrape_scrapes_total", Help: "Scrapes of Machines, by how they ended.",
		}, []string{"result"}),
		samples: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hangar_scrape_samples_total", Help: "Samples of Machines that were written, including markers of ended series.",
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "hangar_scrape_duration_seconds", Help: "How long a scrape takes, with writing.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 7),
		}),
		series: new(atomic.Int64), underWay: new(atomic.Int64),
	}
	for _, kind := range kinds() {
		c.scrapes.WithLabelValues(kind)
	}
	return c
}

// The metrics that Collect measures.
var (
	targetsDesc  = prometheus.NewDesc("hangar_scrape_targets", "Machines that are scraped.", nil, nil)
	seriesDesc   = prometheus.NewDesc("hangar_scrape_series", "Series of the last scrape of each Machine.", nil, nil)
	memoryDesc   = prometheus.NewDesc("hangar_scrape_series_bytes", "Bytes in which those series are remembered.", nil, nil)
	waitingDesc  = prometheus.NewDesc("hangar_scrape_waiting", "Scrapes that are due and wait for others", nil, nil)
	underWayDesc = prometheus.NewDesc("hangar_scrape_under_way", "Scrapes that are under way.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Scraper) Describe(ch chan<- *prometheus.Desc) {
	s.counts.scrapes.Describe(ch)
	s.counts.samples.Describe(ch)
	s.counts.duration.Describe(ch)
	for _, d := range []*prometheus.Desc{targetsDesc, seriesDesc, memoryDesc, waitingDesc, underWayDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Scraper) Collect(ch chan<- prometheus.Metric) {
	s.counts.scrapes.Collect(ch)
	s.counts.samples.Collect(ch)
	s.counts.duration.Collect(ch)
	s.mu.Lock()
	targets := len(s.targets)
	s.mu.Unlock()
	gauge := func(d *prometheus.Desc, value float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
	gauge(targetsDesc, float64(targets))
	gauge(seriesDesc, float64(s.counts.series.Load()))
	gauge(memoryDesc, float64(s.kept.Open()))
	gauge(waitingDesc, float64(s.slots.Waiting()+s.large.Waiting()))
	gauge(underWayDesc, float64(s.counts.underWay.Load()))
}

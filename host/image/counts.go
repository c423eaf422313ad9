package image

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of requests for an image.
const (
	pullHeld   = "held" // nothing had to be transferred or shown
	pullPulled = "pulled"
	pullFailed = "failed"
)

// Sources of the layers of a pull.
const (
	layerHeld        = "held"
	layerTransferred = "transferred"
)

// counts are the Prometheus metrics of a Store.
type counts struct {
	pulls    *prometheus.CounterVec
	layers   *prometheus.CounterVec
	bytes    prometheus.Counter
	duration prometheus.Histogram
}

func newCounts() counts {
	c := counts{
		pulls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_image_pulls_total", Help: "Images that Machines have asked for: held, where the server had it already, pulled from a registry, or failed",
		}, []string{"result"}),
		layers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_image_layers_total", Help: "Layers of images that were pulled: held, or transferred from a registry, also to see that it has them",
		}, []string{"source"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hangar_image_transferred_bytes_total", Help: "Bytes of layers that have come from registries, the built-in one included",
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "hangar_image_pull_duration_seconds", Help: "How long pulls took that succeeded, with unpacking, once it was their turn",
			Buckets: []float64{.1, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		}),
	}
	for _, result := range []string{pullHeld, pullPulled, pullFailed} {
		c.pulls.WithLabelValues(result)
	}
	c.layers.WithLabelValues(layerHeld)
	c.layers.WithLabelValues(layerTransferred)
	return c
}

func (c *counts) pull(result string) { c.pulls.WithLabelValues(result).Inc() }

func (c *counts) layer(source string) { c.layers.WithLabelValues(source).Inc() }

func (c *counts) pulled(took time.Duration) { c.duration.Observe(took.Seconds()) }

func (c *counts) collectors() []prometheus.Collector {
	return []prometheus.Collector{c.pulls, c.layers, c.bytes, c.duration}
}

// The metrics of Collect.
var (
	imagesDesc  = prometheus.NewDesc("hangar_image_images", "Images that the server has unpacked", nil, nil)
	openDesc    = prometheus.NewDesc("hangar_image_open_pulls", "Pulls that are under way", nil, nil)
	waitingDesc = prometheus.NewDesc("hangar_image_waiting_pulls", "Pulls that wait until others of their organization have ended", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Store) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.counts.collectors() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{imagesDesc, openDesc, waitingDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Store) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.counts.collectors() {
		c.Collect(ch)
	}
	s.mu.Lock()
	images := len(s.records)
	s.mu.Unlock()
	for d, n := range map[*prometheus.Desc]int64{imagesDesc: int64(images), openDesc: s.pulls.held.Load(), waitingDesc: s.pulls.waiting.Load()} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
}

package main

import (
	"math"
	"slices"
	"time"
)

// series names one thing that was measured.
type series struct {
	System string `json:"system"`
	Op     string `json:"op"`
	Crowd  int    `json:"at_once"`
	MB     int    `json:"touched_mb"`
	// All: until the last of the crowd was done.
	All bool `json:"all"`
}

// results are all samples of a measuring.
type results struct {
	samples map[series][]time.Duration
	figures []figure
}

// figure is something measured that is not a series of times.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Runs  int     `json:"runs"`
	Goal  float64 `json:"goal,omitempty"` // at most; 0: none
}

func newResults() *results { return &results{samples: make(map[series][]time.Duration)} }

// recorder adds samples of one system under one load.
type recorder struct {
	*results
	system    string
	crowd, mb int
}

func (r *results) of(system string, crowd, mb int) recorder { return recorder{r, system, crowd, mb} }

func (r recorder) add(op string, took time.Duration) {
	s := series{System: r.system, Op: op, Crowd: r.crowd, MB: r.mb}
	r.samples[s] = append(r.samples[s], took)
}

// finished records when the last of a crowd was done.
func (r recorder) finished(op string, took []time.Duration) {
	s := series{System: r.system, Op: op, Crowd: r.crowd, MB: r.mb, All: true}
	r.samples[s] = append(r.samples[s], slices.Max(took))
}

// quantile is the nearest sample; with fewer than 100 of them, p99 is the slowest.
func quantile(samples []time.Duration, q float64) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// median is the mean of the two in the middle where there is no middle.
func median(samples []time.Duration) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

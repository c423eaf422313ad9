package traffic

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// bounds are the upper ends of buckets.
//
//nolint:gochecknoglobals // it never changes
var bounds = [...]time.Duration{
	time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
	250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
}

// boundLabels are bounds as the label le has them.
//
//nolint:gochecknoglobals // it never changes
var boundLabels = func() (labels [len(bounds)]string) {
	for i, b := range bounds {
		labels[i] = strconv.FormatFloat(b.Seconds(), 'g', -1, 64)
	}
	return labels
}()

// histogram counts durations.
type histogram struct {
	counts [len(bounds) + 1]atomic.Uint64 // the last is of those beyond all bounds
	nanos  atomic.Uint64                  // their sum
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.nanos.Add(uint64(max(d, 0)))
}

// count is how many durations were counted.
func (h *histogram) count() (n uint64) {
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
}

// responses count answers by status.
type responses struct {
	list atomic.Pointer[[]*byStatus] // replaced, never modified
	mu   sync.Mutex                  // held while it is replaced
}

type byStatus struct {
	status int
	label  string
	histogram
}

func (r *responses) observe(status int, took time.Duration) {
	if list := r.list.Load(); list != nil {
		for _, s := range *list {
			if s.status == status {
				s.observe(took)
				return
			}
		}
	}
	r.of(registered(status)).observe(took)
}

// of returns the counts of a status that is registered.
func (r *responses) of(status int) *byStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all()
	for _, s := range all {
		if s.status == status {
			return s
		}
	}
	s := &byStatus{status: status, label: strconv.Itoa(status)}
	all = append(slices.Clip(all), s)
	r.list.Store(&all)
	return s
}

func (r *responses) all() []*byStatus {
	if list := r.list.Load(); list != nil {
		return *list
	}
	return nil
}

// registered is the status as which one is counted: itself if it is registered for HTTP, or else
// the first of its class, as which clients take it (RFC 9110, section 15); beyond the classes 500.
// So a Machine cannot make up series.
func registered(status int) int {
	switch {
	case http.StatusText(status) != "":
		return status
	case status < 100 || status > 599:
		return http.StatusInternalServerError
	default:
		return status / 100 * 100
	}
}

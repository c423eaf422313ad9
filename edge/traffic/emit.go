package traffic

import (
	"maps"
	"slices"

	"github.com/hangar-platform/hangar"
)

// Emit takes a series by its name, value and labels. It keeps nothing of labels.
type Emit func(name string, value float64, labels ...hangar.MetricLabel)

// Names of labels.
const (
	labelStatus     = "status"
	labelBound      = "le"
	labelServerName = "servername"
	labelVersion    = "version"
)

// Emit emits the series of the App.
func (a *App) Emit(emit Emit) {
	a.responses.emit("edge_http", emit)
	emit("edge_tcp_connects_count", float64(a.connects.Load()))
	emit("edge_tcp_disconnects_count", float64(a.disconnects.Load()))
	emit("edge_data_in", float64(a.in.Load()))
	emit("edge_data_out", float64(a.out.Load()))
	for i, version := range [...]string{"TLSv1.2", "TLSv1.3"} {
		if h := &a.handshakes[i]; h.count() > 0 {
			h.emit("edge_tls_handshake_time_seconds", emit, hangar.MetricLabel{Name: labelVersion, Value: version})
		}
	}
	a.mu.Lock()
	errors := maps.Clone(a.tlsErrors)
	a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(errors)) {
		emit("edge_tls_handshake_errors", float64(errors[name]), hangar.MetricLabel{Name: labelServerName, Value: string(name)})
	}
}

// Emit emits the series of the Machine.
func (m *Machine) Emit(emit Emit) {
	m.responses.emit("app_http", emit)
	if m.connect.count() > 0 {
		m.connect.emit("app_connect_time_seconds", emit)
	}
	emit("app_tcp_connects_count", float64(m.connects.Load()))
	emit("app_tcp_disconnects_count", float64(m.disconnects.Load()))
}

func (r *responses) emit(prefix string, emit Emit) {
	for _, s := range r.all() {
		status := hangar.MetricLabel{Name: labelStatus, Value: s.label}
		n := s.emit(prefix+"_response_time_seconds", emit, status)
		emit(prefix+"_responses_count", float64(n), status)
	}
}

// emit returns how many durations there are, which the buckets agree with.
func (h *histogram) emit(name string, emit Emit, labels ...hangar.MetricLabel) (n uint64) {
	seconds := float64(h.nanos.Load()) / 1e9
	within := append(slices.Clip(labels), hangar.MetricLabel{Name: labelBound})
	for i := range h.counts {
		n += h.counts[i].Load()
		bound := "+Inf"
		if i < len(bounds) {
			bound = boundLabels[i]
		}
		within[len(labels)].Value = bound
		emit(name+"_bucket", float64(n), within...)
	}
	emit(name+"_sum", seconds, labels...)
	emit(name+"_count", float64(n), labels...)
	return n
}

package proxy_test

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/proxy"
	"github.com/hangar-platform/hangar/edge/traffic"
)

// counts returns the series of the Apps and Machines, by App or Machine, name and status.
func (w *world) counts(table *traffic.Table) map[string]float64 {
	all := map[string]float64{}
	of := ""
	emit := func(name string, value float64, labels ...hangar.MetricLabel) {
		name = of + " " + name
		for _, l := range labels {
			name += fmt.Sprintf(" %s=%s", l.Name, l.Value)
		}
		all[name] = value
	}
	for _, a := range table.Apps() {
		of = string(a.ID())
		a.Emit(emit)
	}
	for _, m := range w.balancer.Traffic() {
		of = string(m.Machine.ID[:2])
		emit("app_concurrency", float64(m.InFlight))
		if m.Counts != nil {
			m.Counts.Emit(emit)
		}
	}
	return all
}

func (w *world) counted(table *traffic.Table, want map[string]float64) {
	w.t.Helper()
	wrong := ""
	if !eventually(func() bool {
		all := w.counts(table)
		wrong = ""
		for name, value := range want {
			if all[name] != value {
				wrong += fmt.Sprintf("%s is %v, want %v\n", name, all[name], value)
			}
		}
		return wrong == ""
	}) {
		w.t.Error(wrong)
	}
}

// TestAnswersAreCounted: answers are counted for the App that the client requested, and for each
// Machine that answered, over every protocol.
func TestAnswersAreCounted(t *testing.T) {
	for _, tt := range []struct {
		name     string
		h2, toH2 bool
		url      string
	}{{"http/1", false, false, "http://app.apps.test/"}, {"h2", true, false, "https://app.apps.test/"}, {"h2c to the machine", false, true, "http://app.apps.test/"}} {
		t.Run(tt.name, func(t *testing.T) {
			table := traffic.NewTable()
			w := newWorld(t, func(o *proxy.Options) { o.Traffic = table })
			addr := w.backend(func(rw http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/missing":
					rw.WriteHeader(http.StatusNotFound)
				case "/odd":
					rw.WriteHeader(499)
				case "/second":
					rw.Header().Set(hangar.HeaderReplay.Neutral, "app=second")
				default:
					_, _ = io.WriteString(rw, "body")
				}
			})
			h2backend := func(p *hangar.ServicePort) {
				if tt.toH2 {
					yes := true
					p.HTTP = &hangar.HTTPOptions{H2Backend: &yes}
				}
			}
			w.machine("a1", "app", addr, h2backend)
			w.machine("b1", "second", w.backend(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "second") }), h2backend)
			c := w.clientOf(tt.h2)
			for _, path := range []string{"", "", "missing", "odd", "second"} {
				w.do(c, w.request(http.MethodGet, tt.url+path, nil))
			}
			w.counted(table, map[string]float64{
				"app edge_http_responses_count status=200": 3, "app edge_http_responses_count status=404": 1, "app edge_http_responses_count status=400": 1,
				"app edge_http_response_time_seconds_count status=200": 3,
				"a1 app_http_responses_count status=200":               3, "a1 app_http_responses_count status=404": 1, "a1 app_http_responses_count status=400": 1,
				"b1 app_http_responses_count status=200": 1, "b1 app_concurrency": 0,
				"a1 app_tcp_connects_count": 1, "b1 app_tcp_connects_count": 1, "a1 app_connect_time_seconds_count": 1,
				"second edge_http_responses_count status=200": 0,
			})
		})
	}
}

// TestFailuresAreCounted: an answer of the edge itself counts for its App, and the end of a
// connection to a Machine is counted once.
func TestFailuresAreCounted(t *testing.T) {
	table := traffic.NewTable()
	w := newWorld(t, func(o *proxy.Options) { o.Traffic = table })
	w.machine("a1", "app", w.scripted(func(_ int, c net.Conn) { // it takes requests and says nothing
		_, _ = c.Read(make([]byte, 4096))
	}), nil)
	if got := w.do(w.client(), w.request(http.MethodPost, "http://app.apps.test/", nil)); got.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d", got.StatusCode)
	}
	w.counted(table, map[string]float64{
		"app edge_http_responses_count status=502": 1, "a1 app_http_responses_count status=200": 0,
		"a1 app_tcp_connects_count": 1, "a1 app_tcp_disconnects_count": 1,
	})
	if got := w.get("http://foreign.apps.test/"); got.StatusCode != http.StatusNotFound {
		t.Errorf("status %d", got.StatusCode)
	}
	w.counted(table, map[string]float64{"foreign edge_http_responses_count status=404": 1})
	w.get("http://nobody.apps.test/")
	if n := len(table.Apps()); n != 2 {
		t.Errorf("%d Apps are counted", n)
	}
	failures := map[hangar.EdgeCode]uint64{}
	for code, n := range table.Failures {
		if n > 0 {
			failures[code] = n
		}
	}
	if want := map[hangar.EdgeCode]uint64{hangar.EdgeAborted: 1, hangar.EdgeNoApp: 2}; !maps.Equal(failures, want) {
		t.Errorf("failures are %v, want %v", failures, want)
	}
}

// TestConnectionsOfClientsAreCounted: a client's connection counts for the App of its requests, one
// after the other.
func TestConnectionsOfClientsAreCounted(t *testing.T) {
	table := traffic.NewTable()
	w := newWorld(t, func(o *proxy.Options) { o.Traffic = table })
	addr := w.backend(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "body") })
	w.machine("a1", "app", addr, nil)
	w.machine("b1", "second", addr, nil)
	w.mu.Lock()
	w.count = table
	w.mu.Unlock()
	sent := ""
	for _, app := range []string{"app", "app", "second"} {
		sent += "GET / HTTP/1.1\r\nHost: " + app + ".apps.test\r\n\r\n"
	}
	sent = strings.TrimSuffix(sent, "\r\n") + "Connection: close\r\n\r\n" // so all answers are read
	answer := w.raw(sent)
	w.counted(table, map[string]float64{
		"app edge_tcp_connects_count": 1, "app edge_tcp_disconnects_count": 1, "second edge_tcp_connects_count": 1, "second edge_tcp_disconnects_count": 1,
	})
	all := w.counts(table)
	if in, out := all["app edge_data_in"]+all["second edge_data_in"], all["app edge_data_out"]+all["second edge_data_out"]; in != float64(len(sent)) || out != float64(len(answer)) {
		t.Errorf("%v bytes in and %v out, want %d and %d", in, out, len(sent), len(answer))
	}
}

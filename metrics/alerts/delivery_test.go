package alerts_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/alerts"
	"github.com/hangar-platform/hangar/metrics/alerts/notify"
	"github.com/hangar-platform/hangar/metrics/alerts/states"
)

// pipes is a network in memory, which works with the time of synctest.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// TestDelivery goes from a rule to a webhook, across restarts: an alert is notified once when it
// fires, and once when it is resolved.
func TestDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var holds atomic.Bool
		var mu sync.Mutex
		var got []string
		network := &pipes{make(chan net.Conn), make(chan struct{})}
		server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			var p notify.Payload
			if err := json.NewDecoder(r.Body).Decode(&p); err != nil || len(p.Alerts) != 1 {
				t.Errorf("%+v, %v", p, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, p.Status+" "+p.Alerts[0].Annotations["s"])
		})}
		served := make(chan struct{})
		go func() { defer close(served); _ = server.Serve(network) }()
		defer func() { server.Close(); <-served }()

		b := newBed(t, func(context.Context, metrics.Tenant, string, time.Time) ([]metrics.Sample, error) {
			if holds.Load() {
				return []metrics.Sample{sample("1", 1)}, nil
			}
			return nil, nil
		})
		b.stop()
		var end func()
		registry := prometheus.NewPedanticRegistry()
		begin := func() {
			store, err := states.Open(b.path, b.log)
			if err != nil {
				t.Fatal(err)
			}
			n := notify.New(notify.Options{Ledger: store, Dial: network.dial, Log: b.log})
			e := alerts.New(alerts.Options{Configs: b.feed, Query: b.query, States: store, Notifier: n, Log: b.log})
			registry = prometheus.NewPedanticRegistry()
			registry.MustRegister(e, n)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); _ = e.Run(ctx) }()
			end = func() { cancel(); <-done; store.Close() }
		}
		pass := func(d time.Duration, want ...string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("notified %q, not %q", got, want)
			}
			got = nil
		}
		hook := hangar.AlertReceiver{Name: "hook", Webhook: &hangar.AlertWebhook{URL: "http://hook/", Secret: hangar.NewSensitive(strings.Repeat("x", 16))}}
		b.feed.put(acme, rules("g", `alert: A, expr: a, for: 1m, annotations: {s: "{{ $labels.i }} burns"}`), hook)
		begin()
		holds.Store(true)
		pass(time.Minute) // pending
		end()
		begin()
		pass(time.Minute, "firing 1 burns") // it has been pending since before the restart
		all := counted(t, registry)
		if n := all["evaluation_duration_seconds ok"]; n == 0 {
			t.Error("no evaluation is counted")
		}
		for key, want := range map[string]float64{
			"evaluation_duration_seconds failed": 0, "missed_evaluations_total": 0, "waiting_evaluations": 0, "waiting_changes": 0,
			"notifications_total webhook sent": 1, "notifications_total webhook failed": 0, "notifications_total email limited": 0,
		} {
			if n, ok := all[key]; n != want || !ok {
				t.Errorf("%s is %v, %t, want %v", key, n, ok, want)
			}
		}
		for range 3 {
			end()
			begin()
			pass(10 * time.Minute)
		}
		end()
		holds.Store(false) // while nothing runs
		begin()
		pass(time.Minute, "resolved 1 burns")
		end()
		begin()
		pass(time.Hour)
		end()
	})
}

// counted returns the metrics for operators, and for histograms their counts.
func counted(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := strings.TrimPrefix(f.GetName(), "hangar_alert_")
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			all[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

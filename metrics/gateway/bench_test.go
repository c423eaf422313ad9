package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
)

// BenchmarkQuery queries a real store over its socket, and through a gateway: the difference is the
// cost of the gateway.
func BenchmarkQuery(b *testing.B) {
	s := metricstest.Start(b)
	end := time.Now().Truncate(metrics.Interval)
	for _, status := range []string{"200", "404", "500"} {
		var all []metrics.Sample
		for i := range 240 {
			all = append(all, metricstest.Sample("requests_count", float64(i*i), end.Add(time.Duration(i-240)*metrics.Interval), "app", "web", "status", status))
		}
		metricstest.Write(b, s, own, all...)
	}
	metricstest.Await(b, s, own, "count(requests_count)", end, 3)
	g := New(Options{Store: s, Limits: generous})
	l, err := new(net.ListenConfig).Listen(b.Context(), "unix", filepath.Join(filepath.Dir(s.Dir), "g"))
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.Serve(w, r, own, Scope{}, r.URL.Path)
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }() // it ends with Close
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", l.Addr().String())
	}}}
	b.Cleanup(func() { client.CloseIdleConnections(); _ = server.Close(); <-ended })
	confined := "?" + url.Values{"extra_label": {metrics.OrgLabel + "=" + ownID}}.Encode()
	for name, c := range map[string]struct {
		path string
		form url.Values
	}{
		"instant": {"/api/v1/query", url.Values{"query": {"sum(rate(requests_count[1m])) by (status)"}, "time": {milliseconds(end)}, "nocache": {"1"}}},
		"range":   {"/api/v1/query_range", url.Values{"query": {"sum(rate(requests_count[1m])) by (status)"}, "start": {milliseconds(end.Add(-time.Hour))}, "end": {milliseconds(end)}, "step": {"15"}, "nocache": {"1"}}},
		"series":  {"/api/v1/query_range", url.Values{"query": {"requests_count"}, "start": {milliseconds(end.Add(-time.Hour))}, "end": {milliseconds(end)}, "step": {"15"}, "nocache": {"1"}}},
	} {
		for who, asked := range map[string]struct {
			client *http.Client
			target string
		}{
			"store":   {s.Client(), s.QueryURL(own) + c.path + confined},
			"gateway": {client, "http://gateway" + c.path},
		} {
			b.Run(name+"/"+who, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, asked.target, strings.NewReader(c.form.Encode()))
					if err != nil {
						b.Fatal(err)
					}
					r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
					resp, err := asked.client.Do(r)
					if err != nil {
						b.Fatal(err)
					}
					n, err := io.Copy(io.Discard, resp.Body)
					if err != nil || resp.StatusCode != http.StatusOK {
						b.Fatal(n, resp.Status, err)
					}
					b.SetBytes(n)
					resp.Body.Close()
				}
			})
		}
	}
}

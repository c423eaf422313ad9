// Package metricstest runs a real store of metrics for tests, writes samples to it, and reads what
// collectors count.
//
// A package whose tests use it needs a TestMain that calls Main.
package metricstest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/gobuild"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/remote"
	"github.com/hangar-platform/hangar/metrics/store"
)

var program struct {
	once sync.Once
	dir  string
	err  error
}

// Main runs the tests of a package and returns the status for os.Exit.
func Main(m *testing.M) int {
	status := m.Run()
	if program.dir != "" {
		_ = os.RemoveAll(program.dir) // the directory of temporary files is cleaned anyway
	}
	return status
}

// Program returns the path of hangar-metrics, which it builds once for all tests of a package.
func Program(tb testing.TB) string {
	tb.Helper()
	program.once.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "hangar-metrics-"); program.err != nil { //nolint:usetesting // it outlives the test
			return
		}
		program.err = gobuild.Build(tb.Context(), filepath.Join(program.dir, "hangar-metrics"), "github.com/hangar-platform/hangar/cmd/hangar-metrics")
	})
	if program.err != nil {
		tb.Fatal(program.err)
	}
	return filepath.Join(program.dir, "hangar-metrics")
}

// Store is a real store. Its directory is empty unless the options name one.
type Store struct {
	*store.Store
	Dir string // has the data
}

// Start opens a store that is closed when the test ends. The functions change its options.
func Start(tb testing.TB, change ...func(*store.Options)) *Store {
	tb.Helper()
	path := Program(tb)
	run, err := os.MkdirTemp("", "hm") //nolint:usetesting // the path of tb.TempDir is too long for a socket
	if err != nil {
		tb.Fatal(err)
	}
	opts := store.Options{
		Dir: filepath.Join(tb.TempDir(), "data"), Run: run,
		Program:      func(context.Context) (string, error) { return path, nil },
		MinFreeBytes: 1 << 20,
		Log:          slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&opts)
	}
	s, err := store.Open(tb.Context(), opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
		if err := os.RemoveAll(run); err != nil {
			tb.Error(err)
		}
	})
	return &Store{Store: s, Dir: opts.Dir}
}

// Tenant returns a tenant with an organization's id.
func Tenant(id string, number uint32) metrics.Tenant {
	return metrics.Tenant{Org: hangar.OrgID(id), Number: number}
}

// Sample returns a sample of the metric name, with the labels in pairs.
func Sample(name string, value float64, at time.Time, pairs ...string) metrics.Sample {
	labels := []metrics.Label{{Name: metrics.NameLabel, Value: name}}
	for i := 0; i+1 < len(pairs); i += 2 {
		labels = append(labels, metrics.Label{Name: pairs[i], Value: pairs[i+1]})
	}
	return metrics.Sample{Labels: labels, Value: value, Time: at.UnixMilli()}
}

// Post sends samples and returns the status of the response.
func Post(ctx context.Context, s metrics.Store, tenant metrics.Tenant, samples []metrics.Sample) (int, error) {
	return post(ctx, s, s.WriteURL(tenant), samples)
}

// PostShared sends samples that contain their OrgLabel, and returns the status of the response.
func PostShared(ctx context.Context, s metrics.Store, samples []metrics.Sample) (int, error) {
	return post(ctx, s, s.SharedWriteURL(), samples)
}

func post(ctx context.Context, s metrics.Store, to string, samples []metrics.Sample) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(remote.Encode(samples)))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("Content-Encoding", "snappy")
	resp, err := s.Client().Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// Write stores samples.
func Write(tb testing.TB, s metrics.Store, tenant metrics.Tenant, samples ...metrics.Sample) {
	tb.Helper()
	if status, err := Post(tb.Context(), s, tenant, samples); err != nil || status != http.StatusNoContent {
		tb.Fatalf("write: status %d, %v", status, err)
	}
}

// Query returns the value of the first series that a query returns for a time, and whether there is
// one.
func Query(ctx context.Context, s metrics.Store, tenant metrics.Tenant, query string, at time.Time) (float64, bool, error) {
	form := url.Values{
		"query": {query}, "nocache": {"1"}, "time": {at.UTC().Format(time.RFC3339Nano)},
	}
	// The store caches for ten seconds which series a filter selects. No series has this label, so the
	// filters of two calls differ but select the same series.
	confine := url.Values{
		"extra_label":     {metrics.OrgLabel + "=" + string(tenant.Org)},
		"extra_filters[]": {fmt.Sprintf(`{asked!="%d"}`, time.Now().UnixNano())},
	}
	target := s.QueryURL(tenant) + "/api/v1/query?" + confine.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, false, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := s.Client().Do(r)
	if err != nil {
		return 0, false, err
	}
	defer resp.Body.Close()
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
		Error string
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, false, err
	}
	if answer.Error != "" {
		return 0, false, hangar.Errorf(hangar.CodeInvalid, "", "%s", answer.Error)
	}
	if len(answer.Data.Result) == 0 {
		return 0, false, nil
	}
	var value float64
	err = json.Unmarshal([]byte(answer.Data.Result[0].Value[1].(string)), &value)
	return value, true, err
}

// Await waits until a query returns a value: written samples become visible a moment later.
func Await(tb testing.TB, s metrics.Store, tenant metrics.Tenant, query string, at time.Time, want float64) {
	tb.Helper()
	for {
		value, ok, err := Query(tb.Context(), s, tenant, query, at)
		if err == nil && ok && value == want {
			return
		}
		if pause.For(tb.Context(), 20*time.Millisecond) != nil {
			tb.Fatalf("%s is %v, %t, %v; want %v", query, value, ok, err, want)
		}
	}
}

// Value returns the value of a counter or gauge of a collector. With a label, it is the one whose
// first label has that value. A missing one has the value 0.
func Value(tb testing.TB, c prometheus.Collector, name, label string) float64 {
	tb.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(c); err != nil {
		tb.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

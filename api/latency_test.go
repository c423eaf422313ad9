package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
)

// counted returns the series of an API by route, method and status. The first map has counts, the
// second the sums of histograms.
func counted(t *testing.T, handler *api.Handler) (count, sum map[string]float64) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(handler); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	count, sum = map[string]float64{}, map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := strings.TrimPrefix(f.GetName(), "hangar_api_")
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if len(labels) > 0 {
				key += " " + labels["method"] + " " + labels["route"] + " " + labels["status"]
			}
			count[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if f.GetType() == dto.MetricType_HISTOGRAM {
				count[key], sum[key] = float64(m.GetHistogram().GetSampleCount()), m.GetHistogram().GetSampleSum()
			}
		}
	}
	return count, sum
}

// slowService delays its answers.
type slowService struct {
	hangar.AppService
	hangar.MachineService
}

func (slowService) Apps(context.Context, hangar.AppFilter) ([]*hangar.App, error) {
	time.Sleep(2 * time.Second)
	return nil, nil
}

func (slowService) WaitMachine(context.Context, hangar.MachineRef, hangar.MachineWait) (hangar.MachineReached, error) {
	time.Sleep(time.Minute)
	return hangar.MachineReached{State: hangar.MachineStarted}, nil
}

// slowReader delivers a body an hour after its header.
type slowReader struct{ *httptest.ResponseRecorder }

func (w slowReader) Write(p []byte) (int, error) {
	time.Sleep(time.Hour)
	return w.ResponseRecorder.Write(p)
}

// TestLatency: the latency of an operation is measured by route and class. Waits and slow readers do
// not count as slow.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := slowService{}
		handler := newAPI(func(c *api.Config) { c.Apps, c.Machines = slow, slow })
		serve := func(method, path string, want int) {
			t.Helper()
			w := slowReader{httptest.NewRecorder()}
			handler.ServeHTTP(w, request(t, method, path, http.NoBody))
			if w.Code != want {
				t.Fatalf("%s %s is answered %d %s", method, path, w.Code, w.Body)
			}
		}
		before, _ := counted(t, handler)
		for _, key := range []string{
			"request_duration_seconds GET /v1/apps 2xx", "request_duration_seconds GET /v1/apps 5xx", "request_duration_seconds any other 4xx",
			"lasting_requests_total GET /v1/apps/{app}/machines/{machine}/wait 2xx", "lasting_requests_total any /v2/ 2xx", "open_requests",
		} {
			if n, ok := before[key]; n != 0 || !ok {
				t.Errorf("at first %s is %v, %t", key, n, ok)
			}
		}
		serve(http.MethodGet, "/v1/apps?org_slug=personal", http.StatusOK)
		serve(http.MethodGet, "/v1/apps/web/machines/d8912340000002/wait", http.StatusOK)
		serve(http.MethodPut, "/v2/any/thing", http.StatusTeapot)
		serve(http.MethodPatch, "/nowhere/at/all", http.StatusNotFound)
		after, took := counted(t, handler)
		for key, want := range map[string]float64{
			"request_duration_seconds GET /v1/apps 2xx": 1, "request_duration_seconds any other 4xx": 1,
			"lasting_requests_total GET /v1/apps/{app}/machines/{machine}/wait 2xx": 1, "lasting_requests_total any /v2/ 4xx": 1, "open_requests": 0,
		} {
			if after[key] != want {
				t.Errorf("%s is %v, want %v", key, after[key], want)
			}
		}
		if got := took["request_duration_seconds GET /v1/apps 2xx"]; got != 2 {
			t.Errorf("a request that took 2 s, and its client an hour, took %v s", got)
		}
		for key := range took {
			if strings.Contains(key, "/wait") {
				t.Errorf("a wait is a latency: %s", key)
			}
		}
	})
}

// TestCountsAreBounded: requests of clients make no more series than there are routes and classes.
func TestCountsAreBounded(t *testing.T) {
	handler := newAPI()
	ask := func(round int) {
		for _, method := range []string{"GET", "BREW", fmt.Sprintf("M%d", round), "POST"} {
			for _, path := range []string{"/", "/v1/apps/%d", "/%d", "/v1/apps/x%d/machines/y%d", "//%d", "/v2/%d", "/v1/%%2F%d"} {
				path = strings.ReplaceAll(path, "%d", fmt.Sprint(round))
				r := request(t, method, "/", http.NoBody)
				r.URL.Path = path
				r.Header.Set("Authorization", "Bearer wrong")
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		}
	}
	ask(0)
	before, _ := counted(t, handler)
	for round := range 50 {
		ask(round)
	}
	after, _ := counted(t, handler)
	for key := range after {
		if _, ok := before[key]; !ok {
			t.Errorf("another series: %s", key)
		}
	}
}

// TestPanicIsCounted: a handler that panics counts as 500.
func TestPanicIsCounted(t *testing.T) {
	handler := newAPI(func(c *api.Config) { c.Apps = failing{apps: func(context.Context) error { panic("x") }} })
	handler.ServeHTTP(httptest.NewRecorder(), request(t, http.MethodGet, "/v1/apps?org_slug=personal", http.NoBody))
	if all, _ := counted(t, handler); all["request_duration_seconds GET /v1/apps 5xx"] != 1 || all["open_requests"] != 0 {
		t.Errorf("it is counted as %v", all)
	}
}

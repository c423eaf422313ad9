package alerts_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/alerts"
)

// querier answers queries as the gateway does.
type querier func(w http.ResponseWriter, r *http.Request, scope hangar.MetricsScope, path string)

func (q querier) QuerySeries(w http.ResponseWriter, r *http.Request, scope hangar.MetricsScope, path string) {
	q(w, r, scope, path)
}

func TestQueryBy(t *testing.T) {
	at := time.UnixMilli(1764064800500)
	tenant := metrics.Tenant{Org: "org1", Number: 7}
	ask := func(status int, body string) ([]metrics.Sample, error) {
		return alerts.QueryBy(querier(func(w http.ResponseWriter, r *http.Request, scope hangar.MetricsScope, path string) {
			if r.Method != http.MethodPost || r.FormValue("query") != "up == 0" || r.FormValue("time") != "1764064800.500" || path != "/api/v1/query" {
				t.Errorf("%s %s with %v", r.Method, path, r.Form)
			}
			if scope.Org != "org1" || scope.Number != 7 || scope.Apps != nil {
				t.Errorf("scope %+v", scope)
			}
			if status != http.StatusOK {
				w.WriteHeader(status)
			}
			fmt.Fprint(w, body)
		}))(t.Context(), tenant, "up == 0", at)
	}
	got, err := ask(200, `{"status":"success","data":{"resultType":"vector","result":[
		{"metric":{"b":"2","__name__":"up","a":"1","__org__":"org1"},"value":[1764064800.5,"0.25"]},{"metric":{},"value":[1764064800.5,"+Inf"]}]},"stats":{}}`)
	if err != nil || len(got) != 2 || fmt.Sprint(got[1].Value) != "+Inf" {
		t.Errorf("%+v, %v", got, err)
	}
	want := metrics.Sample{Labels: []metrics.Label{{Name: "__name__", Value: "up"}, {Name: "a", Value: "1"}, {Name: "b", Value: "2"}}, Value: 0.25, Time: 1764064800500}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Error(diff)
	}
	got, err = ask(200, `{"status":"success","data":{"resultType":"scalar","result":[1764064800.5,"3"]}}`)
	if err != nil || len(got) != 1 || got[0].Value != 3 || len(got[0].Labels) > 0 {
		t.Errorf("a scalar: %+v, %v", got, err)
	}
	for body, want := range map[string]string{
		`{"status":"error","errorType":"422","error":"unknown function x"}`: "unknown function x",
		`<html>`: "status 422",
	} {
		if _, err := ask(422, body); err == nil || !strings.Contains(hangar.MessageOf(err), want) {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, body := range []string{
		"", `{"data":{"resultType":"matrix","result":[]}}`, `{"data":{"resultType":"vector","result":[{"metric":{},"value":[1]}]}}`,
		`{"data":{"resultType":"vector","result":[{"metric":{},"value":[1,"x"]}]}}`, `{"data":{"resultType":"scalar","result":[]}}`,
		`{"data":{"resultType":"vector","result":[` + strings.Repeat(" ", 5<<20) + `]}}`,
	} {
		if got, err := ask(200, body); err == nil {
			t.Errorf("%.60s is read as %+v", body, got)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	hangs := querier(func(_ http.ResponseWriter, r *http.Request, _ hangar.MetricsScope, _ string) {
		cancel()
		<-r.Context().Done()
	})
	if _, err := alerts.QueryBy(hangs)(ended, tenant, "up", at); err == nil {
		t.Error("a query continues after its end")
	}
}

// Package dashboards has dashboards for Grafana as its files.
package dashboards

import (
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/builtin"
	"github.com/hangar-platform/hangar/metrics/gateway"
	"github.com/hangar-platform/hangar/metrics/metricstest"
)

func TestMain(m *testing.M) { os.Exit(metricstest.Main(m)) }

// dashboard is what is looked at of Grafana's JSON model
// (https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/).
type dashboard struct {
	UID        string `json:"uid"`
	Title      string `json:"title"`
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type variable struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Definition string `json:"definition"`
}

type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	GridPos struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

func read(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob("*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	all := map[string]dashboard{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[file] = d
	}
	return all
}

// TestLayout: ids and titles are there once, and panels do not cover one another.
func TestLayout(t *testing.T) {
	t.Parallel()
	uids := map[string]bool{}
	for file, d := range read(t) {
		if d.Title == "" || uids[d.UID] {
			t.Errorf("%s: title %q, uid %q", file, d.Title, d.UID)
		}
		uids[d.UID] = true
		ids, cells := map[int]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if ids[p.ID] || p.Title == "" {
				t.Errorf("%s: panel %d %q", file, p.ID, p.Title)
			}
			ids[p.ID] = true
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if other := cells[cell]; other != "" || cell[0] >= 24 {
						t.Fatalf("%s: %q is where %q is, or outside: %v", file, p.Title, other, p.GridPos)
					}
					cells[cell] = p.Title
				}
			}
		}
	}
}

const (
	span = 5 * time.Minute
	step = 15 * time.Second
)

// chosen are values of labels that dashboards ask for.
var chosen = map[string][]string{"status": {"200", "500"}, "mode": {"idle", "user"}, "minutes": {"1", "5", "15"}, "version": {"TLSv1.3"}}

// everything returns samples of every series that is measured, of one Machine of an App.
func everything(prefix string, end time.Time) []metrics.Sample {
	var samples []metrics.Sample
	for _, family := range builtin.Reference() {
		if family.Absent != "" {
			continue
		}
		for _, name := range family.Series() {
			pairs := [][]string{{"app", "web", "region", "loc", "host", "1234", "instance", "d8912340000002"}}
			labels := family.Labels
			if strings.HasSuffix(name, "_bucket") {
				labels = append(slices.Clone(labels), "le")
			}
			for _, label := range labels {
				values := chosen[label]
				switch {
				case label == "le":
					values = []string{"0.1", "1", "+Inf"}
				case values == nil:
					values = []string{"x"}
				}
				var next [][]string
				for _, p := range pairs {
					for _, v := range values {
						next = append(next, append(slices.Clone(p), label, v))
					}
				}
				pairs = next
			}
			for _, p := range pairs {
				for i := range int(span/step) + 1 {
					at := end.Add(-span + time.Duration(i)*step)
					samples = append(samples, metricstest.Sample(prefix+"_"+name, float64(i+1), at, p...))
				}
			}
		}
	}
	return samples
}

// grafana answers a dashboard's questions as Grafana's data source does.
type grafana struct {
	gateway *gateway.Gateway
	tenant  metrics.Tenant
	end     time.Time
}

func (g grafana) ask(t *testing.T, path string, form url.Values, data any) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	g.gateway.Serve(w, r, g.tenant, gateway.Scope{}, path)
	var body struct{ Data json.RawMessage }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s?%s: %d %s", path, form.Encode(), w.Code, w.Body)
	}
	if err := json.Unmarshal(body.Data, data); err != nil {
		t.Fatal(err)
	}
}

var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

// values are those of a variable.
func (g grafana) values(t *testing.T, definition string) (values []string) {
	t.Helper()
	match := labelValues.FindStringSubmatch(definition)
	if match == nil {
		t.Fatalf("%q is no question for the values of a label", definition)
	}
	g.ask(t, "/api/v1/label/"+match[2]+"/values", url.Values{"match[]": {match[1]}, "start": {unix(g.end.Add(-span))}, "end": {unix(g.end)}}, &values)
	return values
}

// points counts those of the answer to an expression that are numbers.
func (g grafana) points(t *testing.T, expr string) (n int) {
	t.Helper()
	var data struct {
		Result []struct{ Values [][2]any }
	}
	g.ask(t, "/api/v1/query_range", url.Values{
		"query": {expr}, "start": {unix(g.end.Add(-span))}, "end": {unix(g.end)}, "step": {"15"},
	}, &data)
	for _, series := range data.Result {
		for _, v := range series.Values {
			if v[1] != "NaN" {
				n++
			}
		}
	}
	return n
}

func unix(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// TestPanels: every panel of every dashboard has data, with each prefix.
func TestPanels(t *testing.T) {
	t.Parallel()
	s := metricstest.Start(t)
	g := grafana{tenant: metricstest.Tenant("org1", 1), end: time.Now().Truncate(step)}
	limits := gateway.DefaultLimits()
	limits.Rate, limits.Burst = 1e6, 1e6
	g.gateway = gateway.New(gateway.Options{Store: s, Limits: limits, Log: slog.New(slog.DiscardHandler)})
	for _, prefix := range []string{"platform", "fly"} {
		metricstest.Write(t, s, g.tenant, everything(prefix, g.end)...)
	}
	metricstest.Await(t, s, g.tenant, `count(platform_instance_up) + count(fly_instance_up)`, g.end, 2)
	for file, d := range read(t) {
		for _, prefix := range []string{"platform", "fly"} {
			t.Run(file+"/"+prefix, func(t *testing.T) {
				t.Parallel()
				vars := map[string]string{"prefix": prefix, "__rate_interval": "1m"}
				fill := func(text string) string {
					// The longer names first, of which others may be the beginning.
					for _, name := range slices.Backward(slices.Sorted(maps.Keys(vars))) {
						text = strings.NewReplacer("${"+name+"}", vars[name], "$"+name, vars[name]).Replace(text)
					}
					if strings.Contains(text, "$") {
						t.Errorf("%q has a variable that is not there", text)
					}
					return text
				}
				for _, v := range d.Templating.List {
					if v.Type != "query" {
						continue
					}
					values := g.values(t, fill(v.Definition))
					if len(values) != 1 {
						t.Fatalf("variable %s has the values %q", v.Name, values)
					}
					vars[v.Name] = values[0]
				}
				for _, p := range d.Panels {
					if p.Type != "row" && len(p.Targets) == 0 {
						t.Errorf("%q asks for nothing", p.Title)
					}
					for _, target := range p.Targets {
						if expr := fill(target.Expr); g.points(t, expr) == 0 {
							t.Errorf("%q has no data: %s", p.Title, expr)
						}
					}
				}
			})
		}
	}
}

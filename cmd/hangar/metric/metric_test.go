package metric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// answers is a hangar.SeriesQuerier with canned answers, which records the last request.
type answers struct {
	status int
	body   string
	asked  http.Request
}

func (a *answers) QuerySeries(w http.ResponseWriter, r *http.Request, scope hangar.MetricsScope, path string) {
	_ = r.ParseForm()
	a.asked = http.Request{Form: r.Form, RequestURI: string(scope.Org) + path}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	fmt.Fprint(w, a.body)
}

func (a *answers) MetricsScope(_ context.Context, slug hangar.OrgSlug) (hangar.MetricsScope, error) {
	return hangar.MetricsScope{Org: hangar.OrgID(slug)}, nil
}

// apps is a hangar.AppService with one App.
type apps struct{ hangar.AppService }

func (apps) App(_ context.Context, name hangar.AppName) (*hangar.App, error) {
	if name != "web" {
		return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonAppNotFound, "app not found")
	}
	return &hangar.App{Name: name, Org: hangar.Org{Slug: "acme"}}, nil
}

type everybody struct{}

func (everybody) Authenticate(context.Context, string) (hangar.Principal, error) {
	return hangar.Principal{Subject: "admin", Admin: true}, nil
}
func (everybody) Life(hangar.TokenID) context.Context { return context.Background() }

const (
	vector = `{"status":"success","data":{"resultType":"vector","result":[%s]}}`
	matrix = `{"status":"success","data":{"resultType":"matrix","result":[%s]}}`
)

func instant(value string, labels ...string) string {
	return fmt.Sprintf(`{"metric":{%s},"value":[1764064800,%q]}`, joined(labels), value)
}

func joined(labels []string) string {
	var pairs []string
	for i := 0; i < len(labels); i += 2 {
		pairs = append(pairs, fmt.Sprintf("%q:%q", labels[i], labels[i+1]))
	}
	return strings.Join(pairs, ",")
}

// ranged returns a series with a point every 15 seconds until now.
func ranged(values []float64, labels ...string) string {
	return rangedUntil(time.Now().Unix(), values, labels...)
}

// rangedUntil returns a series whose last value is at the last step before end.
func rangedUntil(end int64, values []float64, labels ...string) string {
	end -= end % 15
	var points []string
	for i, v := range values {
		points = append(points, fmt.Sprintf(`[%d,"%g"]`, end-int64(15*(len(values)-1-i)), v))
	}
	return fmt.Sprintf(`{"metric":{%s},"values":[%s]}`, joined(labels), strings.Join(points, ","))
}

func TestCommands(t *testing.T) {
	t.Parallel()
	up := []string{"__name__", "platform_instance_up", "app", "web", "instance", "d8912340000002"}
	machine := func(measure, value string) string {
		return instant(value, "app", "web", "region", "loc", "instance", "d8912340000002", "measure", measure)
	}
	many := func() (all []string) {
		for i := range 12 {
			all = append(all, ranged([]float64{float64(i)}, "app", "web", "n", fmt.Sprint(i)))
		}
		return all
	}()
	for _, c := range []struct {
		name   string
		args   []string
		status int
		body   string
		code   int
		path   string            // of the request, with the organization before it
		form   map[string]string // of the request
		want   []string          // on standard output
		errs   []string          // on standard error
	}{
		{
			name: "table", args: []string{"query", "up"}, body: fmt.Sprintf(vector, instant("1234.5", up...)),
			path: "personal/api/v1/query", form: map[string]string{"query": "up", "app": ""},
			want: []string{"NAME ", "APP ", "INSTANCE ", "VALUE\n", "d8912340000002", "1.23k\n"},
		},
		{
			name: "of an app", args: []string{"query", "up", "--app", "web"}, body: fmt.Sprintf(vector, instant("1", up...)),
			path: "acme/api/v1/query", form: map[string]string{"app": "web"}, want: []string{"web"},
		},
		{
			name: "of an organization", args: []string{"query", "up", "--app", "gone", "--org", "lab", "--time", "2026-11-25T10:00:00Z"}, body: fmt.Sprintf(vector, instant("1", up...)),
			path: "lab/api/v1/query", form: map[string]string{"app": "gone", "time": "1795600800.000"}, want: []string{"web"},
		},
		{name: "no such app", args: []string{"query", "up", "--app", "nix"}, code: 3, errs: []string{"app not found"}},
		{name: "nothing", args: []string{"query", "up"}, body: fmt.Sprintf(vector, ""), errs: []string{"No series match"}},
		{name: "nothing as JSON", args: []string{"query", "up", "--json"}, body: fmt.Sprintf(vector, ""), want: []string{"[]\n"}},
		{name: "JSON", args: []string{"query", "up", "--json"}, body: fmt.Sprintf(vector, instant("1234.5", up...)), want: []string{`"1234.5"`, `"app": "web"`}},
		{
			name: "CSV", args: []string{"query", "up", "--csv"}, body: fmt.Sprintf(vector, instant("1234.5", "a", `x,"y`)),
			want: []string{"a,value\n", `"x,""y",1234.5` + "\n"},
		},
		{
			name: "escapes", args: []string{"query", "up"}, body: fmt.Sprintf(vector, `{"metric":{"a":"x\u001b]0;y\u0007"},"value":[1764064800,"1"]}`),
			want: []string{"x\uFFFD]0;y\uFFFD"},
		},
		{
			name: "chart", args: []string{"query", "up", "--range", "10m"},
			body: fmt.Sprintf(matrix, ranged([]float64{1, 2, 3}, "app", "web", "status", "200")+","+ranged([]float64{1, 1, 1}, "app", "web", "status", "500")),
			path: "personal/api/v1/query_range", form: map[string]string{"step": "15"},
			want: []string{`{app="web"}` + "\n", "┤", `─ {status="200"}`, `* {status="500"}`},
		},
		{
			name: "many", args: []string{"query", "up", "--range", "10m"}, body: fmt.Sprintf(matrix, strings.Join(many, ",")),
			want: []string{`{n="11"}`, `{n="4"}`, "and 4 more"},
		},
		{
			name: "range as CSV", args: []string{"query", "up", "--range", "1m", "--step", "30s", "--csv"}, body: fmt.Sprintf(matrix, ranged([]float64{1, 2.5}, "app", "web")),
			form: map[string]string{"step": "30"}, want: []string{"time,app,value\n", "Z,web,2.5\n"},
		},
		{name: "no points", args: []string{"query", "up", "--range", "1m"}, body: fmt.Sprintf(matrix, ""), errs: []string{"No series match"}},
		{name: "of Prometheus", args: []string{"query", "up("}, status: 400, body: `{"status":"error","errorType":"bad_data","error":"a bracket is not closed"}`, code: 2, errs: []string{"Error: a bracket is not closed\n"}},
		{name: "busy", args: []string{"query", "up"}, status: 503, body: `{"status":"error","errorType":"unavailable","error":"the store is busy"}`, code: 7, errs: []string{"the store is busy"}},
		{name: "another answer", args: []string{"query", "up", "--range", "1m"}, body: fmt.Sprintf(vector, ""), code: 1, errs: []string{"vector instead of a matrix"}},
		{name: "bad time", args: []string{"query", "up", "--time", "now"}, code: 2, errs: []string{"--time"}},
		{name: "negative range", args: []string{"query", "up", "--range", "-1h"}, code: 2, errs: []string{"--range"}},
		{name: "step alone", args: []string{"query", "up", "--step", "1m"}, code: 2, errs: []string{"--step"}},
		{name: "two formats", args: []string{"query", "up", "--json", "--csv"}, code: 2, errs: []string{"json", "csv"}},
		{
			name: "top", args: []string{"top"},
			body: fmt.Sprintf(vector, strings.Join([]string{
				machine("cpu", "0.5"), machine("memory", "1048576"), machine("memory_total", "4194304"), machine("requests", "12"),
				instant("1", "app", "web", "instance", "0000000000gone", "measure", "requests"),
			}, ",")),
			path: "personal/api/v1/query",
			want: []string{"MACHINE", "d8912340000002   web   loc      0.50   1MiB     25%    12  "},
		},
		{name: "top as JSON", args: []string{"top", "web", "--json"}, body: fmt.Sprintf(vector, machine("memory_total", "1")), path: "acme/api/v1/query", want: []string{`"memory_total": 1`}},
		{name: "nothing runs", args: []string{"top"}, body: fmt.Sprintf(vector, ""), errs: []string{"No Machine is started"}},
		{name: "bad order", args: []string{"top", "--sort", "size"}, code: 2, errs: []string{"cpu, memory, name, requests"}},
		{name: "too often", args: []string{"top", "--interval", "1ms"}, code: 2, errs: []string{"--interval"}},
		{name: "show without a range", args: []string{"show", "web", "--range", "0s"}, code: 2, errs: []string{"--range"}},
		{name: "show a missing app", args: []string{"show", "nix"}, code: 3, errs: []string{"app not found"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			service := &answers{status: max(c.status, http.StatusOK), body: c.body}
			out, errs := run(t, service, c.code, c.args...)
			if got := service.asked.RequestURI; c.path != "" && got != c.path {
				t.Errorf("asked %s, want %s", got, c.path)
			}
			for name, want := range c.form {
				if got := service.asked.Form.Get(name); got != want {
					t.Errorf("asked with %s %q, want %q", name, got, want)
				}
			}
			says(t, out, c.want...)
			says(t, errs, c.errs...)
		})
	}
}

// series returns a querier for any caller.
type series interface {
	hangar.SeriesQuerier
	hangar.MetricsService
}

// run runs a command, and returns its output.
func run(t *testing.T, service series, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	server := httptest.NewServer(api.New(api.Config{Apps: apps{}, Series: service, MetricsScopes: service, Auth: everybody{}, Log: slog.New(slog.DiscardHandler)}))
	defer server.Close()
	var out, errs strings.Builder
	inv := cli.New(cli.Streams{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}, func(name string) string {
		return map[string]string{"HANGAR_URL": server.URL, "HANGAR_TOKEN": "x", "HOME": t.TempDir()}[name]
	})
	if code := inv.Run(t.Context(), NewCommand(inv), args); code != want {
		t.Fatalf("%v: code %d, not %d\n%s%s", args, code, want, &out, &errs)
	}
	return out.String(), errs.String()
}

func says(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in\n%s", w, text)
		}
	}
}

// both answers range queries and instant queries.
type both struct {
	answers
	ranges func(end int64) string // the series until a time
}

func (b *both) QuerySeries(w http.ResponseWriter, r *http.Request, scope hangar.MetricsScope, path string) {
	if strings.HasSuffix(path, "_range") {
		end, err := strconv.ParseFloat(r.FormValue("end"), 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, matrix, b.ranges(int64(end)))
		return
	}
	b.answers.QuerySeries(w, r, scope, path)
}

func TestShow(t *testing.T) {
	t.Parallel()
	service := &both{answers: answers{status: http.StatusOK, body: fmt.Sprintf(vector, instant("4194304", "app", "web", "instance", "d8912340000002", "measure", "memory_total"))}}
	service.ranges = func(end int64) string {
		return strings.Join([]string{
			rangedUntil(end, []float64{0, 1, 3}, "measure", "requests/s"),
			rangedUntil(end, []float64{0.02, 0.02, 0.02}, "measure", "response p95"),
			rangedUntil(end, []float64{1, 1, 2}, "measure", "fullest volume"),
		}, ",")
	}
	show := func(args ...string) string {
		t.Helper()
		out, errs := run(t, service, 0, append([]string{"show", "web"}, args...)...)
		return errs + out
	}
	says(t, show(), "WEB ", "LAST 1h ", "requests/s ", "response p95 ", "20ms", "2%", "d8912340000002")
	if text := show(); strings.Contains(text, "concurrency  ") {
		t.Errorf("a series without values is shown:\n%s", text)
	}
	says(t, show("--range", "4m"), "LAST 4m ", "▁▃█   3  ")
	says(t, show("--json"), `"name": "requests/s"`, `"machine": "d8912340000002"`)
	service.ranges = func(int64) string { return "" }
	says(t, show(), "There are no measurements of web")
}

// TestTop follows a live table from the first query to the key that ends it.
func TestTop(t *testing.T) {
	t.Parallel()
	var model tea.Model = top{order: "cpu", interval: time.Second}
	send := func(msg tea.Msg) tea.Cmd {
		var next tea.Cmd
		model, next = model.Update(msg)
		return next
	}
	view := func() string { return model.View().Content }
	says(t, view(), "0 started", "MACHINE")
	busy := usage{App: "a", Machine: "0000000000busy", CPU: 2, Memory: 1, MemoryTotal: 100}
	large := usage{App: "b", Machine: "00000000000big", CPU: 1, Memory: 50, MemoryTotal: 100}
	if send(topAnswer{rows: []usage{large, busy}, at: time.Now()}) == nil {
		t.Error("it does not query again")
	}
	first := func() string { return strings.Split(view(), "\n")[3][:14] }
	for _, c := range []struct{ key, want string }{{"m", large.Machine}, {"c", busy.Machine}, {"r", busy.Machine}, {"n", busy.Machine}} {
		if send(tea.KeyPressMsg{Text: c.key, Code: rune(c.key[0])}); first() != c.want {
			t.Errorf("after %s, %s is first, not %s", c.key, first(), c.want)
		}
	}
	// A failure is shown, with the last values.
	send(topAnswer{err: errors.New("the store is away")})
	says(t, view(), "the store is away", busy.Machine)
	send(topAnswer{rows: []usage{busy}, at: time.Now()})
	if text := view(); strings.Contains(text, "away") || strings.Contains(text, large.Machine) {
		t.Errorf("an error that is over is shown:\n%s", text)
	}
	send(tea.WindowSizeMsg{Width: 20, Height: 3})
	if lines := strings.Split(view(), "\n"); len(lines) != 3 || len([]rune(lines[2])) != 20 {
		t.Errorf("it does not fit: %q", lines)
	}
	if cmd := send(tea.KeyPressMsg{Text: "q", Code: 'q'}); cmd == nil || cmd() != tea.Quit() {
		t.Error("q does not quit")
	}
}

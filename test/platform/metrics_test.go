package platform_test

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/test/platform"
)

var update = flag.Bool("update", false, "rewrite the table of docs/operations.md")

const (
	docsFile = "../../docs/operations.md"
	begin    = "<!-- metrics: written by go test ./test/platform -update -->\n"
	end      = "<!-- end of the metrics -->\n"
)

// scrape returns what an administrator reads at /metrics.
func scrape(t *testing.T, p *platform.Platform) map[string]*dto.MetricFamily {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL()+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.Token())
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", res.Status, err)
	}
	return families
}

// ofLibraries reports whether a series is one of those that many programs have.
func ofLibraries(name string) bool {
	return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_")
}

// open are labels whose values are not told in the table: there are as many as the API has routes,
// and versions of Go.
var open = []string{"route", "method", "status", "version", "quantile"}

// labelsOf returns the labels of a family as the table has them.
func labelsOf(f *dto.MetricFamily) string {
	values := map[string][]string{}
	var names []string
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if !slices.Contains(names, l.GetName()) {
				names = append(names, l.GetName())
			}
			if v := l.GetValue(); !slices.Contains(values[l.GetName()], v) {
				values[l.GetName()] = append(values[l.GetName()], v)
			}
		}
	}
	var list []string
	for _, name := range names {
		text := "`" + name + "`"
		if !slices.Contains(open, name) {
			slices.Sort(values[name])
			text += ": " + strings.Join(values[name], ", ")
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}

// table is the reference as the documentation has it.
func table(families map[string]*dto.MetricFamily) string {
	var list []*dto.MetricFamily
	for _, f := range families {
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b *dto.MetricFamily) int {
		if l := ofLibraries(a.GetName()); l != ofLibraries(b.GetName()) {
			if l {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.GetName(), b.GetName())
	})
	var b strings.Builder
	b.WriteString("| series | type | labels | what |\n|---|---|---|---|\n")
	for _, f := range list {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), labelsOf(f), strings.TrimSuffix(f.GetHelp(), "."))
	}
	return b.String()
}

// TestMetricsAreDocumented: the table of the documentation is what a server serves from its start.
func TestMetricsAreDocumented(t *testing.T) {
	p := platform.Start(t, platform.Options{})
	families := scrape(t, p)
	raw, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(raw, []byte(begin))
	documented, after, closed := bytes.Cut(rest, []byte(end))
	if !ok || !closed {
		t.Fatalf("%s has no place for the metrics", docsFile)
	}
	want := "\n" + table(families) + "\n"
	if string(documented) == want {
		return
	}
	if *update {
		if err := os.WriteFile(docsFile, slices.Concat(before, []byte(begin), []byte(want), []byte(end), after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	served := strings.Split(want, "\n")
	for line := range strings.Lines(string(documented)) {
		if line = strings.TrimSuffix(line, "\n"); !slices.Contains(served, line) {
			t.Errorf("documented, and not served:\n%s", line)
		}
	}
	for _, line := range served {
		if !strings.Contains(string(documented), line+"\n") {
			t.Errorf("served, and not documented:\n%s", line)
		}
	}
	t.Errorf("the table of %s is not what is served: run go test ./test/platform -update", docsFile)
}

// identity is what the samples of a family have in common from scrape to scrape.
func identity(f *dto.MetricFamily, m *dto.Metric) string {
	id := f.GetName()
	for _, l := range m.GetLabel() {
		id += " " + l.GetName() + "=" + l.GetValue()
	}
	return id
}

// values returns those of all samples; of histograms how much they have counted.
func values(families map[string]*dto.MetricFamily) map[string]float64 {
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			all[identity(f, m)] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// TestMetricsCount: what tenants do shows in the counts, and nothing of it in their labels, nor in
// further series but those of routes and classes of status.
func TestMetricsCount(t *testing.T) {
	const app = "tellingname"
	p := platform.Start(t, platform.Options{})
	before := scrape(t, p)
	c := p.Client()
	if _, err := c.CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	m, err := c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: hangar.MachineConfig{Image: "nginx"}})
	if err != nil {
		t.Fatal(err)
	}
	wait := func(state hangar.MachineState) {
		t.Helper()
		if _, err := c.WaitMachine(t.Context(), m.Ref(), hangar.MachineWait{States: []hangar.MachineState{state}}); err != nil {
			t.Fatal(err)
		}
	}
	wait(hangar.MachineStarted)
	if err := c.SuspendMachine(t.Context(), m.Ref()); err != nil {
		t.Fatal(err)
	}
	wait(hangar.MachineSuspended)
	if _, err := c.StartMachine(t.Context(), m.Ref()); err != nil {
		t.Fatal(err)
	}
	wait(hangar.MachineStarted)
	if status, err := p.Request(t.Context(), "nosuchapp", "/"); err != nil || status != http.StatusNotFound {
		t.Fatalf("%d, %v", status, err)
	}
	least := map[string]float64{
		"hangar_api_request_duration_seconds method=POST route=/v1/apps status=2xx":                            1,
		"hangar_api_lasting_requests_total method=GET route=/v1/apps/{app}/machines/{machine}/wait status=2xx": 3,
		"hangar_journal_commit_duration_seconds":                                                               5,
		"hangar_journal_transactions_total":                                                                    5,
		"hangar_machine_start_duration_seconds kind=boot":                                                      1,
		"hangar_machine_start_duration_seconds kind=resume":                                                    1,
		"hangar_machines state=started":                                                                        1,
		"hangar_machine_memory_promised_bytes":                                                                 1 << 20,
		"hangar_image_pulls_total result=pulled":                                                               1,
		"hangar_image_transferred_bytes_total":                                                                 1,
		"hangar_edge_requests_total":                                                                           1,
		"hangar_edge_connections_total":                                                                        1,
		"hangar_edge_failures_total code=PH01":                                                                 1,
	}
	was := values(before)
	// Some are counted a moment after their client was answered.
	var grown map[string]float64
	for {
		grown = values(scrape(t, p))
		for id := range grown {
			grown[id] -= was[id]
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(least)), func(id string) bool { return grown[id] < least[id] }) {
			break
		}
		if err := pause.For(t.Context(), 20*time.Millisecond); err != nil {
			t.Fatalf("counts have grown by %v, want %v at least", grown, least)
		}
	}
	for id := range grown {
		if _, known := was[id]; !known && !strings.HasPrefix(id, "hangar_api_") {
			t.Errorf("another series: %s", id)
		}
		for _, foreign := range []string{app, string(m.ID), "nosuchapp"} {
			if strings.Contains(id, foreign) {
				t.Errorf("%s has what tenants have named", id)
			}
		}
	}
	if n := grown["hangar_machine_start_duration_seconds kind=boot"]; n != 1 {
		t.Errorf("%v boots are counted", n)
	}
}

package measure_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/hangar-platform/hangar/replica/measure"
)

// TestPage reads a page with the parser of Prometheus.
func TestPage(t *testing.T) {
	var p measure.Page
	odd := "a \"b\" \\ c\nd"
	p.Gauge("size", "How large\nit is \\ was.", 1.5, "db", odd)
	p.Counter("commits_total", "Commits.", 3)
	p.Gauge("size", "How large\nit is \\ was.", math.Inf(1), "db", "x")
	p.Gauge("two", "Two labels.", 1e21, "db", "x", "node", "y")
	var b bytes.Buffer
	if n, err := p.WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Fatal(n, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&b)
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 3 {
		t.Errorf("%v", families)
	}
	size := families["size"]
	if size.GetHelp() != "How large\nit is \\ was." || len(size.Metric) != 2 || size.Metric[0].Label[0].GetValue() != odd ||
		size.Metric[0].GetGauge().GetValue() != 1.5 || !math.IsInf(size.Metric[1].GetGauge().GetValue(), 1) {
		t.Errorf("%v", size)
	}
	if v := families["commits_total"].Metric[0].GetCounter().GetValue(); v != 3 {
		t.Errorf("%v", v)
	}
	if two := families["two"].Metric[0]; len(two.Label) != 2 || two.GetGauge().GetValue() != 1e21 {
		t.Errorf("%v", two)
	}
}

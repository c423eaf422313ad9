package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/hangar-platform/hangar/metrics"
)

var testOwn = platformLabels{{Name: "app", Value: "APP"}, {Name: "host", Value: "HOST"}, {Name: "instance", Value: "ID"}, {Name: "region", Value: "REG"}}

// parsed returns the result of a parser, one text for each series.
func parsed(tb testing.TB, p *parser) []string {
	tb.Helper()
	var list []string
	rest, series := string(p.text), ""
	for _, v := range p.values {
		series, rest = cut(rest)
		var b strings.Builder
		name := ""
		labels := appendLabels(nil, series, &testOwn)
		if !slices.IsSortedFunc(labels, func(a, b metrics.Label) int { return strings.Compare(a.Name, b.Name) }) {
			tb.Errorf("labels %v are not sorted", labels)
		}
		own := 0
		for _, l := range labels {
			if slices.Contains(testOwn[:], l) {
				own++
				continue
			}
			if l.Name == metrics.NameLabel {
				name = l.Value
			} else {
				fmt.Fprintf(&b, " %s=%q", l.Name, l.Value)
			}
		}
		if own != len(testOwn) {
			tb.Errorf("labels %v", labels)
		}
		list = append(list, fmt.Sprintf("%s%s %v", name, b.String(), v))
	}
	if rest != "" {
		tb.Errorf("%d bytes follow the last series", len(rest))
	}
	return list
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 2000)
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "l%d=\"v\",", i)
		}
		return b.String()
	}
	const none, bad, over = "", "unreadable", "over limit"
	for line, want := range map[string]string{
		"up 1":                               "up 1",
		"  up\t 1  ":                         "up 1",
		"up 1\r":                             "up 1",
		"up 1 1700000000000":                 "up 1",
		"up 1 1700000000.123":                "up 1",
		"up 1 -5":                            "up 1",
		"up 1 # {trace=\"x\"} 1 2":           "up 1",
		"up 1 5 # {trace=\"x\"} 1 2":         "up 1",
		"up{} 1":                             "up 1",
		"up{}1":                              "up 1",
		"up {} 1":                            "up 1",
		"up{a=\"b\"} 1":                      `up a="b" 1`,
		"up{b=\"2\",a=\"1\"} 1":              `up a="1" b="2" 1`,
		"up{ a = \"1\" , b = \"2\" , } 1":    `up a="1" b="2" 1`,
		"up{a=\"}, # \"} 1":                  `up a="}, # " 1`,
		`up{a="\\\"\n\t"} 1`:                 `up a="\\\"\n\\t" 1`,
		`up{a="1\\",b="x\"y"} 1`:             `up a="1\\" b="x\"y" 1`,
		"up{a=\"ä\"} 1":                      `up a="ä" 1`,
		"up{a=\"\"} 1":                       "up 1",
		"up{A=\"b\"} 1":                      `up A="b" 1`,
		"a:b_C9 2":                           "a:b_C9 2",
		"up 0.5":                             "up 0.5",
		"up -1e3":                            "up -1000",
		"up +Inf":                            "up +Inf",
		"up -Inf":                            "up -Inf",
		"up NaN":                             "up NaN",
		"up 1e999":                           "up +Inf",
		"up 123456789012345":                 "up 1.23456789012345e+14",
		"up 12345678901234567890":            "up 1.2345678901234567e+19",
		"# a comment":                        none,
		"#":                                  none,
		"":                                   none,
		" \t":                                none,
		"up{app=\"other\",region=\"r\"} 1":   "up 1",
		"up{host=\"h\",instance=\"i\"} 1":    "up 1",
		"up{__name__=\"down\"} 1":            "up 1",
		"up{__org__=\"other\",__x=\"\"} 1":   "up 1",
		"up{_ok=\"1\",x__y=\"2\"} 1":         `up _ok="1" x__y="2" 1`,
		"up{apps=\"1\",App=\"2\"} 1":         `up App="2" apps="1" 1`,
		"up{" + many(30) + "} 1":             "",
		"up{" + many(31) + "} 1":             over,
		"up{a=\"" + long[:1024] + "\"} 1":    "up a=\"" + long[:1024] + "\" 1",
		"up{a=\"" + long[:1025] + "\"} 1":    over,
		"up{" + long[:257] + "=\"a\"} 1":     over,
		long[:257] + " 1":                    over,
		"up{__x=\"" + long + "\"} 1":         "up 1",
		"up":                                 bad,
		"up ":                                bad,
		"up1{":                               bad,
		"up x":                               bad,
		"up 1 x":                             bad,
		"up 1 2 3":                           bad,
		"up 1,5":                             bad,
		"9up 1":                              bad,
		"ü 1":                                bad,
		"up.down 1":                          bad,
		"{a=\"b\"} 1":                        bad,
		"{\"up\",a=\"b\"} 1":                 bad,
		"up{a} 1":                            bad,
		"up{a=b} 1":                          bad,
		"up{a=\"b} 1":                        bad,
		"up{a=\"b\\":                         bad,
		"up{a=\"b\"":                         bad,
		"up{a=\"b\" b=\"c\"} 1":              bad,
		"up{a:b=\"c\"} 1":                    bad,
		"up{,} 1":                            bad,
		"up{a=\"1\",a=\"2\"} 1":              bad,
		"up{a=\"\xff\"} 1":                   bad,
		"up{app=\"\xff\"} 1":                 bad,
		"up{a=\"" + long + "\",b} 1":         bad,
		"up 1" + strings.Repeat("0", 100):    bad,
		"<html><body class=\"a\">hi</html>":  bad,
		"HTTP/1.1 200 OK":                    bad,
		"up\x001":                            bad,
		"up 1\x00":                           bad,
		"\x00":                               bad,
		"up{a=\"b\"} 0x10":                   bad,
		"up 1_0":                             bad,
		"up{a=\"b\"}":                        bad,
		"up{a=\"b\"} # {x=\"y\"} 1":          bad,
		"up{a=\"b\"}{c=\"d\"} 1":             bad,
		"up{a=\"b\"} 1#":                     bad,
		"up{a=\"b\"} 1 #":                    `up a="b" 1`,
		"up{a=\"b\",} 1":                     `up a="b" 1`,
		"up{__name__=\"x\",__name__=\"y\"}1": "up 1",
	} {
		p := newParser(Limits{}.orDefault())
		err := p.parse([]byte(line+"\n"), false)
		got := strings.Join(parsed(t, &p), "; ")
		switch {
		case p.unreadable > 0:
			got = bad
		case p.overLimit > 0:
			got = over
		case strings.Contains(line, many(30)):
			if len(p.labels) != 31 {
				t.Errorf("%q has %d labels", line, len(p.labels))
			}
			continue
		}
		if (err != nil) != (got == bad) || got != want {
			t.Errorf("%.100q is read as %.100q, %v; want %.100q", line, got, err, want)
		}
	}
}

func TestAnswers(t *testing.T) {
	l := Limits{Series: 3}.orDefault()
	for _, c := range []struct {
		name, body  string
		openMetrics bool
		want        string
		kind        string
	}{
		{name: "nothing"},
		{name: "no end of the last line", body: "a 1\nb 2", want: "a 1;b 2"},
		{name: "duplicates", body: "a{x=\"1\"} 1\na{x=\"1\",app=\"q\"} 2\na{__a=\"1\",x=\"1\"} 3\na 4\n", want: "a x=\"1\" 1;a 4"},
		{name: "not all lines", body: "a 1\n<b>\nc 3\n", want: "a 1;c 3"},
		{name: "too many series", body: "a 1\nb 1\nc 1\nd 1\n", kind: kindSeries},
		{name: "as many as may be", body: "a 1\nb 1\nc 1\na 1\n", want: "a 1;b 1;c 1"},
		{name: "something else", body: "<html>\n<p>\n", kind: kindNotText},
		{name: "much else", body: "a 1\n" + strings.Repeat("<p>\n", 2000), kind: kindNotText},
		{name: "OpenMetrics", body: "a 1\n# EOF\nb 2\n", openMetrics: true, want: "a 1"},
		{name: "OpenMetrics that is cut off", body: "a 1\n", openMetrics: true, kind: kindIncomplete},
		{name: "the end is a comment in text", body: "a 1\n# EOF\nb 2\n", want: "a 1;b 2"},
	} {
		p := newParser(l)
		for range 2 { // again with the same memory
			err := p.parse([]byte(c.body), c.openMetrics)
			if f, _ := errors.AsType[failure](err); f.kind != c.kind || (err != nil) != (c.kind != "") {
				t.Errorf("%s: %v", c.name, err)
			}
			if err != nil {
				continue
			}
			if got := strings.Join(parsed(t, &p), ";"); got != c.want {
				t.Errorf("%s: %q, want %q", c.name, got, c.want)
			}
		}
	}
}

func TestANaNIsNoMarker(t *testing.T) {
	for _, text := range []string{"NaN", "nan", "-NaN", "+nan", "9221120237041090562", "0x7ff0000000000002"} {
		if v, _, ok := valueOf([]byte(text)); ok && metrics.IsStale(v) {
			t.Errorf("%s marks the end of a series", text)
		}
	}
}

// reference parses an answer with Prometheus' own library.
func reference(body []byte) (list []string, err error) {
	defer func() {
		if r := recover(); r != nil { // as it does for {} on a line of its own
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	add := func(name string, m *dto.Metric, more string, v float64) {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if key, value, ok := strings.Cut(more, "="); ok {
			labels[key] = value
		}
		var b strings.Builder
		b.WriteString(name)
		for _, key := range slices.Sorted(maps.Keys(labels)) {
			if labels[key] != "" && !ofPlatform([]byte(key)) {
				fmt.Fprintf(&b, " %s=%q", key, labels[key])
			}
		}
		list = append(list, fmt.Sprintf("%s %v", b.String(), v))
	}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				add(name, m, "", m.GetCounter().GetValue())
			case dto.MetricType_GAUGE:
				add(name, m, "", m.GetGauge().GetValue())
			case dto.MetricType_UNTYPED:
				add(name, m, "", m.GetUntyped().GetValue())
			case dto.MetricType_SUMMARY:
				for _, q := range m.GetSummary().GetQuantile() {
					add(name, m, fmt.Sprintf("quantile=%v", q.GetQuantile()), q.GetValue())
				}
				add(name+"_sum", m, "", m.GetSummary().GetSampleSum())
				add(name+"_count", m, "", float64(m.GetSummary().GetSampleCount()))
			default:
				for _, q := range m.GetHistogram().GetBucket() {
					add(name+"_bucket", m, fmt.Sprintf("le=%v", q.GetUpperBound()), float64(q.GetCumulativeCount()))
				}
				add(name+"_sum", m, "", m.GetHistogram().GetSampleSum())
				add(name+"_count", m, "", float64(m.GetHistogram().GetSampleCount()))
			}
		}
	}
	slices.Sort(list)
	return list, nil
}

const typical = `# HELP http_requests_total The number of "requests".
# TYPE http_requests_total counter
http_requests_total{code="200",method="get",path="/a\\b\"c\n"} 1027 1395066363000
http_requests_total{code="400",method="get",path=""} 3
# TYPE latency histogram
latency_bucket{le="0.1"} 4
latency_bucket{le="+Inf"} 9
latency_sum 1.5
latency_count 9
# TYPE rpc summary
rpc{quantile="0.5"} 0.25
rpc{quantile="0.99"} NaN
rpc_sum 17
rpc_count 3
# TYPE temperature gauge
temperature{place="Zürich",app="mine",__meta="x"} -3.25e-1
plain +Inf
`

// FuzzParse compares with Prometheus' own parser: this one must read everything that Prometheus
// reads.
func FuzzParse(f *testing.F) {
	f.Add([]byte(typical))
	f.Add([]byte("a{b=\"c\"} 1\n"))
	f.Add([]byte("a{b=\"c\\"))
	f.Add([]byte("x 1 # {a=\"b\"} 2\n# EOF\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		p := newParser(Limits{}.orDefault())
		if p.parse(body, true) == nil {
			parsed(t, &p)
		}
		if p.parse(body, false) != nil {
			return
		}
		got := parsed(t, &p)
		want, refused := reference(body)
		if refused != nil || p.overLimit > 0 || p.duplicates > 0 || bytes.ContainsAny(body, "\r\v\f\x00") {
			return
		}
		slices.Sort(got)
		if len(want) > 0 && p.unreadable == 0 && len(got) == len(want) && !slices.Equal(got, want) {
			t.Errorf("%q is read as\n%q\nand by Prometheus as\n%q", body, got, want)
		}
	})
}

func TestTypicalAnswer(t *testing.T) {
	p := newParser(Limits{}.orDefault())
	if err := p.parse([]byte(typical), false); err != nil || p.unreadable > 0 {
		t.Fatal(err, p.unreadable)
	}
	got := parsed(t, &p)
	slices.Sort(got)
	want, err := reference([]byte(typical))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("read as\n%q\nand by Prometheus as\n%q, %v", got, want, err)
	}
	if v := p.values[0]; v != 1027 || !math.IsInf(p.values[len(p.values)-1], 1) {
		t.Errorf("values %v", p.values)
	}
}

func BenchmarkParse(b *testing.B) {
	var body bytes.Buffer
	for i := range 1000 {
		fmt.Fprintf(&body, "http_request_duration_seconds_bucket{handler=\"/api/v1/query_%d\",method=\"GET\",code=\"200\",le=\"0.%d\"} %d\n", i%20, i, i*37)
	}
	p := newParser(Limits{}.orDefault())
	b.SetBytes(int64(body.Len()))
	for b.Loop() {
		if err := p.parse(body.Bytes(), false); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "samples/s")
}

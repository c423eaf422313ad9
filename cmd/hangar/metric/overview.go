package metric

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/metric/chart"
)

// measure is a value that an overview shows.
type measure struct {
	name string // in the table and in JSON
	expr string
	text func(float64) string
}

// measureLabel is the label with the name of the measure in the results of a joint query.
const measureLabel = "measure"

// appMeasures are the measures of one App.
var appMeasures = []measure{
	{"machines started", `sum(platform_instance_up)`, chart.Number},
	{"requests/s", `sum(rate(platform_edge_http_responses_count))`, chart.Number},
	{"errors/s (5xx)", `sum(rate(platform_edge_http_responses_count{status=~"5.."}))`, chart.Number},
	{"response p50", `histogram_quantile(0.5, sum(rate(platform_edge_http_response_time_seconds_bucket)) by (le))`, seconds},
	{"response p95", `histogram_quantile(0.95, sum(rate(platform_edge_http_response_time_seconds_bucket)) by (le))`, seconds},
	{"concurrency", `sum(platform_app_concurrency)`, chart.Number},
	{"cpu", `sum(rate(platform_instance_cpu{mode!="idle"})) / 100`, processors},
	{"memory", `sum(platform_instance_memory_mem_total - platform_instance_memory_mem_available)`, size},
	{"to clients/s", `sum(rate(platform_edge_data_out))`, size},
	{"from clients/s", `sum(rate(platform_edge_data_in))`, size},
	{"fullest volume", `max(platform_volume_used_pct)`, func(v float64) string { return fmt.Sprintf("%.0f%%", v) }},
}

// machineMeasures are the measures of each Machine.
var machineMeasures = []measure{
	{"cpu", `sum(rate(platform_instance_cpu{mode!="idle"}[1m])) by (app, region, instance) / 100`, processors},
	{"memory", `sum(platform_instance_memory_mem_total - platform_instance_memory_mem_available) by (app, region, instance)`, size},
	{"memory_total", `sum(platform_instance_memory_mem_total) by (app, region, instance)`, size},
	{"requests", `sum(rate(platform_app_http_responses_count[1m])) by (app, region, instance)`, chart.Number},
	{"concurrency", `sum(platform_app_concurrency) by (app, region, instance)`, chart.Number},
	{"received", `sum(rate(platform_instance_net_recv_bytes[1m])) by (app, region, instance)`, size},
	{"sent", `sum(rate(platform_instance_net_sent_bytes[1m])) by (app, region, instance)`, size},
}

func seconds(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return chart.Number(v) + "s"
}

func processors(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}

func size(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return cli.Bytes(int64(v))
}

// joint returns one expression that yields all measures.
func joint(measures []measure) string {
	var parts []string
	for _, m := range measures {
		parts = append(parts, fmt.Sprintf(`label_set(%s, %q, %q)`, m.expr, measureLabel, m.name))
	}
	return "union(" + strings.Join(parts, ", ") + ")"
}

// usage has the measured values of a started Machine.
type usage struct {
	App         string  `json:"app"`
	Machine     string  `json:"machine"`
	Region      string  `json:"region"`
	CPU         float64 `json:"cpu"`    // processors in use
	Memory      float64 `json:"memory"` // bytes
	MemoryTotal float64 `json:"memory_total"`
	Requests    float64 `json:"requests"` // per second
	Concurrency float64 `json:"concurrency"`
	Received    float64 `json:"received"` // bytes per second
	Sent        float64 `json:"sent"`
}

// of returns the field of a measure, or nil if there is none.
func (r *usage) of(name string) *float64 {
	return map[string]*float64{
		"cpu": &r.CPU, "memory": &r.Memory, "memory_total": &r.MemoryTotal, "requests": &r.Requests,
		"concurrency": &r.Concurrency, "received": &r.Received, "sent": &r.Sent,
	}[name]
}

// usages returns the values of the started Machines of an organization or App.
func usages(ctx context.Context, p *client.Client, q client.MetricsQuery) ([]usage, error) {
	q.Expr = joint(machineMeasures)
	vector, err := p.QueryMetrics(ctx, q, time.Time{})
	if err != nil {
		return nil, err
	}
	rows := map[string]*usage{}
	for _, s := range vector {
		id := string(s.Metric["instance"])
		r := rows[id]
		if r == nil {
			r = &usage{App: string(s.Metric["app"]), Machine: id, Region: string(s.Metric["region"])}
			rows[id] = r
		}
		if v := r.of(string(s.Metric[measureLabel])); v != nil {
			*v = float64(s.Value)
		}
	}
	list := []usage{}
	for _, r := range rows {
		// The series of the edge outlive a Machine for a moment; its memory does not.
		if r.MemoryTotal > 0 {
			list = append(list, *r)
		}
	}
	return list, nil
}

// orders are the sort orders of rows: the highest value first, or by name.
var orders = map[string]func(a, b usage) int{
	"cpu":      func(a, b usage) int { return cmp.Compare(b.CPU, a.CPU) },
	"memory":   func(a, b usage) int { return cmp.Compare(b.Memory, a.Memory) },
	"requests": func(a, b usage) int { return cmp.Compare(b.Requests, a.Requests) },
	"name":     func(a, b usage) int { return cmp.Compare(a.App, b.App) },
}

func sortUsages(rows []usage, order string) {
	slices.SortFunc(rows, func(a, b usage) int {
		return cmp.Or(orders[order](a, b), cmp.Compare(a.App, b.App), cmp.Compare(a.Machine, b.Machine))
	})
}

// usageTable returns the rows as a table with a header.
func usageTable(rows []usage) [][]string {
	table := [][]string{{"MACHINE", "APP", "REGION", "CPU", "MEMORY", "USED", "REQUESTS/S", "CONCURRENCY", "RECEIVED/S", "SENT/S"}}
	for _, r := range rows {
		table = append(table, []string{
			r.Machine, r.App, r.Region, processors(r.CPU), size(r.Memory), fmt.Sprintf("%.0f%%", 100*r.Memory/r.MemoryTotal),
			chart.Number(r.Requests), chart.Number(r.Concurrency), size(r.Received), size(r.Sent),
		})
	}
	return table
}

const (
	defaultShowRange = time.Hour
	// overviewMargin is the width of an overview without its sparklines.
	overviewMargin = 60
	maxSparkWidth  = 60
	minSparkWidth  = 10
)

// shownMeasure is a measure of an App over a time range.
type shownMeasure struct {
	Name   string             `json:"name"`
	Points []model.SamplePair `json:"points"`
}

// shownApp is an overview of an App.
type shownApp struct {
	App      hangar.AppName `json:"app"`
	Measures []shownMeasure `json:"measures"`
	Machines []usage        `json:"machines"`

	span time.Duration
	in   client.MetricsRange
}

func newShowCommand(c commands) *cobra.Command {
	var span time.Duration
	cmd := &cobra.Command{
		Use: "show APP", Short: "Show an overview of an App", Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteApp,
		Long:    "Show what an App did in the last hour, or in the last --range, and what its Machines do now. Each line is scaled from zero to its maximum.",
		Example: "  hangar metrics show web\n  hangar metrics show web --range 1d --json",
	}
	cmd.Flags().DurationVar(&span, "range", defaultShowRange, "how far back to look")
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (shown shownApp, err error) {
		if span <= 0 {
			return shown, cli.UsageErrorf("--range must be greater than zero")
		}
		return c.showApp(ctx, p, args[0], span)
	}), c.printApp)
}

func (c commands) sparkWidth() int {
	return min(max(c.width()-overviewMargin, minSparkWidth), maxSparkWidth)
}

func (c commands) showApp(ctx context.Context, p *client.Client, app string, span time.Duration) (shown shownApp, err error) {
	q, err := c.metricsQuery(ctx, p, "", app)
	if err != nil {
		return shown, err
	}
	q.Expr = joint(appMeasures)
	shown.App, shown.span = hangar.AppName(app), span
	shown.in = pointsOf(time.Now(), span, 0, c.sparkWidth())
	matrix, err := p.QueryMetricsRange(ctx, q, shown.in)
	if err != nil {
		return shown, err
	}
	for _, m := range appMeasures {
		one := shownMeasure{Name: m.name, Points: []model.SamplePair{}}
		for _, s := range matrix {
			if string(s.Metric[measureLabel]) == m.name {
				one.Points = s.Values
			}
		}
		shown.Measures = append(shown.Measures, one)
	}
	shown.Machines, err = usages(ctx, p, q)
	sortUsages(shown.Machines, "cpu")
	return shown, err
}

func (c commands) printApp(shown shownApp) error {
	width := c.sparkWidth()
	rows := [][]string{{strings.ToUpper(string(shown.App)), "LAST " + model.Duration(shown.span).String(), "NOW", "MEAN", "HIGHEST"}}
	for i, m := range shown.Measures {
		if len(m.Points) == 0 {
			continue
		}
		points := spread(m.Points, shown.in)
		mean, highest := 0.0, math.Inf(-1)
		for _, v := range m.Points {
			mean, highest = mean+float64(v.Value)/float64(len(m.Points)), max(highest, float64(v.Value))
		}
		text := appMeasures[i].text
		line := chart.Spark(points, width)
		rows = append(rows, []string{m.Name, line, text(points[len(points)-1]), text(mean), text(highest)})
	}
	if len(rows) == 1 {
		fmt.Fprintf(c.Stderr, "There are no measurements of %s in that time.\n", shown.App)
		return nil
	}
	if err := c.PrintTable(rows); err != nil || len(shown.Machines) == 0 {
		return err
	}
	fmt.Fprintln(c.Stdout)
	return c.PrintTable(usageTable(shown.Machines))
}

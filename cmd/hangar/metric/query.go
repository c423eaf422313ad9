// Package metric has the commands that query series and show what Apps and Machines do.
package metric

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/metric/chart"
)

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

// NewCommand returns `hangar metrics`.
func NewCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("metrics", "See what Apps and Machines do", "metric")
	cmd.AddCommand(newQueryCommand(c), newShowCommand(c), newTopCommand(c))
	return cmd
}

const metricsQueryLong = `Evaluate an expression in MetricsQL, which is PromQL and more, over the series of an
organization. Without --range, a table shows the values now, or at --time; with it, a
chart shows their history. For the available metrics see docs/metrics.md, or run

  hangar metrics query 'count({app="web"}) by (__name__)'`

// queryFlags are the flags of `metrics query`.
type queryFlags struct {
	org, app      string
	at            string
	span, step    time.Duration
	asJSON, asCSV bool
}

func newQueryCommand(c commands) *cobra.Command {
	var q queryFlags
	cmd := &cobra.Command{
		Use: "query EXPR", Short: "Evaluate an expression", Long: metricsQueryLong, Args: cobra.ExactArgs(1),
		Example: "  hangar metrics query 'platform_instance_up'\n" +
			"  hangar metrics query --app web --range 6h 'sum(rate(platform_edge_http_responses_count)) by (status)'\n" +
			"  hangar metrics query --range 1d --csv 'sum(platform_app_concurrency) by (app)' > load.csv",
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.Connect()
			if err != nil {
				return err
			}
			return c.queryMetrics(cmd.Context(), p, args[0], q)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.org, "org", "", "organization (default that of --app, else of the context, or personal)")
	flags.StringVar(&q.app, "app", "", "only series of this App")
	flags.StringVar(&q.at, "time", "", "the time, or the end of the range, in RFC 3339 (default now)")
	flags.DurationVar(&q.span, "range", 0, "draw a chart over this time, such as 1h")
	flags.DurationVar(&q.step, "step", 0, "time between two points of a range (default as many points as fit)")
	cli.JSONFlag(cmd, &q.asJSON)
	flags.BoolVar(&q.asCSV, "csv", false, "print comma-separated values")
	_ = cmd.RegisterFlagCompletionFunc("app", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return c.CompleteApp(cmd, nil, prefix)
	})
	return cmd
}

func (c commands) queryMetrics(ctx context.Context, p *client.Client, expr string, q queryFlags) error {
	end := time.Now()
	if q.at != "" {
		var err error
		if end, err = time.Parse(time.RFC3339, q.at); err != nil {
			return cli.UsageErrorf("--time is not a time in RFC 3339, such as 2026-11-25T10:00:00Z")
		}
	}
	switch {
	case q.asJSON && q.asCSV:
		return cli.UsageErrorf("--json and --csv exclude one another")
	case q.span < 0:
		return cli.UsageErrorf("--range is negative")
	case q.step < 0:
		return cli.UsageErrorf("--step is negative")
	case q.step > 0 && q.span == 0:
		return cli.UsageErrorf("--step needs --range")
	}
	query, err := c.metricsQuery(ctx, p, q.org, q.app)
	if err != nil {
		return err
	}
	query.Expr = expr
	if q.span > 0 {
		return c.queryRange(ctx, p, query, end, q)
	}
	vector, err := p.QueryMetrics(ctx, query, end)
	switch {
	case err != nil:
		return err
	case q.asJSON:
		return c.PrintJSON(cli.OrEmpty(vector))
	case q.asCSV:
		return c.printCSV(vectorRows(vector))
	case len(vector) == 0:
		return c.noSeries()
	}
	return c.printVector(vector)
}

func (c commands) noSeries() error {
	fmt.Fprintln(c.Stderr, "No series match. List the series: hangar metrics query 'count({__name__!=\"\"}) by (__name__)'")
	return nil
}

// metricsQuery returns a query without an expression for the named organization, or that of the App, or that of the context.
func (c commands) metricsQuery(ctx context.Context, p *client.Client, org, app string) (q client.MetricsQuery, err error) {
	q.Org = c.OrgOr(org)
	if app == "" {
		return q, nil
	}
	q.Apps = []hangar.AppName{hangar.AppName(app)}
	if org == "" {
		a, err := p.App(ctx, q.Apps[0])
		if err != nil {
			return q, err
		}
		q.Org = a.Org.Slug
	}
	return q, nil
}

const (
	// metricsStep is the time between two samples, and the least step of a range without --step.
	metricsStep = 15 * time.Second
	// chartMargin is the part of the terminal's width that the axis labels take.
	chartMargin   = 12
	chartHeight   = 12
	minChartWidth = 20
	// plainWidth is the width of output that does not go to a terminal.
	plainWidth = 80
)

// width returns the characters per line of the output.
func (c commands) width() int {
	if f, ok := cli.Terminal(c.Stdout); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			return w
		}
	}
	return plainWidth
}

// colors reports whether output may be colored.
func (c commands) colors() bool { return cli.IsTerminal(c.Stdout) && c.Getenv("NO_COLOR") == "" }

// pointsOf returns a range with as many points as fit into width. The times of the points are multiples of the step, so
// that a later call yields the same times.
func pointsOf(end time.Time, span, step time.Duration, width int) client.MetricsRange {
	if step == 0 {
		step = max(metricsStep, (span/time.Duration(width-1)).Truncate(time.Second)+time.Second)
	}
	return client.MetricsRange{Start: end.Add(-span).Truncate(step), End: end.Truncate(step), Step: step}
}

func (c commands) queryRange(ctx context.Context, p *client.Client, query client.MetricsQuery, end time.Time, q queryFlags) error {
	width := max(minChartWidth, c.width()-chartMargin)
	in := pointsOf(end, q.span, q.step, width)
	matrix, err := p.QueryMetricsRange(ctx, query, in)
	switch {
	case err != nil:
		return err
	case q.asJSON:
		return c.PrintJSON(cli.OrEmpty(matrix))
	case q.asCSV:
		return c.printCSV(matrixRows(matrix))
	case len(matrix) == 0:
		return c.noSeries()
	}
	shown := highest(matrix)
	common := commonLabels(shown)
	var lines []chart.Line
	for _, s := range shown {
		lines = append(lines, chart.Line{Name: legend(s.Metric, common), Points: spread(s.Values, in)})
	}
	picture := chart.Draw(chart.Frame{Start: in.Start, End: in.End, Width: width, Height: chartHeight, Colors: c.colors()}, lines)
	if len(common) > 0 && len(shown) > 1 {
		picture = common.String() + "\n" + picture
	}
	if more := len(matrix) - len(shown); more > 0 {
		picture += fmt.Sprintf("and %d more: topk_avg(5, …) chooses, --csv prints all\n", more)
	}
	_, err = fmt.Fprint(c.Stdout, picture)
	return err
}

// highest returns the series with the highest mean, at most as many as one chart can have.
func highest(matrix model.Matrix) model.Matrix {
	if len(matrix) <= chart.MaxLines {
		return matrix
	}
	mean := func(s *model.SampleStream) float64 {
		sum := 0.0
		for _, v := range s.Values {
			if !math.IsNaN(float64(v.Value)) {
				sum += float64(v.Value)
			}
		}
		return sum / float64(max(1, len(s.Values)))
	}
	sorted := slices.SortedStableFunc(slices.Values(matrix), func(a, b *model.SampleStream) int {
		return cmp.Compare(mean(b), mean(a))
	})
	return sorted[:chart.MaxLines]
}

// spread places the points of a series in a range, with NaN where there is none.
func spread(values []model.SamplePair, in client.MetricsRange) []float64 {
	points := make([]float64, int(in.End.Sub(in.Start)/in.Step)+1)
	for i := range points {
		points[i] = math.NaN()
	}
	for _, v := range values {
		if i := int(v.Timestamp.Time().Sub(in.Start) / in.Step); i >= 0 && i < len(points) {
			points[i] = float64(v.Value)
		}
	}
	return points
}

// commonLabels returns the labels that all series share, or nil for a single series.
func commonLabels(matrix model.Matrix) model.Metric {
	if len(matrix) < 2 {
		return nil
	}
	common := maps.Clone(matrix[0].Metric)
	for _, s := range matrix[1:] {
		maps.DeleteFunc(common, func(name model.LabelName, value model.LabelValue) bool { return s.Metric[name] != value })
	}
	return common
}

// legend formats the labels of a series without those that all series share.
func legend(m, common model.Metric) string {
	rest := maps.Clone(m)
	maps.DeleteFunc(rest, func(name model.LabelName, _ model.LabelValue) bool { _, ok := common[name]; return ok })
	if len(rest) == 0 {
		return cmp.Or(string(m[model.MetricNameLabel]), "value")
	}
	return rest.String()
}

// printVector writes a table with a column for each label.
func (c commands) printVector(vector model.Vector) error {
	rows := vectorRows(vector)
	for i, name := range rows[0] {
		rows[0][i] = strings.ToUpper(name)
	}
	for i, s := range vector {
		row := rows[i+1]
		row[len(row)-1] = chart.Number(float64(s.Value))
		for j := range row {
			row[j] = printable(row[j])
		}
	}
	return c.PrintTable(rows)
}

// printable replaces the control characters in text.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// vectorRows returns a header and a row for each sample: its labels and its value.
func vectorRows(vector model.Vector) [][]string {
	var metrics []model.Metric
	for _, s := range vector {
		metrics = append(metrics, s.Metric)
	}
	head, labels := labelRows(metrics)
	rows := [][]string{append(head, "value")}
	for i, s := range vector {
		rows = append(rows, append(labels[i], s.Value.String()))
	}
	return rows
}

// matrixRows returns a header and a row for each point: its time, its labels and its value.
func matrixRows(matrix model.Matrix) [][]string {
	var metrics []model.Metric
	for _, s := range matrix {
		metrics = append(metrics, s.Metric)
	}
	head, labels := labelRows(metrics)
	rows := [][]string{slices.Concat([]string{"time"}, head, []string{"value"})}
	for i, s := range matrix {
		for _, v := range s.Values {
			at := v.Timestamp.Time().UTC().Format(time.RFC3339)
			rows = append(rows, slices.Concat([]string{at}, labels[i], []string{v.Value.String()}))
		}
	}
	return rows
}

// labelRows returns the names of all labels of the series, the metric name first, and the values of each series.
func labelRows(metrics []model.Metric) (head []string, rows [][]string) {
	seen := map[model.LabelName]bool{}
	for _, m := range metrics {
		for name := range m {
			seen[name] = true
		}
	}
	names := slices.Sorted(maps.Keys(seen)) // __name__ comes before letters
	for _, name := range names {
		if name == model.MetricNameLabel {
			name = "name"
		}
		head = append(head, string(name))
	}
	for _, m := range metrics {
		var row []string
		for _, name := range names {
			row = append(row, string(m[name]))
		}
		rows = append(rows, row)
	}
	return head, rows
}

func (c commands) printCSV(rows [][]string) error {
	return csv.NewWriter(c.Stdout).WriteAll(rows)
}

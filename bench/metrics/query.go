package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/gateway"
)

// goalGateway is what a query through the gateway may take, to the bare store, median.
const goalGateway = 1.05

// organizations is how many there are in turn, with as many series together.
var organizations = []int{1, 100, 1000}

// fairAt is how many organizations there are where one is asked beside another.
const fairAt = 100

// question is a query of a dashboard. Of its text APP is replaced by the name of an App.
type question struct {
	text   string
	ranged bool // over an hour; else at its end
}

// app replaces APP.
func (q question) app(n int) question {
	q.text = strings.ReplaceAll(q.text, "APP", appName(n))
	return q
}

func (q question) kind() string {
	if q.ranged {
		return "range"
	}
	return "instant"
}

// questions are those of a dashboard: of an App, and of all Apps of the organization.
func questions() []question {
	texts := []string{
		`sum(rate(platform_edge_http_responses_count{app="APP"}[1m])) by (status)`,
		`histogram_quantile(0.99, sum(rate(platform_edge_http_response_time_seconds_bucket{app="APP"}[1m])) by (le))`,
		`platform_instance_memory_mem_total{app="APP"} - platform_instance_memory_mem_available{app="APP"}`,
		`sum(rate(platform_edge_http_responses_count[1m])) by (status)`,
		`topk(10, sum(rate(platform_instance_cpu{mode="user"}[1m])) by (app))`,
	}
	list := make([]question, 0, 2*len(texts))
	for _, ranged := range []bool{false, true} {
		for _, text := range texts {
			list = append(list, question{text, ranged})
		}
	}
	return list
}

// asker answers questions of tenants: the bare store, or the gateway in front of it.
type asker interface {
	ask(ctx context.Context, t metrics.Tenant, q question, end time.Time) ([]byte, error)
}

func (d *bare) ask(ctx context.Context, t metrics.Tenant, q question, end time.Time) ([]byte, error) {
	return ask(ctx, d.client, d.QueryURL(t), "?"+confine(t), q, end)
}

// served is a gateway that is asked over HTTP, on a socket of the same kind as the store's.
type served struct{ client *http.Client }

func (s served) ask(ctx context.Context, t metrics.Tenant, q question, end time.Time) ([]byte, error) {
	return ask(ctx, s.client, "http://gateway/prometheus/"+string(t.Org), "", q, end)
}

// errRefused is of a question that was answered with another status than 200.
var errRefused = errors.New("refused")

func ask(ctx context.Context, client *http.Client, base, confined string, q question, end time.Time) ([]byte, error) {
	path, form := "/api/v1/query", url.Values{"query": {q.text}, "nocache": {"1"}}
	if q.ranged {
		path = "/api/v1/query_range"
		form.Set("start", epoch(end.Add(-hour)))
		form.Set("end", epoch(end))
		form.Set("step", metrics.Interval.String())
	} else {
		form.Set("time", epoch(end))
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path+confined, strings.NewReader(form.Encode())) //nolint:gosec // to a socket of this run
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := client.Do(r) //nolint:gosec // see above
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: %s: %.200s", errRefused, resp.Status, body)
	}
	return body, nil
}

// epoch is a time in seconds since 1970.
func epoch(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// serve serves the gateway of a store until the returned function is called.
func (k *kept) serve(ctx context.Context, dir string, limits gateway.Limits) (served, func() error, error) {
	g := gateway.New(gateway.Options{Store: k.Store, Limits: limits, Log: slog.New(slog.DiscardHandler)})
	tenants := map[string]metrics.Tenant{}
	for n := range slices.Max(organizations) {
		tenants[string(tenant(n).Org)] = tenant(n)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/prometheus/{org}/{path...}", func(w http.ResponseWriter, r *http.Request) {
		g.Serve(w, r, tenants[r.PathValue("org")], gateway.Scope{}, "/"+r.PathValue("path"))
	})
	socket := filepath.Join(dir, "gateway.sock")
	l, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return served{}, nil, err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }() // it ends with Close
	client := dial(socket).client
	return served{client}, func() error {
		client.CloseIdleConnections()
		err := server.Close()
		<-ended
		return err
	}, nil
}

// unlimited are limits that a measurement does not meet.
var unlimited = gateway.Limits{Rate: 1e6, Burst: 1e6}

// asking is what a question took, through the gateway and of the bare store, in all rounds.
type asking struct {
	question
	took   [2][]time.Duration // by gateway, bare
	ratios []float64          // of the medians of each round
}

// queried is what was measured with a number of organizations.
type queried struct {
	orgs, series int
	filled       time.Duration
	all          []*asking
	fair         *fairness // nil: not measured with so many
}

func measureQueries(ctx context.Context, b *bench) (string, error) {
	var list []*queried
	for _, orgs := range organizations {
		q, err := measureOrganizations(ctx, b, orgs)
		if err != nil {
			return "", fmt.Errorf("%d organizations: %w", orgs, err)
		}
		list = append(list, q)
	}
	return queriesMarkdown(b.o, list), nil
}

func measureOrganizations(ctx context.Context, b *bench, orgs int) (_ *queried, err error) {
	var undo harness.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()
	at := b.newStore()
	undo.Add(at.remove)
	k, err := at.open(ctx)
	if err != nil {
		return nil, err
	}
	undo.Add(k.Close)
	a := newApps(b.o.series, orgs)
	q := &queried{orgs: orgs, series: a.series()}
	end := time.Now().Truncate(metrics.Interval)
	if q.filled, err = a.fill(ctx, k, end); err != nil {
		return nil, err
	}
	b.say("%d series of %d organizations are written after %s", q.series, orgs, q.filled.Round(time.Second))
	through, stop, err := k.serve(ctx, at.dir, unlimited)
	if err != nil {
		return nil, err
	}
	undo.Add(stop)
	for _, one := range questions() {
		q.all = append(q.all, &asking{question: one})
	}
	for round := range b.o.rounds {
		if _, err := harness.Quiet(ctx); err != nil {
			return nil, err
		}
		for _, one := range q.all {
			if err := one.measure(ctx, a, round, [2]asker{through, k.bare}, end); err != nil {
				return nil, fmt.Errorf("%s: %w", one.text, err)
			}
		}
		b.say("queries of %d organizations: round %d of %d", orgs, round+1, b.o.rounds)
	}
	if orgs == fairAt {
		if q.fair, err = measureFairness(ctx, b, a, k, end); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// Of a question in a round: how often it is asked at most, and how long.
const (
	mostAsked   = 40
	askedFor    = time.Second
	fewestAsked = 4
)

// measure makes a round: the question of one App after the other, to both in turn.
func (m *asking) measure(ctx context.Context, a *apps, round int, both [2]asker, end time.Time) error {
	var took [2][]time.Duration
	began := time.Now()
	for i := 0; i < mostAsked && (i < fewestAsked || time.Since(began) < askedFor); i++ {
		app := (round*mostAsked + i) % a.asked()
		q, t := m.app(app), tenant(a.org(app))
		// Warm up what only the first of both would have to find out.
		body, err := both[1].ask(ctx, t, q, end)
		if err != nil {
			return err
		}
		if !bytes.Contains(body, []byte(`"metric"`)) {
			return fmt.Errorf("no series: %.200s", body)
		}
		for n := range both {
			which := (n + i + round) % len(both)
			asked := time.Now()
			answer, err := both[which].ask(ctx, t, q, end)
			if err != nil {
				return err
			}
			took[which] = append(took[which], time.Since(asked))
			if has, want := bytes.Count(answer, []byte(`"metric"`)), bytes.Count(body, []byte(`"metric"`)); has != want {
				return fmt.Errorf("%d series, and %d before", has, want)
			}
		}
	}
	m.ratios = append(m.ratios, float64(quantile(took[0], .5))/float64(quantile(took[1], .5)))
	for i := range took {
		m.took[i] = append(m.took[i], took[i]...)
	}
	return nil
}

// title says how many organizations there are.
func (q *queried) title() string {
	if q.orgs == 1 {
		return "1 organization"
	}
	return thousands(q.orgs) + " organizations"
}

// ratio is that of the gateway to the bare store, over all questions of a kind.
func (q *queried) ratio(kind string) float64 {
	var all []float64
	for _, m := range q.all {
		if m.kind() == kind {
			all = append(all, m.ratios...)
		}
	}
	return median(all)
}

func queriesMarkdown(o options, list []*queried) string {
	var w strings.Builder
	heading(&w, "queries", o)
	fmt.Fprintf(&w, "- a client asks one question after the other, of one App after the other; gateway and bare store take turns, over sockets of the same kind,\n"+
		"  each question with `nocache=1` and after it was asked once; the ratio is the median of %d rounds, p50 and p99 are of all rounds\n"+
		"- %s series have a value at each of the 240 intervals of the hour, the others one at its end; range: an hour in steps of %s\n",
		o.rounds, thousands(askedSeries), metrics.Interval)
	for _, q := range list {
		fmt.Fprintf(&w, "- %s: a first value of each of %s series written in %s, %s a second, by %d plain remote writes at a time\n",
			q.title(), thousands(q.series), q.filled.Round(100*time.Millisecond), thousands(int(float64(q.series)/q.filled.Seconds())), concurrency)
	}
	goals := newGoals(&w)
	for _, q := range list {
		for _, kind := range []string{"instant", "range"} {
			r := q.ratio(kind)
			goals.row(fmt.Sprintf("%s queries, %s, to the bare store", kind, q.title()), times(r), "≤ "+times(goalGateway), r <= goalGateway)
		}
	}
	for _, q := range list {
		fmt.Fprintf(&w, "\n### %s\n\n| | | gateway p50 | p99 | bare p50 | p99 | ratio of p50 |\n|---|---|--:|--:|--:|--:|--:|\n", q.title())
		for _, m := range q.all {
			fmt.Fprintf(&w, "| `%s` | %s | %s | %s | %s | %s | %s |\n", strings.ReplaceAll(m.text, "|", `\|`), m.kind(),
				brief(quantile(m.took[0], .5)), brief(quantile(m.took[0], .99)), brief(quantile(m.took[1], .5)), brief(quantile(m.took[1], .99)), times(median(m.ratios)))
		}
	}
	for _, q := range list {
		if q.fair != nil {
			q.fair.markdown(&w, o)
		}
	}
	return w.String()
}

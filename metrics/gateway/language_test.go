package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
)

// vector returns an answer of query as {labels} value, sorted, separated by "; ".
func vector(t *testing.T, body []byte) string {
	t.Helper()
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	all := make([]string, 0, len(answer.Data.Result))
	for _, r := range answer.Data.Result {
		all = append(all, fmt.Sprintf("%s %v", labelText(r.Metric), r.Value[1]))
	}
	sort.Strings(all)
	return strings.Join(all, "; ")
}

// labelText writes labels as {a=1,b=2}.
func labelText(metric map[string]string) string {
	var pairs []string
	for name, value := range metric {
		pairs = append(pairs, name+"="+value)
	}
	slices.Sort(pairs)
	return "{" + strings.Join(pairs, ",") + "}"
}

// TestLanguage: the standard language, and its extensions. The samples are 15 s apart: total grows
// by 15 for web and 30 for db in that time, gauge is 1, 2 and 4 for three instances, and the
// histogram has 2, 3 and 4 of 4 below its bounds.
func TestLanguage(t *testing.T) {
	s := metricstest.Start(t)
	at := time.Now().Truncate(time.Minute).Add(-time.Minute)
	var all []metrics.Sample
	const samples = 41 // ten minutes
	for i := range samples {
		moment := at.Add(time.Duration(i-samples+1) * metrics.Interval)
		all = append(all,
			metricstest.Sample("total", float64(15*i), moment, "app", "web"),
			metricstest.Sample("total", float64(30*i), moment, "app", "db"))
		for j, instance := range []string{"a", "b", "c"} {
			all = append(all, metricstest.Sample("gauge", float64(int(1)<<j), moment, "instance", instance, "app", "web"))
		}
		for le, n := range map[string]float64{"1": 2, "2": 3, "+Inf": 4} {
			all = append(all, metricstest.Sample("took_bucket", n*float64(i), moment, "le", le))
		}
	}
	metricstest.Write(t, s, own, all...)
	metricstest.Await(t, s, own, `count({__name__!=""})`, at, 8)
	g := newGateway(t, s, generous)
	for query, want := range map[string]string{
		// Standard.
		`gauge{instance="b"}`:                              `{__name__=gauge,app=web,instance=b} 2`,
		`sum(gauge)`:                                       `{} 7`,
		`sum(gauge) by (app)`:                              `{app=web} 7`,
		`max without (instance) (gauge)`:                   `{app=web} 4`,
		`topk(1, gauge)`:                                   `{__name__=gauge,app=web,instance=c} 4`,
		`quantile(0.5, gauge)`:                             `{} 2`,
		`count_values("v", gauge)`:                         `{v=1} 1; {v=2} 1; {v=4} 1`,
		`rate(total{app="web"}[5m])`:                       `{app=web} 1`,
		`increase(total{app="db"}[5m])`:                    `{app=db} 600`,
		`irate(total{app="db"}[5m])`:                       `{app=db} 2`,
		`sum(rate(total[5m])) by (app) / 2`:                `{app=db} 1; {app=web} 0.5`,
		`avg_over_time(gauge{instance="c"}[1m])`:           `{__name__=gauge,app=web,instance=c} 4`,
		`max_over_time(rate(total{app="web"}[1m])[5m:1m])`: `{app=web} 1`,
		`total{app="web"} offset 1m`:                       `{__name__=total,app=web} 540`,
		`histogram_quantile(0.5, took_bucket)`:             `{} 1`,
		`histogram_quantile(0.75, rate(took_bucket[5m]))`:  `{} 2`,
		`gauge > 1`:       `{__name__=gauge,app=web,instance=b} 2; {__name__=gauge,app=web,instance=c} 4`,
		`gauge == bool 1`: `{app=web,instance=a} 1; {app=web,instance=b} 0; {app=web,instance=c} 0`,
		`gauge{instance="a"} or gauge{instance="b"}`:                       `{__name__=gauge,app=web,instance=a} 1; {__name__=gauge,app=web,instance=b} 2`,
		`gauge and gauge{instance="a"}`:                                    `{__name__=gauge,app=web,instance=a} 1`,
		`gauge unless gauge{instance=~"a|b"}`:                              `{__name__=gauge,app=web,instance=c} 4`,
		`gauge * on (app) group_left () sum(gauge) by (app)`:               `{app=web,instance=a} 7; {app=web,instance=b} 14; {app=web,instance=c} 28`,
		`label_replace(gauge{instance="a"}, "x", "${1}y", "app", "(w).*")`: `{__name__=gauge,app=web,instance=a,x=wy} 1`,
		`absent(nothing{a="b"})`:                                           `{a=b} 1`,
		`scalar(sum(gauge)) + 1`:                                           `{} 8`,
		`vector(3)`:                                                        `{} 3`,
		`clamp_max(gauge{instance="c"}, 3)`:                                `{__name__=gauge,app=web,instance=c} 3`,
		`changes(total{app="web"}[1m])`:                                    `{app=web} 4`,
		`resets(total{app="web"}[1m])`:                                     `{app=web} 0`,
		`nothing`:                                                          ``,
		// Extensions.
		`rate(total{app="web"})`:                                      `{app=web} 1`,
		`increase(total{app="db"})`:                                   `{app=db} 600`,
		`sum(rate(total))`:                                            `{} 3`,
		`topk_avg(1, gauge, "other=sum")`:                             `{__name__=gauge,app=web,instance=c} 4; {other=sum} 3`,
		`topk_avg(2, gauge, "instance=other")`:                        `{__name__=gauge,app=web,instance=b} 2; {__name__=gauge,app=web,instance=c} 4; {instance=other} 1`,
		`topk_avg(1, gauge, "other")`:                                 `{__name__=gauge,app=web,instance=c} 4; {other=other} 3`,
		`bottomk_avg(1, gauge)`:                                       `{__name__=gauge,app=web,instance=a} 1`,
		`label_set(gauge{instance="a"}, "x", "y")`:                    `{__name__=gauge,app=web,instance=a,x=y} 1`,
		`label_copy(gauge{instance="a"}, "app", "x")`:                 `{__name__=gauge,app=web,instance=a,x=web} 1`,
		`label_move(gauge{instance="a"}, "app", "x")`:                 `{__name__=gauge,instance=a,x=web} 1`,
		`label_del(gauge{instance="a"}, "app", "__name__")`:           `{instance=a} 1`,
		`label_keep(gauge{instance="a"}, "app")`:                      `{app=web} 1`,
		`label_map(gauge{instance="a"}, "app", "web", "www")`:         `{__name__=gauge,app=www,instance=a} 1`,
		`label_value(label_set(gauge{instance="a"}, "n", "12"), "n")`: `{app=web,instance=a,n=12} 12`,
		`alias(sum(gauge), "x")`:                                      `{__name__=x} 7`,
		`WITH (f = {instance="a"}) gauge{f} * 2`:                      `{app=web,instance=a} 2`,
		`WITH (double(q) = q * 2) double(sum(gauge))`:                 `{} 14`,
		`gauge{instance="a" or instance="b"}`:                         `{__name__=gauge,app=web,instance=a} 1; {__name__=gauge,app=web,instance=b} 2`,
		`nothing default 5`:                                           `{} 5`,
		`vector(1) if gauge{instance="zz"}`:                           ``,
		`quantiles("q", 0.5, gauge)`:                                  `{q=0.5} 2`,
		`median(gauge)`:                                               `{} 2`,
		`median_over_time(gauge{instance="c"}[5m])`:                   `{__name__=gauge,app=web,instance=c} 4`,
		`sum(gauge) + 1Ki`:                                            `{} 1031`,
		`count(sum(gauge) by (instance) limit 1)`:                     `{} 1`,
		`rate(total{app="web"}[5m]) keep_metric_names`:                `{__name__=total,app=web} 1`,
		`union(vector(1), label_set(2, "a", "b"))`:                    `{a=b} 2; {} 1`,
		`range_quantile(0.5, sum(gauge))`:                             `{} 7`,
		`count_gt_over_time(gauge{instance="c"}[1m], 3)`:              `{app=web,instance=c} 4`,
		`histogram_share(1, took_bucket)`:                             `{} 0.5`,
	} {
		w := call(t, g, own, Scope{}, http.MethodPost, "/api/v1/query", url.Values{"query": {query}, "time": {milliseconds(at)}})
		if w.Code != http.StatusOK {
			t.Errorf("%s answers %s", query, w.Body.String())
			continue
		}
		if got := vector(t, w.Body.Bytes()); got != want {
			t.Errorf("%s is\n%s, want\n%s", query, got, want)
		}
	}
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/gobuild"
	"github.com/hangar-platform/hangar/internal/ociimage"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/builtin"
	"github.com/hangar-platform/hangar/test/daemon"
)

const (
	// lossWindow is how old at most what a kill -9 may lose is, as docs/metrics.md says.
	lossWindow = 11 * time.Second
	// askBytes is what the program sends to each request.
	askBytes = 20_000
	// wireBytes is what headers of HTTP, TCP and acknowledgements add to that at most.
	wireBytes = 4_000
	// askPause paces requests: the server has others to serve.
	askPause = 20 * time.Millisecond
)

// span is from when something was asked for until it was there.
type span struct{ from, to time.Time }

// daemonRun is what was asked of the edge of one run of the daemon.
type daemonRun struct {
	span
	mu   sync.Mutex
	asks []span // one after the other
}

// machineRun is one boot or resume of the Machine, from when that was asked for until it had ended,
// and for how long the program has kept a processor busy.
type machineRun struct {
	span
	burnt []span
	each  time.Duration
}

// watched is a Machine that is measured over faults of what measures it, and what is known of it
// otherwise.
type watched struct {
	*testing.T
	p    *platform
	m    *machine
	api  promv1.API
	edge string
	lost map[time.Time]bool // samples that a kill has taken

	runs     []*daemonRun
	machines []*machineRun
	stop     func() // ends the requests
}

// series are samples by the time at which they were taken, by the labels of their series.
type series map[string]map[time.Time]float64

// bearer sends requests with a token.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// startWatched runs the Machine.
func startWatched(t *testing.T) *watched {
	t.Helper()
	p := start(t)
	binary := filepath.Join(t.TempDir(), "measured")
	check(t, gobuild.Build(t.Context(), binary, "./measured"))
	img, err := ociimage.FromBinary(binary, ociimage.Config{TempDir: t.TempDir()})
	check(t, err)
	t.Cleanup(func() { img.Close() })
	token, err := p.c.CreateToken(t.Context(), hangar.TokenCreate{Kind: hangar.TokenMetrics, Org: hangar.OrgPersonal})
	check(t, err)
	asked, err := api.NewClient(api.Config{Address: p.d.URL() + "/prometheus/" + string(hangar.OrgPersonal), RoundTripper: bearer{token.Text, p.d.Transport()}})
	check(t, err)
	w := &watched{T: t, p: p, api: promv1.NewAPI(asked), lost: map[time.Time]bool{}}
	w.edge, _ = p.publish(t)
	w.machines = []*machineRun{{span: span{from: time.Now()}}}
	w.m = p.run(t, "watched", hangar.MachineConfig{
		Image: p.push(t, img.Image, "measured:1"), Guest: &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256},
		Restart: &hangar.RestartConfig{Policy: hangar.RestartNo}, Services: web(nil),
	})
	w.m.serves(t, 8080, "/status?200")
	w.begin()
	return w
}

// begin begins to ask the edge of a new run of the daemon, without a break.
func (w *watched) begin() {
	w.Helper()
	run := &daemonRun{span: span{from: time.Now()}}
	w.runs = append(w.runs, run)
	w.ask(run)
}

// ask begins to ask again.
func (w *watched) ask(run *daemonRun) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	client := edgeClient(w.edge, nil, 1)
	ended := make(chan error, 1)
	go func() {
		defer client.CloseIdleConnections()
		for {
			asked := time.Now()
			if err := w.get(context.WithoutCancel(ctx), client, fmt.Sprintf("/send?%d", askBytes)); err != nil {
				ended <- err
				return
			}
			run.mu.Lock()
			run.asks = append(run.asks, span{asked, time.Now()})
			run.mu.Unlock()
			if pause.For(ctx, askPause) != nil {
				ended <- nil
				return
			}
		}
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("a request to the edge: %v", err)
		}
	})
	w.Cleanup(w.stop)
}

// get asks the edge.
func (w *watched) get(ctx context.Context, client *http.Client, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+edgeHost+path, http.NoBody)
	if err != nil {
		return err
	}
	res, err := client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK || path == fmt.Sprintf("/send?%d", askBytes) && n != askBytes {
		return fmt.Errorf("%s is answered with status %d and %d bytes", path, res.StatusCode, n)
	}
	return nil
}

// burn keeps a processor busy inside, past the edge.
func (w *watched) burn(d time.Duration) {
	w.Helper()
	began := time.Now()
	res, err := http.Get(fmt.Sprintf("http://%s/burn?%d", w.m.addr(8080), d.Milliseconds()))
	check(w.T, err)
	_, err = io.Copy(io.Discard, res.Body)
	check(w.T, errors.Join(err, res.Body.Close()))
	run := w.machines[len(w.machines)-1]
	run.burnt, run.each = append(run.burnt, span{began, time.Now()}), d
}

// samples returns all that was measured of the App. The end of a series is a NaN.
func (w *watched) samples() (series, error) {
	value, _, err := w.api.Query(w.Context(), fmt.Sprintf(`{__name__=~"%s.+",app=%q}[30m]`, hangar.MetricPrefixes.Neutral, app), time.Now())
	if err != nil {
		return nil, err
	}
	matrix, ok := value.(model.Matrix)
	if !ok {
		return nil, fmt.Errorf("samples are a %T", value)
	}
	all := series{}
	for _, s := range matrix {
		name := strings.TrimPrefix(string(s.Metric[model.MetricNameLabel]), hangar.MetricPrefixes.Neutral)
		for _, label := range slices.Sorted(maps.Keys(s.Metric)) {
			switch label {
			case model.MetricNameLabel, "app", "host", "region", "instance":
			default:
				name += " " + string(label) + "=" + string(s.Metric[label])
			}
		}
		if all[name] == nil {
			all[name] = map[time.Time]float64{}
		}
		for _, v := range s.Values {
			all[name][v.Timestamp.Time()] = float64(v.Value)
		}
	}
	return all, nil
}

// until asks for what was measured until it is as it should be. The store may be away meanwhile.
func (w *watched) until(what string, true func(series) bool) series {
	w.Helper()
	bounded, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	for {
		all, err := w.samples()
		if err == nil && true(all) {
			return all
		}
		if pause.For(bounded, 200*time.Millisecond) != nil {
			w.Fatalf("%s: it has not come to that; %v", what, err)
		}
	}
}

// newest is when a value of a series was taken last.
func newest(values map[time.Time]float64) time.Time {
	var last time.Time
	for at, v := range values {
		if !math.IsNaN(v) && at.After(last) {
			last = at
		}
	}
	return last
}

// measured waits until a number of samples of the Machine, and one of the edge, are there that were
// taken after a time.
func (w *watched) measured(after time.Time, n int) series {
	w.Helper()
	return w.until("the Machine is measured", func(all series) bool {
		count := 0
		for at, v := range all["instance_up"] {
			if at.After(after) && !math.IsNaN(v) {
				count++
			}
		}
		edge := false
		for name, values := range all {
			edge = edge || strings.HasPrefix(name, "edge_http_responses_count ") && newest(values).After(after)
		}
		return count >= n && edge
	})
}

// survived compares the series before a fault at a time with those afterwards: only the newest
// samples may be missing, and no value may differ.
func (w *watched) survived(before series, at time.Time, after series, window time.Duration) {
	w.Helper()
	for name, values := range before {
		var kept, missing time.Time // the newest, the oldest
		for taken, v := range values {
			now, ok := after[name][taken]
			switch {
			case !ok && (missing.IsZero() || taken.Before(missing)):
				missing = taken
			case ok && taken.After(kept):
				kept = taken
			}
			if ok && now != v && !(math.IsNaN(now) && math.IsNaN(v)) {
				w.Errorf("%s at %s was %v, and is %v", name, taken, v, now)
			}
			if !ok {
				w.lost[taken] = true
			}
		}
		if missing.IsZero() {
			continue
		}
		if age := at.Sub(missing); age > window {
			w.Errorf("%s lacks a sample that was %s old", name, age)
		}
		if missing.Before(kept) {
			w.Errorf("%s lacks a sample of %s, and has one of %s", name, missing, kept)
		}
	}
	if last := newest(before["instance_up"]); at.Sub(last) > lossWindow+metrics.Interval {
		w.Errorf("the newest sample was %s old before the fault", at.Sub(last))
	}
	var last time.Time
	for taken := range after["instance_up"] {
		if taken.Before(at) && taken.After(last) {
			last = taken
		}
	}
	if gap := at.Sub(last); gap > lossWindow+metrics.Interval {
		w.Errorf("nothing is there of the last %s before the fault", gap)
	}
}

// store returns the process of the store of metrics.
func (w *watched) store() int {
	w.Helper()
	pid, err := w.p.metricsStore()
	check(w.T, err)
	return pid
}

// metricsStore returns the process of the store of metrics, which is a child of the daemon that starts with
// the first samples.
func (p *platform) metricsStore() (int, error) {
	family, err := daemon.Family(p.d.PID())
	if err != nil {
		return 0, err
	}
	for _, m := range family {
		if m.Parent == p.d.PID() && strings.Contains(m.Command, "hangar-metrics") {
			return m.PID, nil
		}
	}
	return 0, fmt.Errorf("the daemon has no store of metrics: %+v", family)
}

// TestMeasuresOverFaults: the metrics of a Machine are true, through faults of the Machine, the
// daemon and the store: each value lies between a client's counts before and after, no counter
// runs backwards except where the documentation says so, and a kill -9 loses only the newest
// samples.
func TestMeasuresOverFaults(t *testing.T) {
	w := startWatched(t)
	w.burn(time.Second)
	before := w.measured(w.runs[0].from, 2)

	t.Log("kill -9 of the store")
	killed, pid := time.Now(), w.store()
	check(t, syscall.Kill(pid, syscall.SIGKILL))
	after := w.measured(killed, 1)
	w.survived(before, killed, after, lossWindow+metrics.Interval)
	if again := w.store(); again == pid {
		t.Errorf("process %d was killed, and is the store", pid)
	}

	t.Log("suspend")
	w.stop()
	w.m.suspend(t)
	suspended := time.Now()
	first := w.machines[0]
	first.to = suspended
	w.until("a suspended Machine has no series", func(series) bool {
		value, _, err := w.api.Query(t.Context(), fmt.Sprintf("%sinstance_up{instance=%q}", hangar.MetricPrefixes.Neutral, w.m.ref.ID), time.Now())
		vector, ok := value.(model.Vector)
		return err == nil && ok && len(vector) == 0
	})
	resuming := time.Now()
	w.machines = append(w.machines, &machineRun{span: span{from: resuming}})
	w.m.resume(t)
	w.ask(w.runs[0])
	w.burn(time.Second)
	before = w.measured(resuming, 1)
	for name, values := range before {
		if !strings.HasPrefix(name, "instance_") || strings.HasPrefix(name, "instance_exit_") {
			continue
		}
		marked := false
		for at, v := range values {
			if !at.After(suspended) || !at.Before(resuming) {
				continue
			}
			if marked = marked || math.IsNaN(v); !math.IsNaN(v) {
				t.Errorf("%s is %v at %s, while the Machine was suspended", name, v, at)
			}
		}
		if !marked {
			t.Errorf("%s has no mark of its end at the suspend", name)
		}
	}

	t.Log("restart of the daemon")
	w.stop()
	w.p.d.Term()
	ended := time.Now()
	w.runs[0].to = ended
	w.p.d.Up()
	w.begin()
	after = w.measured(ended, 2) // of which the next fault may take one
	w.survived(before, ended, after, 0)

	t.Log("kill -9 of the daemon and of the store")
	before = after
	w.stop()
	pid, killed = w.store(), time.Now()
	check(t, syscall.Kill(pid, syscall.SIGKILL))
	w.p.d.Kill()
	w.runs[1].to = time.Now()
	w.p.d.Up()
	w.begin()
	after = w.measured(killed, 1)
	w.survived(before, killed, after, lossWindow+metrics.Interval)

	t.Log("kill -9 of the daemon, whose store ends by itself")
	before = after
	w.stop()
	killed = time.Now()
	w.p.d.Kill()
	w.runs[2].to = time.Now()
	w.p.d.Up()
	w.begin()
	after = w.measured(killed, 1)
	w.survived(before, killed, after, lossWindow+metrics.Interval)
	w.stop()
	now := time.Now()
	w.runs[3].to, w.machines[1].to = now, now

	w.requestsAreTrue(after)
	w.machineIsTrue(after)
	w.networkIsTrue(after)
	w.countersGrow(after)
}

// sorted are the values of a series in the order of time, without the marks of its ends.
func sorted(values map[time.Time]float64) (at []time.Time) {
	for taken, v := range values {
		if !math.IsNaN(v) {
			at = append(at, taken)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	return at
}

// bounds are how many of some spans had ended before a time, and how many had begun before a later
// one: a sample has the time at which its round began, and the next round comes after the interval.
func bounds(all []span, at time.Time) (ended, begun int) {
	for _, s := range all {
		if s.to.Before(at) {
			ended++
		}
		if s.from.Before(at.Add(metrics.Interval)) {
			begun++
		}
	}
	return ended, begun
}

// requestsAreTrue compares the answers that the edge has counted with those that the client got, in
// each run of the daemon.
func (w *watched) requestsAreTrue(all series) {
	w.Helper()
	colours := []string{}
	for n, run := range w.runs {
		colour, compared := "", 0
		for name, values := range all {
			at, ok := strings.CutPrefix(name, "edge_http_responses_count proxy_id=")
			at, ok2 := strings.CutSuffix(at, " status=200")
			if !ok || !ok2 {
				continue
			}
			for _, taken := range sorted(values) {
				if taken.Before(run.from) || taken.After(run.to) {
					continue
				}
				colour, compared = at, compared+1
				ended, begun := bounds(run.asks, taken)
				// The edge counts an answer when the client may have it already.
				if v := values[taken]; v < float64(ended-1) || v > float64(begun) {
					w.Errorf("run %d: %s is %v at %s, when %d answers had come and %d were asked for", n, name, v, taken, ended, begun)
				}
			}
		}
		if compared == 0 {
			w.Errorf("run %d of the daemon has no samples of its edge", n)
		}
		w.Logf("run %d: %d samples of %s, %d requests", n, compared, colour, len(run.asks))
		if n > 0 && colour == colours[n-1] {
			w.Errorf("runs %d and %d of the edge are both %s", n-1, n, colour)
		}
		colours = append(colours, colour)
	}
}

// machineIsTrue compares what the Machine has used with what its program did, in each of its runs.
func (w *watched) machineIsTrue(all series) {
	w.Helper()
	user, system := all["instance_cpu cpu_id=all mode=user"], all["instance_cpu cpu_id=all mode=system"]
	var last time.Duration
	for n, run := range w.machines {
		compared := 0
		for _, taken := range sorted(user) {
			if taken.Before(run.from) || taken.After(run.to) {
				continue
			}
			used := time.Duration(user[taken]+system[taken]) * 10 * time.Millisecond
			if compared++; compared == 1 && n > 0 && used >= last {
				w.Errorf("after a resume the Machine has used %s, and %s before: it has not begun again", used, last)
			}
			ended, _ := bounds(run.burnt, taken)
			least, most := time.Duration(ended)*run.each, time.Duration(runtime.NumCPU())*taken.Add(metrics.Interval).Sub(run.from)
			if used < least || used > most {
				w.Errorf("run %d: the Machine has used %s at %s, not %s to %s", n, used, taken, least, most)
			}
			last = used
		}
		if compared == 0 {
			w.Errorf("run %d of the Machine has no samples", n)
		}
	}
	for name, want := range map[string]float64{"instance_up": 1, "instance_memory_mem_total": 256 << 20} {
		for _, taken := range sorted(all[name]) {
			if got := all[name][taken]; got != want {
				w.Errorf("%s is %v at %s, want %v", name, got, taken, want)
			}
		}
	}
}

// networkIsTrue compares what the Machine has sent with what the client got, over all runs.
func (w *watched) networkIsTrue(all series) {
	w.Helper()
	var asks []span
	for _, run := range w.runs {
		asks = append(asks, run.asks...)
	}
	const other = 1 << 20 // bytes of what is not for requests to the edge
	sent := all["instance_net_sent_bytes device=eth0"]
	last := 0.0
	for _, taken := range sorted(sent) {
		ended, begun := bounds(asks, taken)
		v := sent[taken]
		if least, most := float64(ended*askBytes), float64(begun*(askBytes+wireBytes)+other); v < least || v > most {
			w.Errorf("the Machine has sent %v bytes at %s, not %v to %v", v, taken, least, most)
		}
		if v < last {
			w.Errorf("the Machine has sent %v bytes at %s, and %v before", v, taken, last)
		}
		last = v
	}
	if last == 0 {
		w.Error("there is no sample of what the Machine has sent")
	}
}

// countersGrow fails for a counter of the Machine that runs backwards within one of its runs, or one
// of the edge that does within a run of the daemon.
func (w *watched) countersGrow(all series) {
	w.Helper()
	families := map[string]builtin.Type{}
	for _, f := range builtin.Reference() {
		for _, name := range f.Series() {
			families[name] = f.Type
		}
	}
	compared := 0
	for name, values := range all {
		family, _, _ := strings.Cut(name, " ")
		if families[family] == builtin.Gauge {
			continue
		}
		var runs []span
		for _, run := range w.runs {
			runs = append(runs, run.span)
		}
		if strings.HasPrefix(name, "instance_") {
			runs = nil
			for _, run := range w.machines {
				runs = append(runs, run.span)
			}
		}
		for _, run := range runs {
			last := 0.0
			for _, taken := range sorted(values) {
				if taken.Before(run.from) || taken.After(run.to) {
					continue
				}
				if v := values[taken]; v < last {
					w.Errorf("%s is %v at %s, and %v before", name, v, taken, last)
				}
				last = values[taken]
				compared++
			}
		}
	}
	w.Logf("%d samples of counters, %d moments are lost", compared, len(w.lost))
	if compared == 0 {
		w.Error("there are no counters")
	}
}

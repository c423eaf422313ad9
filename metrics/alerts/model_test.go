package alerts_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
)

var (
	seed  = flag.Uint64("seed", 0, "of TestModel; 0: a new one for each run")
	seeds = flag.Int("seeds", 4, "how many seeds TestModel tries")
)

// reference is the state of one alert, advanced by the simplest possible code.
type reference struct {
	wait, keep time.Duration

	state                        string // "", pending, firing or resolved
	since, fired, kept, resolved time.Time
}

// step is one evaluation that did not fail.
func (r *reference) step(at time.Time, holds bool) {
	if holds {
		if r.state == "" || r.state == "resolved" {
			r.state, r.since, r.fired, r.resolved = "pending", at, time.Time{}, time.Time{}
		}
		r.kept = time.Time{}
		if r.state == "pending" && !at.Before(r.since.Add(r.wait)) {
			r.state, r.fired = "firing", at
		}
		return
	}
	switch r.state {
	case "pending":
		*r = reference{wait: r.wait, keep: r.keep}
	case "firing":
		if r.kept.IsZero() {
			r.kept = at
		}
		if !at.Before(r.kept.Add(r.keep)) {
			r.state, r.resolved = "resolved", at
		}
	case "resolved":
		if at.After(r.resolved.Add(15 * time.Minute)) {
			*r = reference{wait: r.wait, keep: r.keep}
		}
	}
}

func (r *reference) String() string {
	switch r.state {
	case "":
		return ""
	case "pending":
		return "pending since " + r.since.Format(time.TimeOnly)
	case "firing":
		return fmt.Sprintf("firing since %s, %s", r.since.Format(time.TimeOnly), r.fired.Format(time.TimeOnly))
	default:
		return fmt.Sprintf("resolved since %s, %s, %s", r.since.Format(time.TimeOnly), r.fired.Format(time.TimeOnly), r.resolved.Format(time.TimeOnly))
	}
}

func shown(a hangar.Alert) string {
	r := reference{state: string(a.State), since: a.ActiveAt.UTC(), fired: a.FiredAt.UTC(), resolved: a.ResolvedAt.UTC()}
	return r.String()
}

// world answers queries at random, and advances the references accordingly.
type world struct {
	mu         sync.Mutex
	random     *rand.Rand
	truth      map[string]bool       // by expression and series
	references map[string]*reference // the same
	waits      map[string][2]time.Duration
}

const worldSeries = 4

func (w *world) query(_ context.Context, _ metrics.Tenant, expr string, at time.Time) ([]metrics.Sample, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.random.IntN(10) == 0 {
		return nil, errors.New("down")
	}
	var list []metrics.Sample
	for i := range worldSeries {
		key := fmt.Sprintf("%s %d", expr, i)
		if w.random.IntN(6) == 0 {
			w.truth[key] = !w.truth[key]
		}
		r := w.references[key]
		if r == nil {
			r = &reference{wait: w.waits[expr][0], keep: w.waits[expr][1]}
			w.references[key] = r
		}
		r.step(at.UTC(), w.truth[key])
		if w.truth[key] {
			list = append(list, sample(fmt.Sprint(i), w.random.Float64()))
		}
	}
	return list, nil
}

func (w *world) want() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]string{}
	for key, r := range w.references {
		if s := r.String(); s != "" {
			all[key] = s
		}
	}
	return all
}

// TestModel: states match a simple model, across restarts and crashes at any moment.
func TestModel(t *testing.T) {
	n := *seeds
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	} else {
		n = 1
	}
	for i := range n {
		if one := first + uint64(i); !t.Run(fmt.Sprint("seed=", one), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { model(t, one) })
		}) {
			t.Fatalf("repeat with -run TestModel -seed %d", one)
		}
	}
}

func model(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	w := &world{
		random: rand.New(rand.NewPCG(seed, 2)), truth: map[string]bool{}, references: map[string]*reference{},
		waits: map[string][2]time.Duration{},
	}
	var file strings.Builder
	file.WriteString("groups:\n")
	for g := range 3 {
		fmt.Fprintf(&file, "- name: g%d\n  interval: %ds\n  rules:\n", g, []int{15, 20, 60}[random.IntN(3)])
		for r := range 3 {
			name := fmt.Sprintf("r%d%d", g, r)
			wait, keep := time.Duration(random.IntN(4))*30*time.Second, time.Duration(random.IntN(3))*45*time.Second
			w.waits[name] = [2]time.Duration{wait, keep}
			fmt.Fprintf(&file, "  - {alert: %s, expr: %s, for: %ds, keep_firing_for: %ds}\n", name, name, int(wait.Seconds()), int(keep.Seconds()))
		}
	}
	b := newBed(t, w.query)
	defer func() { b.stop() }()
	b.feed.put(acme, file.String())
	last := map[string]string{} // the last notification of each alert
	for step := range 60 {
		switch random.IntN(12) {
		case 0:
			b.restart(false)
		case 1:
			synctest.Wait()
			b.restart(true)
		case 2:
			b.stop()
			time.Sleep(time.Duration(random.IntN(1200)) * time.Second)
			b.start()
		case 3:
			b.again()
		}
		time.Sleep(time.Duration(random.IntN(90_000)+20) * time.Millisecond)
		synctest.Wait()
		got := map[string]string{}
		for _, a := range b.report(acme.ID).Alerts {
			got[a.Name+" "+a.Labels["i"]] = shown(a)
		}
		if diff := cmp.Diff(w.want(), got); diff != "" {
			t.Fatalf("step %d (-model +evaluator):\n%s", step, diff)
		}
		for _, text := range b.told.take() {
			fields := strings.Fields(text)
			last[fields[1]+" "+fields[2]] = fields[3]
		}
		for key, state := range got {
			state, _, _ = strings.Cut(state, " ")
			if state != "pending" && last[key] != state {
				t.Fatalf("step %d: %s is %s, and receivers got %q", step, key, state, last[key])
			}
		}
	}
}

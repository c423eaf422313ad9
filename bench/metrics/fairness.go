package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/gateway"
)

const (
	lightEvery   = 100 * time.Millisecond // a question of the organization that is looked at
	heavyClients = 32                     // of the other one
	// afterRefusal is how long a refused client of the other one waits before it tries again.
	afterRefusal = 50 * time.Millisecond
)

// The questions of both. The heavy one reads all that its organization has.
var (
	lightQuestion = question{`sum(rate(platform_edge_http_responses_count{app="APP"}[1m])) by (status)`, true}
	heavyQuestion = question{`sum(rate({__name__=~"platform_.+"}[5m])) by (app, instance)`, true}
)

// fairness is what the light questions of an organization took, by gateway and bare store.
type fairness struct {
	alone, beside [2][]time.Duration
	failed        [2]int // of them, beside heavy ones
	ratios        [2][]float64
	heavy         [2]int64 // answers to heavy questions
	refused       [2]int64 // and what was refused of them
}

// measureFairness asks the light questions of the organization with the first Apps, alone and while
// the next one asks heavy ones.
func measureFairness(ctx context.Context, b *bench, a *apps, k *kept, end time.Time) (*fairness, error) {
	through, stop, err := k.serve(ctx, b.dir, gateway.DefaultLimits())
	if err != nil {
		return nil, err
	}
	f := &fairness{}
	both := [2]asker{through, k.bare}
	for round := range b.o.rounds {
		for n := range both {
			which := (n + round) % len(both)
			if err := f.measure(ctx, b.o, a, k, both[which], which, end); err != nil {
				return nil, errors.Join(err, stop())
			}
		}
		b.say("light beside heavy queries: round %d of %d", round+1, b.o.rounds)
	}
	return f, stop()
}

func (f *fairness) measure(ctx context.Context, o options, a *apps, k *kept, of asker, which int, end time.Time) error {
	if err := k.settled(ctx); err != nil {
		return err
	}
	alone, failed := light(ctx, of, a, end, o.span)
	if failed > 0 {
		return fmt.Errorf("%d light questions failed that were alone", failed)
	}
	stop := f.press(ctx, of, which, end)
	if err := pause.For(ctx, o.span/4); err != nil { // until all of them are under way
		stop()
		return err
	}
	beside, failed := light(ctx, of, a, end, o.span)
	stop()
	f.alone[which] = append(f.alone[which], alone...)
	f.beside[which] = append(f.beside[which], beside...)
	f.failed[which] += failed
	f.ratios[which] = append(f.ratios[which], float64(quantile(beside, .5))/float64(quantile(alone, .5)))
	return ctx.Err()
}

// light asks a light question at each interval of a span, and returns how long each answer took
// since it was due, those included that failed.
func light(ctx context.Context, of asker, a *apps, end time.Time, span time.Duration) (took []time.Duration, failed int) {
	began := time.Now()
	for i := 0; i < int(max(1, span/lightEvery)) && ctx.Err() == nil; i++ {
		due := began.Add(time.Duration(i) * lightEvery)
		if pause.For(ctx, time.Until(due)) != nil {
			break
		}
		if _, err := of.ask(ctx, tenant(0), lightQuestion.app(i%(a.count/a.orgs)), end); err != nil {
			failed++
		}
		took = append(took, time.Since(due))
	}
	return took, failed
}

// press asks heavy questions of the second organization with many clients until the returned
// function is called.
func (f *fairness) press(ctx context.Context, of asker, which int, end time.Time) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	var answered, refused atomic.Int64
	for range heavyClients {
		clients.Go(func() {
			for ctx.Err() == nil {
				_, err := of.ask(ctx, tenant(1), heavyQuestion, end)
				switch {
				case err == nil:
					answered.Add(1)
				case ctx.Err() == nil:
					refused.Add(1)
					_ = pause.For(ctx, afterRefusal) // the loop looks
				}
			}
		})
	}
	return func() {
		cancel()
		clients.Wait()
		f.heavy[which] += answered.Load()
		f.refused[which] += refused.Load()
	}
}

func (f *fairness) markdown(w *strings.Builder, o options) {
	limits := gateway.DefaultLimits()
	fmt.Fprintf(w, "\n### An organization beside another\n\nOf %d organizations one asks a light question each %s, in %d rounds of %s: alone, and while %d clients of another ask heavy ones, each as soon\n"+
		"as it has its last answer. The gateway lets an organization have %d at a time. Times are from when a question was due.\n\n"+
		"light: `%s`; heavy: `%s`; both over an hour in steps of %s\n\n"+
		"| | alone p50 | p99 | beside p50 | p99 | ratio of p50 | failed | heavy ones answered | refused |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
		fairAt, lightEvery, o.rounds, o.span, heavyClients, limits.Concurrent, lightQuestion.text, heavyQuestion.text, metrics.Interval)
	for i, name := range []string{"gateway", "bare store"} {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %d of %d | %d | %d |\n", name,
			brief(quantile(f.alone[i], .5)), brief(quantile(f.alone[i], .99)), brief(quantile(f.beside[i], .5)), brief(quantile(f.beside[i], .99)),
			times(median(f.ratios[i])), f.failed[i], len(f.beside[i]), f.heavy[i], f.refused[i])
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/bench/harness"
)

const (
	goalRecover = time.Second
	// manySeries is how many series a store has that is not empty.
	manySeries = 100_000
)

// recovery is how long it took until a store answered: from its first query, and from kill -9.
type recovery struct {
	series       int
	start, again []time.Duration
}

func measureRecovery(ctx context.Context, b *bench) (string, error) {
	var all []recovery
	for _, series := range []int{0, manySeries} {
		r, err := measureRecoveryOf(ctx, b, series)
		if err != nil {
			return "", fmt.Errorf("%d series: %w", series, err)
		}
		all = append(all, r)
	}
	return recoveryMarkdown(b.o, all), nil
}

func measureRecoveryOf(ctx context.Context, b *bench, series int) (r recovery, err error) {
	at := b.newStore()
	defer func() { err = errors.Join(err, at.remove()) }()
	r.series = series
	if series > 0 {
		err := at.with(ctx, func(k *kept) error { return fillMany(ctx, k) })
		if err != nil {
			return r, err
		}
	}
	for round := range b.o.rounds {
		if _, err := harness.Quiet(ctx); err != nil {
			return r, err
		}
		// Each kill is the first of a store: the second in succession would be followed by a pause.
		k, err := at.openIdle(ctx)
		if err != nil {
			return r, err
		}
		if err := errors.Join(r.measure(ctx, k), k.Close()); err != nil {
			return r, err
		}
		b.say("recover, %d series: round %d of %d: %s", series, round+1, b.o.rounds, r.again[round].Round(time.Millisecond))
	}
	return r, nil
}

// fillMany writes a sample of each of many series.
func fillMany(ctx context.Context, k *kept) error {
	a := newApps(manySeries, 1)
	end := time.Now().Truncate(time.Second) // as exact as questions are
	err := eachOf(ctx, a.count, func(ctx context.Context, app int) error {
		return k.bare.Write(ctx, tenant(0), a.samples(nil, a.labels(app), end))
	})
	if err != nil {
		return err
	}
	return errors.Join(k.found(ctx, tenant(0), countUp, end, a.count*machinesPerApp), k.settled(ctx))
}

// measure makes a round with a store that was just opened.
func (r *recovery) measure(ctx context.Context, k *kept) error {
	began := time.Now()
	if err := k.answers(ctx); err != nil {
		return err
	}
	r.start = append(r.start, time.Since(began))
	if r.series > 0 {
		if err := fillMany(ctx, k); err != nil { // so that it is in use
			return err
		}
	}
	pid := k.PID()
	began = time.Now()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	for {
		if err := k.answers(ctx); err != nil {
			return err
		}
		if k.PID() != pid { // else it was the one that was killed
			break
		}
	}
	r.again = append(r.again, time.Since(began))
	return nil
}

func recoveryMarkdown(o options, all []recovery) string {
	var w strings.Builder
	heading(&w, "recovery", o)
	fmt.Fprintf(&w, "- from kill -9 of a store in use, and from the first query of a daemon, until the answer to a query; medians of %d rounds\n", o.rounds)
	g := newGoals(&w)
	for _, r := range all {
		took := median(r.again)
		g.row("kill -9 until an answer, "+size(r.series), brief(took), "≤ "+brief(goalRecover), took <= goalRecover)
	}
	w.WriteString("\n| | first query until its answer | longest | kill -9 until an answer | longest |\n|---|--:|--:|--:|--:|\n")
	for _, r := range all {
		fmt.Fprintf(&w, "| %s | %s | %s | %s | %s |\n", size(r.series), brief(median(r.start)), brief(quantile(r.start, 1)), brief(median(r.again)), brief(quantile(r.again, 1)))
	}
	return w.String()
}

// size says how many series there are.
func size(series int) string {
	if series == 0 {
		return "no series"
	}
	return thousands(series) + " series"
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
)

// goalRest is the private memory that a store may take that is empty, in bytes.
const goalRest = 30e6

// mostRounds is how often memory is measured at most: it differs little from one round to the next.
const mostRounds = 3

// memories are the private memory of processes, in bytes.
type memories struct {
	empty, filled, reopened []int64 // of the store
	daemon, daemonBase      int64   // of the process of a Scraper and a Writer
	daemonStore             int64   // of their store
}

func measureMemory(ctx context.Context, b *bench) (string, error) {
	var m memories
	rounds := min(b.o.rounds, mostRounds)
	for round := range rounds {
		if err := m.measure(ctx, b); err != nil {
			return "", err
		}
		b.say("memory: round %d of %d", round+1, rounds)
	}
	if err := m.measureDaemon(ctx, b); err != nil {
		return "", err
	}
	return m.markdown(b.o), nil
}

// measure makes a round with a new store.
func (m *memories) measure(ctx context.Context, b *bench) (err error) {
	at := b.newStore()
	defer func() { err = errors.Join(err, at.remove()) }()
	note := func(k *kept, into *[]int64) error {
		n, err := harness.OwnMemory([]int{k.PID()})
		*into = append(*into, n)
		return err
	}
	err = at.with(ctx, func(k *kept) error {
		if err := k.settled(ctx); err != nil {
			return err
		}
		if err := note(k, &m.empty); err != nil {
			return err
		}
		if err := fillMany(ctx, k); err != nil {
			return err
		}
		return note(k, &m.filled)
	})
	if err != nil {
		return err
	}
	return at.with(ctx, func(k *kept) error {
		if err := k.settled(ctx); err != nil {
			return err
		}
		return note(k, &m.reopened)
	})
}

// measureDaemon measures a scraper's process once each Machine was asked twice.
func (m *memories) measureDaemon(ctx context.Context, b *bench) error {
	d, err := startScraping(ctx, b)
	if err != nil {
		return err
	}
	m.daemonBase = d.base
	b.say("memory: two intervals of scraping")
	err = pause.For(ctx, 2*metrics.Interval)
	if err == nil {
		m.daemon, err = harness.OwnMemory([]int{d.scraper.pid()})
	}
	if err == nil {
		m.daemonStore, err = harness.OwnMemory([]int{d.kept.PID()})
	}
	return errors.Join(err, d.undo.Run())
}

func (m *memories) markdown(o options) string {
	var w strings.Builder
	heading(&w, "memory", o)
	fmt.Fprintf(&w, "- private memory without pages of files; of the store medians of %d rounds, each with new data\n", len(m.empty))
	g := newGoals(&w)
	rest := median(m.empty)
	g.row("the store at rest, no series", megabytes(rest), "≤ "+megabytes(goalRest), rest <= goalRest)
	fmt.Fprintf(&w, "\n| | |\n|---|--:|\n")
	for _, row := range []struct {
		name  string
		bytes int64
	}{
		{"the store, no series", rest},
		{fmt.Sprintf("the store, %s series that were just written", thousands(manySeries)), median(m.filled)},
		{"the same after another start", median(m.reopened)},
		{fmt.Sprintf("scraper and Writer, %s Machines with %d series each, in a process of their own", thousands(machineTargets), seriesPerTarget), m.daemon},
		{"of that, before they knew of any Machine", m.daemonBase},
		{"their store", m.daemonStore},
	} {
		fmt.Fprintf(&w, "| %s | %s |\n", row.name, megabytes(row.bytes))
	}
	return w.String()
}

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	// settling is how long a daemon may idle before its memory is read.
	settling = 10 * time.Second
	// manyRunning and manyStopped are how many Machines a daemon has when its memory
	// is compared with that of an idle one.
	manyRunning = 100
	manyStopped = 1000
	// together is how many are created at once.
	together = 8
)

// The goals for a daemon, in bytes and seconds.
const (
	goalIdle    = 150 << 20
	goalRunning = 1 << 20
	goalStopped = 64 << 10
	goalReady   = 2
)

// footprint measures the daemon itself: its memory, and how soon it is back.
func (b *bench) footprint(ctx context.Context) error {
	running, stopped, runs := manyRunning, manyStopped, b.options.runs
	if b.options.quick {
		running, stopped = crowdFew, crowdMost
	}
	d, err := startDaemon(ctx, filepath.Join(b.options.bin, "hangar"))
	if err != nil {
		return err
	}
	b.cleanup.Add(d.Down)
	p, err := newPlatform(ctx, d, b.program, b.options.cpus)
	if err != nil {
		return err
	}
	b.cleanup.Add(p.close)
	idle, err := b.crashes(ctx, d, p, 0, runs)
	if err != nil {
		return err
	}
	b.results.add("daemon, idle: resident memory", float64(idle.rss), unitBytes, runs, goalIdle)
	b.results.add("daemon, idle: of it anonymous", float64(idle.anonymous), unitBytes, runs, 0)

	few := min(crowdFew, running/2)
	machines, err := create(ctx, p, few, false)
	if err != nil {
		return err
	}
	if _, err := b.crashes(ctx, d, p, few, runs); err != nil {
		return err
	}
	more, err := create(ctx, p, running-few, false)
	if err != nil {
		return err
	}
	machines = append(machines, more...)
	if err := b.perMachine(ctx, d, fmt.Sprintf("per running Machine, after creating %d", running), idle, running, goalRunning); err != nil {
		return err
	}
	busy, err := b.crashes(ctx, d, p, running, runs)
	if err != nil {
		return err
	}
	b.growth(fmt.Sprintf("per running Machine, %d taken back after a crash", running), idle, busy, running, goalRunning)
	if err := destroyAll(ctx, machines); err != nil {
		return err
	}
	if err := d.Kill(); err != nil {
		return err
	}
	if _, err := d.Up(ctx); err != nil {
		return err
	}
	if idle, err = settled(ctx, d); err != nil {
		return err
	}
	if _, err = create(ctx, p, stopped, true); err != nil {
		return err
	}
	if err := b.perMachine(ctx, d, fmt.Sprintf("per stopped Machine, after creating %d", stopped), idle, stopped, goalStopped); err != nil {
		return err
	}
	if err := d.Kill(); err != nil {
		return err
	}
	if _, err := d.Up(ctx); err != nil {
		return err
	}
	rest, err := settled(ctx, d)
	if err != nil {
		return err
	}
	b.growth(fmt.Sprintf("per stopped Machine, %d taken back after a crash", stopped), idle, rest, stopped, goalStopped)
	return nil
}

// perMachine compares a daemon as it is now with an idle one.
func (b *bench) perMachine(ctx context.Context, d *harness.Daemon, name string, idle usage, machines int, goal float64) error {
	now, err := settled(ctx, d)
	if err != nil {
		return err
	}
	b.growth(name, idle, now, machines, goal)
	return nil
}

func (b *bench) growth(name string, idle, now usage, machines int, goal float64) {
	each := func(before, after int64) float64 { return float64(after-before) / float64(machines) }
	b.results.add("daemon, "+name+": resident memory", each(idle.rss, now.rss), unitBytes, 1, goal)
	b.results.add("daemon, "+name+": of it anonymous", each(idle.anonymous, now.anonymous), unitBytes, 1, 0)
}

// crashes kills the daemon again and again, records how soon it is back, complains if
// a Machine did not live through it, and returns the daemon's memory at the end.
func (b *bench) crashes(ctx context.Context, d *harness.Daemon, p *platform, machines, times int) (usage, error) {
	var took []time.Duration
	for range times {
		if err := b.quiet(ctx); err != nil {
			return usage{}, err
		}
		if err := d.Kill(); err != nil {
			return usage{}, err
		}
		ready, err := d.Up(ctx)
		if err != nil {
			return usage{}, err
		}
		took = append(took, ready)
	}
	states := []hangar.MachineState{hangar.MachineStarted}
	alive, err := p.api.Machines(ctx, app, hangar.MachineFilter{States: states})
	if err != nil {
		return usage{}, err
	}
	if len(alive) != machines {
		return usage{}, fmt.Errorf("%d of %d Machines run after %d crashes", len(alive), machines, times)
	}
	name := fmt.Sprintf("daemon, ready after kill -9 with %d Machines", machines)
	b.results.add(name+": median", median(took).Seconds(), unitSeconds, times, goalReady)
	b.results.add(name+": slowest", slices.Max(took).Seconds(), unitSeconds, times, 0)
	return settled(ctx, d)
}

// settled waits until a daemon is idle and returns its memory.
func settled(ctx context.Context, d *harness.Daemon) (usage, error) {
	if err := pause.For(ctx, settling); err != nil {
		return usage{}, err
	}
	return memoryOf(d.PID())
}

// create makes n Machines, some at a time, and returns when all run or, if at rest,
// are stopped.
func create(ctx context.Context, p *platform, n int, atRest bool) ([]instance, error) {
	made := make([]instance, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(together)
	for i := range n {
		group.Go(func() error {
			if !atRest {
				in, _, err := p.Boot(ctx, i, 0)
				made[i] = in
				return err
			}
			m, err := p.api.CreateMachine(ctx, app, hangar.MachineCreate{Config: p.config(0), SkipLaunch: true})
			if err != nil {
				return err
			}
			in := &machine{api: p.api, ref: m.Ref()}
			made[i] = in
			return in.wait(ctx, hangar.MachineStopped)
		})
	}
	if err := group.Wait(); err != nil {
		return nil, errors.Join(fmt.Errorf("create %d machines", n), err)
	}
	return made, nil
}

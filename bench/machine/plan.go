package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/internal/pause"
)

// What is measured.
const (
	opAnswer  = "API answer of create"
	opCreate  = "create → started"
	opReply   = "create → first reply"
	opStart   = "start → first reply"
	opExec    = "exec"
	opSuspend = "suspend"
	opResume  = "resume → first reply"
	opDestroy = "destroy"
)

const (
	crowdFew  = 10
	crowdMost = 50
	// everyCrowd is how many runs there are for one of the greatest crowd, whose
	// samples are many.
	everyCrowd = 5
)

// mostFailures is how many measurements may fail: one should not be the end of an
// hour of measuring, and all of them are no result.
const mostFailures = 3

// smallMB is the memory of instances unless it is what is measured.
const smallMB = 16

// bench is one measuring.
type bench struct {
	options options
	results *results
	rng     *rand.Rand
	cleanup harness.Undo

	dir     string // temporary
	program string // that instances run
	stock   string // the runsc program
	systems []system
	podman  string // why there is no Podman, or ""
	waited  int    // how often the server was not idle
	failed  []error
}

// measure does everything that was asked for.
func (b *bench) measure(ctx context.Context) error {
	if err := b.prepare(ctx); err != nil {
		return err
	}
	began := time.Now()
	for round := range b.options.runs {
		jobs := b.round(round)
		b.rng.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
		for _, job := range jobs {
			if err := b.quiet(ctx); err != nil {
				return err
			}
			err := job(ctx)
			switch {
			case err == nil:
			case ctx.Err() != nil:
				return err
			default:
				fmt.Fprintln(os.Stderr, "failed:", err)
				if b.failed = append(b.failed, err); len(b.failed) > mostFailures {
					return fmt.Errorf("%d failures, the last: %w", len(b.failed), err)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "run %d of %d done after %s\n", round+1, b.options.runs, time.Since(began).Round(time.Second))
	}
	if b.options.skip.Has(partFootprint) {
		return nil
	}
	return b.footprint(ctx)
}

// prepare makes all that is needed and not measured.
func (b *bench) prepare(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "hangar-bench-")
	if err != nil {
		return err
	}
	b.dir = dir
	b.cleanup.Add(func() error { return os.RemoveAll(dir) })
	b.program = filepath.Join(dir, "rootfs", "guest")
	if err := harness.Build(ctx, b.program, "-ldflags=-s -w", "-trimpath", "./bench/guest"); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Dir(b.program), 0o755); err != nil { //nolint:gosec // a root directory
		return err
	}
	d, err := startDaemon(ctx, filepath.Join(b.options.bin, "hangar"))
	if err != nil {
		return err
	}
	b.cleanup.Add(d.Down)
	platform, err := newPlatform(ctx, d, b.program, b.options.cpus)
	if err != nil {
		return err
	}
	b.cleanup.Add(platform.close)
	b.systems = append(b.systems, platform)
	return b.prepareOthers(ctx)
}

// prepareOthers makes the systems that Machines are compared with.
func (b *bench) prepareOthers(ctx context.Context) error {
	if b.options.skip.Has(nameRunsc) && b.options.skip.Has(namePodman) {
		return nil
	}
	wires, err := makeWires(ctx, max(crowdFew, b.most()))
	b.cleanup.Add(func() error {
		var errs []error
		for _, w := range wires {
			errs = append(errs, w.remove())
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	rootfs := filepath.Dir(b.program)
	for _, d := range []string{"tmp", "proc", "sys", "dev", "etc", "run"} {
		if err := os.Mkdir(filepath.Join(rootfs, d), 0o755); err != nil { //nolint:gosec // a root directory
			return err
		}
	}
	if !b.options.skip.Has(nameRunsc) {
		b.stock = filepath.Join(b.dir, "runsc")
		if err := harness.Build(ctx, b.stock, "-ldflags=-s -w", "-trimpath", "-tags=runsc", "./bench/runsc"); err != nil {
			return err
		}
		r := &runsc{program: b.stock, dir: filepath.Join(b.dir, "sandboxes"), rootfs: rootfs, wires: wires}
		if err := os.Mkdir(r.dir, 0o700); err != nil {
			return err
		}
		b.cleanup.Add(r.remove)
		b.systems = append(b.systems, r)
	}
	if b.options.skip.Has(namePodman) {
		b.podman = "left out"
		return nil
	}
	dir := filepath.Join(b.dir, "podman")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	p, err := newPodman(ctx, dir, rootfs, wires)
	if err != nil {
		b.podman = err.Error()
		fmt.Fprintln(os.Stderr, "without podman:", err)
		return nil
	}
	b.cleanup.Add(p.remove)
	b.systems = append(b.systems, p)
	return nil
}

// most is how many instances of a system there are at once.
func (b *bench) most() int {
	switch {
	case b.options.skip.Has(partCrowd):
		return 1
	case b.options.quick:
		return crowdFew
	default:
		return crowdMost
	}
}

// round is what is done in one run, before it is shuffled.
func (b *bench) round(n int) []func(context.Context) error {
	var jobs []func(context.Context) error
	for _, s := range b.systems {
		crowds := []int{1}
		if !b.options.skip.Has(partCrowd) {
			crowds = append(crowds, crowdFew)
			if !b.options.quick && n%everyCrowd == 0 {
				crowds = append(crowds, crowdMost)
			}
		}
		for _, crowd := range crowds {
			jobs = append(jobs, func(ctx context.Context) error { return b.life(ctx, s, crowd) })
		}
		if !s.Suspends() || b.options.skip.Has(partMemory) {
			continue
		}
		for _, mb := range []int{256, 1024} {
			jobs = append(jobs, func(ctx context.Context) error { return b.memory(ctx, s, mb) })
		}
	}
	return jobs
}

// life takes n instances through everything, all at once at each step.
func (b *bench) life(ctx context.Context, s system, n int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, %d at once: %w", s.Name(), n, err)
		}
	}()
	in := make([]instance, n)
	defer func() { err = errors.Join(err, destroyAll(context.WithoutCancel(ctx), in)) }()
	record := b.results.of(s.Name(), n, smallMB)

	boots := make([]boot, n)
	if err := each(ctx, n, func(ctx context.Context, i int) (err error) {
		in[i], boots[i], err = s.Boot(ctx, i, smallMB)
		return err
	}); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	replied := make([]time.Duration, n)
	for i, boot := range boots {
		if boot.Answered > 0 {
			record.add(opAnswer, boot.Answered)
		}
		record.add(opCreate, boot.Started)
		record.add(opReply, boot.Replied)
		replied[i] = boot.Replied
	}
	record.finished(opReply, replied)

	// step measures what each instance does; what it returns counts if it is not 0.
	step := func(op string, f func(context.Context, instance) (time.Duration, error)) error {
		took := make([]time.Duration, n)
		if err := each(ctx, n, func(ctx context.Context, i int) (err error) {
			began := time.Now()
			took[i], err = f(ctx, in[i])
			if took[i] == 0 {
				took[i] = time.Since(began)
			}
			return err
		}); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if op == "" {
			return nil
		}
		for _, t := range took {
			record.add(op, t)
		}
		record.finished(op, took)
		return nil
	}
	plain := func(f func(instance, context.Context) error) func(context.Context, instance) (time.Duration, error) {
		return func(ctx context.Context, in instance) (time.Duration, error) { return 0, f(in, ctx) }
	}
	if err := step(opExec, plain(instance.Exec)); err != nil {
		return err
	}
	if s.Restarts() {
		if err := step("", plain(instance.Stop)); err != nil {
			return fmt.Errorf("stop: %w", err)
		}
		if err := step(opStart, func(ctx context.Context, in instance) (time.Duration, error) { return in.Start(ctx) }); err != nil {
			return err
		}
	}
	if s.Suspends() && !b.options.skip.Has(partMemory) {
		before := make([]int, n)
		if err := each(ctx, n, func(ctx context.Context, i int) (err error) {
			before[i], err = touch(ctx, in[i], smallMB)
			return err
		}); err != nil {
			return err
		}
		if err := step(opSuspend, plain(instance.Suspend)); err != nil {
			return err
		}
		if err := step(opResume, func(ctx context.Context, in instance) (time.Duration, error) { return in.Resume(ctx) }); err != nil {
			return err
		}
		if err := each(ctx, n, func(ctx context.Context, i int) error { return remembers(ctx, in[i], before[i]) }); err != nil {
			return err
		}
	}
	if err := step(opDestroy, plain(instance.Destroy)); err != nil {
		return err
	}
	clear(in)
	return nil
}

// memory suspends and resumes one instance that has touched so much.
func (b *bench) memory(ctx context.Context, s system, mb int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, %d MB: %w", s.Name(), mb, err)
		}
	}()
	in := make([]instance, 1)
	defer func() { err = errors.Join(err, destroyAll(context.WithoutCancel(ctx), in)) }()
	if in[0], _, err = s.Boot(ctx, 0, mb); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	before, err := touch(ctx, in[0], mb)
	if err != nil {
		return err
	}
	record := b.results.of(s.Name(), 1, mb)
	began := time.Now()
	if err := in[0].Suspend(ctx); err != nil {
		return fmt.Errorf("suspend: %w", err)
	}
	record.add(opSuspend, time.Since(began))
	took, err := in[0].Resume(ctx)
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	record.add(opResume, took)
	return remembers(ctx, in[0], before)
}

// each runs f for all numbers below n at once.
func each(ctx context.Context, n int, f func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range n {
		group.Go(func() error { return f(ctx, i) })
	}
	return group.Wait()
}

func destroyAll(ctx context.Context, in []instance) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return each(ctx, len(in), func(ctx context.Context, i int) error {
		if in[i] == nil {
			return nil
		}
		return in[i].Destroy(ctx)
	})
}

// touch fills memory and returns the number of the request.
func touch(ctx context.Context, in instance, mb int) (int, error) {
	return ask(ctx, in, "/touch?mb="+strconv.Itoa(mb))
}

// remembers fails if an instance has restarted its count: then it was started, and the measured
// time is no resume.
func remembers(ctx context.Context, in instance, before int) error {
	now, err := ask(ctx, in, "/")
	if err == nil && now <= before {
		err = fmt.Errorf("memory was lost: request %d follows request %d", now, before)
	}
	return err
}

func ask(ctx context.Context, in instance, path string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		body, err := get(ctx, in.Address(), path, time.Second)
		if err == nil {
			return strconv.Atoi(strings.TrimSpace(body))
		}
		if pause.For(ctx, dialPause) != nil {
			return 0, fmt.Errorf("ask for %s: %w", path, err)
		}
	}
}

package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
)

// The goals.
const (
	mostStored   = 0.015 // of what the first snapshot stored, beside what is there to find it with
	mostTime     = 0.15  // of what the first snapshot took
	mostFrozen   = 0.1   // seconds, p99
	leastRebuilt = 0.7   // of the rate of a plain copy
)

// freezes are seconds, one of each for every snapshot.
type freezes struct {
	waited  []float64 // that the platform told
	slowest []float64 // of the writes around it, as the Machine saw them
}

// results are what was measured; what was left out is empty.
type results struct {
	places []*place
	stores []*store
	frozen freezes
}

// quantile is the nearest sample.
func quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func median(samples []float64) float64 { return quantile(samples, 0.5) }

func (r *results) section(ctx context.Context, o *options, notes []string) string {
	var w strings.Builder
	fmt.Fprintf(&w, "## Volumes: `make bench-volumes`\n\n`go run ./bench/volumes -rounds %d -seconds %d -mb %d -snapshots %d", o.rounds, o.seconds, o.mb, o.snapshots)
	if len(o.skip) > 0 {
		fmt.Fprintf(&w, " -skip %s", strings.Join(o.skip, ","))
	}
	fmt.Fprintf(&w, "`\n\n- %s\n- %s\n", publish.Server(), publish.Said(ctx, "qemu-storage-daemon", "--version"))
	fmt.Fprintf(&w, "- %s at the end; medians over all rounds, in which the order changes\n", harness.Load())
	for _, n := range notes {
		fmt.Fprintf(&w, "- %s\n", n)
	}
	if len(r.stores) > 0 || len(r.frozen.waited) > 0 {
		r.writeGoals(&w)
	}
	if len(r.places) > 0 {
		r.writePlaces(&w, o)
	}
	if len(r.stores) > 0 {
		r.writeStores(&w, o)
	}
	return w.String()
}

// store returns a store by its name, or an empty one.
func (r *results) store(name string) *store {
	for _, s := range r.stores {
		if s.name == name {
			return s
		}
	}
	return &store{}
}

// seconds is the median time of a step.
func (s *store) seconds(step string) float64 {
	var all []float64
	for _, one := range s.samples[step] {
		all = append(all, one.took.Seconds())
	}
	return median(all)
}

// bytes is the median of what a step added to the disk.
func (s *store) bytes(step string) float64 {
	var all []float64
	for _, one := range s.samples[step] {
		all = append(all, float64(one.stored))
	}
	return median(all)
}

// told is the median of what hangar says that a step added.
func (s *store) told(step string) float64 {
	var all []float64
	for _, one := range s.samples[step] {
		all = append(all, float64(one.told))
	}
	return median(all)
}

func (r *results) writeGoals(w *strings.Builder) {
	fmt.Fprint(w, "\n### Goals\n\n| | measured | goal | |\n|---|--:|--:|---|\n")
	for _, name := range []string{storeEncrypted, storeHangar} {
		s := r.store(name)
		if len(s.samples) == 0 {
			continue
		}
		stored, took := s.told(stepRuns)/s.told(stepFirst), s.seconds(stepRuns)/s.seconds(stepFirst)
		rebuilt := r.store(storeCopy).seconds(stepRestore) / s.seconds(stepRestore)
		fmt.Fprintf(w, "| %s: stored for 1 %% changed, of the first snapshot | %.2f %% | ≤ %.1f %% | %s |\n", name, 100*stored, 100*mostStored, publish.Verdict(stored <= mostStored))
		fmt.Fprintf(w, "| %s: time for that | %.1f %% | ≤ %.0f %% | %s |\n", name, 100*took, 100*mostTime, publish.Verdict(took <= mostTime))
		fmt.Fprintf(w, "| %s: rate of a restore, of that of `cp` | %.0f %% | ≥ %.0f %% | %s |\n", name, 100*rebuilt, 100*leastRebuilt, publish.Verdict(rebuilt >= leastRebuilt))
	}
	if f := r.frozen; len(f.waited) > 0 {
		p99 := quantile(f.waited, 0.99)
		fmt.Fprintf(w, "| writers wait for a snapshot, of %d, p99 | %.0f ms | ≤ %.0f ms | %s |\n", len(f.waited), 1e3*p99, 1e3*mostFrozen, publish.Verdict(p99 <= mostFrozen))
		fmt.Fprintf(w, "| the same, p50 | %.0f ms | | |\n", 1e3*median(f.waited))
		fmt.Fprintf(w, "| slowest 4 KB write and fsync of the Machine during each, p50 / p99 | %.0f / %.0f ms | | |\n", 1e3*median(f.slowest), 1e3*quantile(f.slowest, 0.99))
	}
}

func (r *results) writePlaces(w *strings.Builder, o *options) {
	fmt.Fprintf(w, "\n### Reading and writing\n\nOne file of %d MB, one thread. In parentheses: of the file of the host.\n\n"+
		"| | write 1 MB, fsync at the end, MB/s | read 1 MB, MB/s | write 4 KB anywhere, fsync each, per s | read 4 KB anywhere, per s |\n|---|--:|--:|--:|--:|\n", o.mb/2)
	for _, p := range r.places {
		fmt.Fprintf(w, "| %s |", p.name)
		for _, op := range ops() {
			value, host := median(p.samples[op]), median(r.places[0].samples[op])
			shown := value
			if !strings.HasPrefix(op, "random") {
				shown /= 1e6
			}
			fmt.Fprintf(w, " %.0f (%.2f) |", shown, value/host)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "\nNothing that is read is in a cache of the host or of a Machine at the beginning.\n")
}

func (r *results) writeStores(w *strings.Builder, o *options) {
	fmt.Fprintf(w, "\n### Snapshots\n\nA volume of %d MB with %d MB of random bytes, which nothing compresses; seconds, and MB added to the disk. "+
		"The others are given the image of the plain volume. In parentheses: hangar's time, of theirs.\n\n| |", (o.mb+1023)>>10<<10, o.mb*7/8)
	for _, step := range steps() {
		fmt.Fprintf(w, " %s, s | MB |", step)
	}
	fmt.Fprint(w, " restore, s |\n|---|"+strings.Repeat("--:|", 2*len(steps())+1)+"\n")
	ours := r.store(storeHangar)
	for _, s := range r.stores {
		fmt.Fprintf(w, "| %s |", s.name)
		for _, step := range steps() {
			fmt.Fprintf(w, " %.2f%s | %.1f |", s.seconds(step), ratio(ours, s, step), s.bytes(step)/1e6)
		}
		fmt.Fprintf(w, " %.2f%s |\n", s.seconds(stepRestore), ratio(ours, s, stepRestore))
	}
	fmt.Fprint(w, "\n`cp` and `qemu-img` save everything each time. Only hangar takes snapshots of what is being written to.\n")
}

func ratio(ours, theirs *store, step string) string {
	if strings.HasPrefix(theirs.name, storeHangar) {
		return ""
	}
	return fmt.Sprintf(" (%.2f)", ours.seconds(step)/theirs.seconds(step))
}

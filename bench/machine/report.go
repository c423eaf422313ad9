package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/bench/publish"
)

// The units of figures.
const (
	unitBytes   = "bytes"
	unitSeconds = "s"
)

func (r *results) add(name string, value float64, unit string, runs int, goal float64) {
	r.figures = append(r.figures, figure{Name: name, Value: value, Unit: unit, Runs: runs, Goal: goal})
}

// goal is a bound on a ratio of medians, or on a median alone.
type goal struct {
	op      string
	against string        // operation of the unchanged runsc; "": none
	most    float64       // ratio
	limit   time.Duration // where there is no ratio
}

func goals() []goal {
	return []goal{
		{op: opAnswer, limit: 15 * time.Millisecond},
		{op: opReply, against: opReply, most: 1.0},
		{op: opStart, against: opReply, most: 0.8},
		{op: opSuspend, against: opSuspend, most: 1.3},
		{op: opResume, against: opResume, most: 1.2},
	}
}

// goalCrowd bounds how long ten starts at once may take: 1.1 times what a prototype
// took on a server with two cores.
const goalCrowd = 812 * time.Millisecond

// heading is where the results are in the file.
const heading = "## Machines: `make bench-machine`"

// report writes what was measured.
func (b *bench) report() error {
	err := publish.Section(b.options.out, b.markdown(context.Background()))
	if b.options.json != "" {
		err = errors.Join(err, b.writeJSON())
	}
	return err
}

func (b *bench) markdown(ctx context.Context) string {
	var w strings.Builder
	fmt.Fprintf(&w, "%s\n\n", heading)
	fmt.Fprintf(&w, "`go run ./bench/machine -runs %d -cpus %d -seed %d", b.options.runs, b.options.cpus, b.options.seed)
	if b.options.busyOK {
		fmt.Fprint(&w, " -busy")
	}
	if len(b.options.skip) > 0 {
		fmt.Fprintf(&w, " -skip %s", strings.Join(b.options.skip, ","))
	}
	fmt.Fprint(&w, "`\n\n")
	for _, line := range b.environment(ctx) {
		fmt.Fprintf(&w, "- %s\n", line)
	}
	if b.podman != "" {
		fmt.Fprintf(&w, "- no Podman: %s\n", b.podman)
	}
	for _, err := range b.failed {
		fmt.Fprintf(&w, "- failed: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if b.waited > 0 {
		fmt.Fprintf(&w, "- other work went on: %d measurements began on a server that was not idle\n", b.waited)
	}
	b.writeGoals(&w)
	b.writeTimes(&w)
	b.writeFigures(&w)
	return w.String()
}

// writeGoals compares with the unchanged runsc and with Podman.
func (b *bench) writeGoals(w *strings.Builder) {
	fmt.Fprint(w, "\n### Goals\n\nMedians in ms, one at a time; ratios are to the unchanged runsc in the same run.\n\n"+
		"| | touched MB | hangar | runsc | ratio | goal | | Podman |\n|---|--:|--:|--:|--:|--:|---|--:|\n")
	for _, g := range goals() {
		for _, mb := range []int{smallMB, 256, 1024} {
			ours := b.results.samples[series{System: nameHangar, Op: g.op, Crowd: 1, MB: mb}]
			if len(ours) == 0 {
				continue
			}
			b.writeGoal(w, g, mb, ours)
		}
	}
	if ours := b.results.samples[series{System: nameHangar, Op: opStart, Crowd: crowdFew, MB: smallMB, All: true}]; len(ours) > 0 {
		theirs := b.results.samples[series{System: nameRunsc, Op: opReply, Crowd: crowdFew, MB: smallMB, All: true}]
		ratio := "-"
		if len(theirs) > 0 {
			ratio = fmt.Sprintf("%.2f", float64(median(ours))/float64(median(theirs)))
		}
		podman := b.results.samples[series{System: namePodman, Op: opStart, Crowd: crowdFew, MB: smallMB, All: true}]
		fmt.Fprintf(w, "| %d starts at once, until all have replied | %d | %s | %s | %s | ≤ %s | %s | %s |\n", crowdFew, smallMB,
			inMS(ours), inMS(theirs), ratio, ms(goalCrowd), publish.Verdict(median(ours) <= goalCrowd), inMS(podman))
	}
}

func (b *bench) writeGoal(w *strings.Builder, g goal, mb int, ours []time.Duration) {
	podman := b.results.samples[series{System: namePodman, Op: g.op, Crowd: 1, MB: mb}]
	if g.against == "" {
		fmt.Fprintf(w, "| %s | %d | %s | - | - | ≤ %s | %s | %s |\n", g.op, mb, inMS(ours), ms(g.limit), publish.Verdict(median(ours) <= g.limit), inMS(podman))
		return
	}
	theirs := b.results.samples[series{System: nameRunsc, Op: g.against, Crowd: 1, MB: mb}]
	if len(theirs) == 0 {
		fmt.Fprintf(w, "| %s | %d | %s | - | - | ≤ %.1f× | not measured | %s |\n", g.op, mb, inMS(ours), g.most, inMS(podman))
		return
	}
	ratio := float64(median(ours)) / float64(median(theirs))
	fmt.Fprintf(w, "| %s | %d | %s | %s | %.2f | ≤ %.1f× | %s | %s |\n", g.op, mb, inMS(ours), inMS(theirs), ratio, g.most, publish.Verdict(ratio <= g.most), inMS(podman))
}

func ms(d time.Duration) string {
	if v := milliseconds(d); v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", milliseconds(d))
}

// inMS is the median of samples.
func inMS(samples []time.Duration) string {
	if len(samples) == 0 {
		return "-"
	}
	return ms(median(samples))
}

// writeTimes writes every series: median, p99 and the number of samples.
func (b *bench) writeTimes(w *strings.Builder) {
	fmt.Fprint(w, "\n### Times\n\nms: median / p99 (samples). \"All\" is until the last of those at once was done.\n\n| | touched MB | at once |")
	for _, s := range b.systems {
		fmt.Fprintf(w, " %s |", s.Name())
	}
	fmt.Fprint(w, "\n|---|--:|--:|"+strings.Repeat("--:|", len(b.systems))+"\n")
	for _, op := range []string{opAnswer, opCreate, opReply, opStart, opExec, opSuspend, opResume, opDestroy} {
		for _, mb := range []int{smallMB, 256, 1024} {
			for _, crowd := range []int{1, crowdFew, crowdMost} {
				b.writeRow(w, series{Op: op, Crowd: crowd, MB: mb}, op)
				if crowd > 1 {
					b.writeRow(w, series{Op: op, Crowd: crowd, MB: mb, All: true}, op+", all")
				}
			}
		}
	}
}

func (b *bench) writeRow(w *strings.Builder, key series, name string) {
	var row strings.Builder
	fmt.Fprintf(&row, "| %s | %d | %d |", name, key.MB, key.Crowd)
	measured := false
	for _, s := range b.systems {
		key.System = s.Name()
		samples := b.results.samples[key]
		if len(samples) == 0 {
			row.WriteString(" - |")
			continue
		}
		measured = true
		fmt.Fprintf(&row, " %s / %s (%d) |", ms(median(samples)), ms(quantile(samples, 0.99)), len(samples))
	}
	if measured {
		fmt.Fprintln(w, row.String())
	}
}

// writeFigures writes what is not a series of times.
func (b *bench) writeFigures(w *strings.Builder) {
	if len(b.results.figures) == 0 {
		return
	}
	fmt.Fprint(w, "\n### The daemon\n\n| | | goal | |\n|---|--:|--:|---|\n")
	for _, f := range b.results.figures {
		if f.Goal == 0 {
			fmt.Fprintf(w, "| %s | %s | | |\n", f.Name, amount(f.Value, f.Unit))
			continue
		}
		fmt.Fprintf(w, "| %s | %s | ≤ %s | %s |\n", f.Name, amount(f.Value, f.Unit), amount(f.Goal, f.Unit), publish.Verdict(f.Value <= f.Goal))
	}
}

func amount(v float64, unit string) string {
	switch {
	case unit == unitSeconds && v < 1:
		return fmt.Sprintf("%.0f ms", v*1000)
	case unit == unitSeconds:
		return fmt.Sprintf("%.2f s", v)
	case v >= 1<<20 || v <= -1<<20:
		return fmt.Sprintf("%.1f MiB", v/(1<<20))
	default:
		return fmt.Sprintf("%.0f KiB", v/(1<<10))
	}
}

// writeJSON writes every sample.
func (b *bench) writeJSON() error {
	type line struct {
		series
		Median  float64   `json:"median_ms"`
		P99     float64   `json:"p99_ms"`
		Samples []float64 `json:"samples_ms"`
	}
	out := struct {
		Environment []string `json:"environment"`
		Seed        uint64   `json:"seed"`
		Times       []line   `json:"times"`
		Figures     []figure `json:"figures"`
	}{Environment: b.environment(context.Background()), Seed: b.options.seed, Figures: b.results.figures}
	for s, samples := range b.results.samples {
		l := line{series: s, Median: milliseconds(median(samples)), P99: milliseconds(quantile(samples, 0.99))}
		for _, d := range samples {
			l.Samples = append(l.Samples, milliseconds(d))
		}
		out.Times = append(out.Times, l)
	}
	raw, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(b.options.json, append(raw, '\n'), 0o644) //nolint:gosec // world-readable
}

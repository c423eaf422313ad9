package main

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/bench/publish"
)

// heading begins the section of a part.
func heading(w *strings.Builder, what string, o options) {
	fmt.Fprintf(w, "## Metrics, %s: `make bench-metrics`\n\n`go run ./bench/metrics %s`\n\n- %s\n- %s\n", what, o, publish.Server(), runtime.Version())
}

// goals is the table of the goals of a section.
type goals struct{ w *strings.Builder }

func newGoals(w *strings.Builder) goals {
	w.WriteString("\n| | | goal | |\n|---|--:|--:|---|\n")
	return goals{w}
}

func (g goals) row(name, got, want string, met bool) {
	fmt.Fprintf(g.w, "| %s | %s | %s | %s |\n", name, got, want, publish.Verdict(met))
}

// quantile returns the value below which a share of all is, or 0 of none.
func quantile[T int64 | float64 | time.Duration](all []T, share float64) T {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

func median[T int64 | float64 | time.Duration](all []T) T { return quantile(all, .5) }

// brief is a duration with three digits.
func brief(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1e3)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}

func times(ratio float64) string { return fmt.Sprintf("%.2f×", ratio) }

// megabytes is a number of bytes in millions.
func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// thousands is a number with separators.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

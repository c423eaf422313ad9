package harness

import (
	"cmp"
	"slices"
	"time"
)

// Quantile is the sample below which the share q of all is; zero: there are none.
func Quantile[T cmp.Ordered](samples []T, q float64) T {
	sorted := slices.Sorted(slices.Values(samples))
	if len(sorted) == 0 {
		var none T
		return none
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Median is the sample in the middle, the greater one of two.
func Median[T cmp.Ordered](samples []T) T { return Quantile(samples, .5) }

// Short is a duration for a table, to ten microseconds.
func Short(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

package main

import (
	"testing"
	"time"
)

func TestMedianAndQuantile(t *testing.T) {
	ms := func(n ...int) []time.Duration {
		out := make([]time.Duration, len(n))
		for i, v := range n {
			out[i] = time.Duration(v) * time.Millisecond
		}
		return out
	}
	var hundred []int
	for i := range 200 {
		hundred = append(hundred, 200-i)
	}
	for _, test := range []struct {
		samples     []time.Duration
		median, p99 int
	}{
		{nil, 0, 0},
		{ms(7), 7, 7},
		{ms(3, 1), 2, 3},
		{ms(9, 1, 5), 5, 9},
		{ms(hundred...), 100, 198},
	} {
		got := []int64{median(test.samples).Milliseconds(), quantile(test.samples, 0.99).Milliseconds()}
		if got[0] != int64(test.median) || got[1] != int64(test.p99) {
			t.Errorf("%v: median and p99 are %d, want %d and %d", test.samples, got, test.median, test.p99)
		}
	}
}

func TestFlags(t *testing.T) {
	for _, bad := range [][]string{{"-runs", "0"}, {"-skip", "everything"}, {"-cpus", "0"}, {"more"}} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	o, err := parse([]string{"-quick", "-skip", "podman,crowd"})
	if err != nil {
		t.Fatal(err)
	}
	if o.out != "" || o.runs >= 30 || !o.skip.Has(namePodman) || !o.skip.Has(partCrowd) || o.skip.Has(nameRunsc) {
		t.Errorf("a quick run is %+v", o)
	}
}

package qvalue

import "testing"

func TestParse(t *testing.T) {
	for params, want := range map[string]int{
		"": 1000, "q=1": 1000, "q=0": 0, "q=0.5": 500, " Q = 0.001 ": 1, "level=1;q=0.3": 300, "q=0.3;q=0.9": 300,
		"quality=0.3": 1000, "q": 1000, "q=": 0, "q=x": 0, "q=-1": 0, "q=2": 0, "q=NaN": 0,
	} {
		if got := Parse(params); got != want {
			t.Errorf("%q: %d, want %d", params, got, want)
		}
	}
}

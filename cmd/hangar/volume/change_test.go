package volume

import (
	"testing"
)

func TestSizes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		has  int
		text string
		want int // 0: refused
	}{
		{3, "10", 10},
		{3, "+5", 8},
		{3, "10gb", 10},
		{3, "10GB", 10},
		{3, "+1GiB", 4},
		{3, "2048mb", 2},
		{3, "1tb", 0},
		{499, "+1", 500},
		{499, "+2", 0},
		{3, "", 0},
		{3, "+", 0},
		{3, "0", 0},
		{3, "-1", 0},
		{3, "501", 0},
		{3, "1.5", 0},
		{3, "512mb", 0},
		{3, "ten", 0},
		{3, "++1", 0},
		{3, "+ 1", 0},
		{3, "+18446744073709551615", 0},
	} {
		got, err := newSize(test.has, test.text)
		if got != test.want || (err == nil) != (test.want != 0) {
			t.Errorf("%d %q: %d, %v", test.has, test.text, got, err)
		}
	}
}

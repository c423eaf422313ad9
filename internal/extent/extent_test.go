package extent_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar/internal/extent"
)

const size = 64 // of the devices that the tests draw

// draw returns a list, and its content byte by byte.
func draw(t *rapid.T, label string) (extent.List, [size]bool) {
	var in [size]bool
	drawn := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) extent.Extent {
		from := rapid.Int64Range(0, size-1).Draw(t, "from")
		return extent.Extent{Offset: from, Length: rapid.Int64Range(0, size-from).Draw(t, "length")}
	}), 0, 8).Draw(t, label)
	for _, e := range drawn {
		for i := e.Offset; i < e.End(); i++ {
			in[i] = true
		}
	}
	return extent.Of(drawn...), in
}

func list(in [size]bool) extent.List {
	var l extent.List
	for i := range int64(size) {
		if !in[i] {
			continue
		}
		if i > 0 && in[i-1] {
			l[len(l)-1].Length++
		} else {
			l = append(l, extent.Extent{Offset: i, Length: 1})
		}
	}
	return l
}

func equal(t *rapid.T, what string, got extent.List, want [size]bool) {
	if len(got) == 0 && list(want) == nil {
		return
	}
	if diff := cmp.Diff(list(want), got); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// Calculations on lists agree with those on single bytes.
func TestBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, inA := draw(t, "a")
		b, inB := draw(t, "b")
		unit := rapid.Int64Range(1, 9).Draw(t, "unit")
		var both, either, only, wide [size]bool
		var n int64
		for i := range int64(size) {
			both[i], either[i], only[i] = inA[i] && inB[i], inA[i] || inB[i], inA[i] && !inB[i]
			if inA[i] {
				n++
				for j := i / unit * unit; j < min(i/unit*unit+unit, size); j++ {
					wide[j] = true
				}
			}
		}
		equal(t, "list", a, inA)
		equal(t, "intersection", a.Intersect(b), both)
		equal(t, "union", a.Union(b), either)
		equal(t, "difference", a.Subtract(b), only)
		equal(t, "aligned", a.Align(unit, size), wide)
		if a.Length() != n {
			t.Fatalf("length %d, want %d", a.Length(), n)
		}
	})
}

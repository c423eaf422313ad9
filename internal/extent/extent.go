// Package extent calculates with ranges of bytes of a device.
package extent

import (
	"cmp"
	"slices"
)

// Extent is a range of bytes.
type Extent struct {
	Offset int64
	Length int64
}

// End is the offset after the last byte.
func (e Extent) End() int64 { return e.Offset + e.Length }

// List is a sorted list of non-empty extents that do not touch each other.
type List []Extent

// Of returns extents in any order as a List.
func Of(extents ...Extent) List {
	sorted := slices.DeleteFunc(slices.Clone(extents), func(e Extent) bool { return e.Length <= 0 })
	slices.SortFunc(sorted, func(a, b Extent) int { return cmp.Compare(a.Offset, b.Offset) })
	list := sorted[:0]
	for _, e := range sorted {
		if n := len(list); n > 0 && e.Offset <= list[n-1].End() {
			list[n-1].Length = max(list[n-1].End(), e.End()) - list[n-1].Offset
			continue
		}
		list = append(list, e)
	}
	return List(list)
}

// Length is the total number of bytes.
func (l List) Length() (n int64) {
	for _, e := range l {
		n += e.Length
	}
	return n
}

// Union returns the bytes in either list.
func (l List) Union(other List) List { return Of(slices.Concat(l, other)...) }

// Intersect returns the bytes in both lists.
func (l List) Intersect(other List) List {
	var both List
	for i, j := 0, 0; i < len(l) && j < len(other); {
		from, to := max(l[i].Offset, other[j].Offset), min(l[i].End(), other[j].End())
		if from < to {
			both = append(both, Extent{from, to - from})
		}
		if l[i].End() < other[j].End() {
			i++
		} else {
			j++
		}
	}
	return both
}

// Subtract returns the bytes of l that are not in other.
func (l List) Subtract(other List) List {
	var rest List
	j := 0
	for _, e := range l {
		at := e.Offset
		for j < len(other) && other[j].End() <= at {
			j++
		}
		for k := j; k < len(other) && other[k].Offset < e.End(); k++ {
			if other[k].Offset > at {
				rest = append(rest, Extent{at, other[k].Offset - at})
			}
			at = other[k].End()
		}
		if at < e.End() {
			rest = append(rest, Extent{at, e.End() - at})
		}
	}
	return rest
}

// Align widens every extent to multiples of unit, up to limit.
func (l List) Align(unit, limit int64) List {
	wide := make([]Extent, 0, len(l))
	for _, e := range l {
		from := e.Offset / unit * unit
		to := min((e.End()+unit-1)/unit*unit, limit)
		wide = append(wide, Extent{from, to - from})
	}
	return Of(wide...)
}

package pqueue_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar/internal/pqueue"
)

type item struct {
	at    int
	place pqueue.Place
}

// A Queue behaves like a sorted list.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := pqueue.New(func(a, b *item) bool { return a.at < b.at }, func(x *item) *pqueue.Place { return &x.place })
		items := make([]*item, 12)
		for i := range items {
			items[i] = &item{}
		}
		var in []*item
		one := rapid.SampledFrom(items)
		at := rapid.IntRange(0, 20)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				x := one.Draw(t, "item")
				x.at = at.Draw(t, "at")
				q.Put(x)
				if !slices.Contains(in, x) {
					in = append(in, x)
				}
			},
			"remove": func(t *rapid.T) {
				x := one.Draw(t, "item")
				q.Remove(x)
				in = slices.DeleteFunc(in, func(y *item) bool { return x == y })
			},
			"pop": func(t *rapid.T) {
				if len(in) == 0 {
					t.Skip("empty")
				}
				x := q.Pop()
				if least := slices.MinFunc(in, func(a, b *item) int { return a.at - b.at }); x.at != least.at {
					t.Fatalf("popped %d, the least is %d", x.at, least.at)
				}
				in = slices.DeleteFunc(in, func(y *item) bool { return x == y })
			},
			"": func(t *rapid.T) {
				if q.Len() != len(in) {
					t.Fatalf("%d elements, want %d", q.Len(), len(in))
				}
				for x := range q.All() {
					if !slices.Contains(in, x) {
						t.Fatalf("%v is not in it", x)
					}
				}
				for _, x := range items {
					if x.place.Queued() != slices.Contains(in, x) {
						t.Fatalf("%v has the wrong place", x)
					}
				}
				if first, ok := q.First(); ok != (len(in) > 0) || ok && slices.ContainsFunc(in, func(x *item) bool { return x.at < first.at }) {
					t.Fatalf("%v is not the first", first)
				}
			},
		})
	})
}

// Elements without places may be in it more than once.
func TestWithoutPlaces(t *testing.T) {
	q := pqueue.New(func(a, b int) bool { return a < b }, nil)
	for _, x := range []int{3, 1, 2, 1} {
		q.Put(x)
	}
	var got []int
	for q.Len() > 0 {
		got = append(got, q.Pop())
	}
	if want := []int{1, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, ok := q.First(); ok {
		t.Error("an empty Queue has a first element")
	}
}

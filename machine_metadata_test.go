package hangar_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// TestMetadataInAnyOrder delivers the same writes in many orders. Each key must end with its latest
// decision.
func TestMetadataInAnyOrder(t *testing.T) {
	base := time.Date(2026, 8, 14, 0, 0, 0, 0, time.UTC)
	at := func(n int) time.Time { return base.Add(time.Duration(n) * time.Second) }
	type write func(hangar.MetadataTimes, map[string]string) (map[string]string, hangar.MetadataTimes)
	set := func(n int, key, value string) write {
		return func(t hangar.MetadataTimes, p map[string]string) (map[string]string, hangar.MetadataTimes) {
			return t.Set(p, hangar.MetadataPair{Key: key, Value: value, UpdatedAt: at(n)}, at(100))
		}
	}
	merge := func(n int, pairs map[string]string) write {
		return func(t hangar.MetadataTimes, p map[string]string) (map[string]string, hangar.MetadataTimes) {
			return t.Merge(p, hangar.MetadataWrite{Pairs: pairs, UpdatedAt: at(n)}, at(100))
		}
	}
	replace := func(n int, pairs map[string]string) write {
		return func(t hangar.MetadataTimes, p map[string]string) (map[string]string, hangar.MetadataTimes) {
			return t.Replace(p, hangar.MetadataWrite{Pairs: pairs, UpdatedAt: at(n)}, at(100))
		}
	}
	writes := []write{
		set(1, "a", "1"), set(2, "gone", "2"), replace(3, map[string]string{"a": "3", "b": "3", "c": "3"}),
		merge(4, map[string]string{"b": "", "c": "4"}), set(5, "d", ""), merge(6, map[string]string{"c": "6"}),
	}
	want := map[string]string{"a": "3", "c": "6", "d": ""}
	for range 500 {
		order := rand.Perm(len(writes))
		pairs, times := map[string]string(nil), hangar.MetadataTimes{}
		for _, n := range order {
			pairs, times = writes[n](times, pairs)
		}
		if !maps.Equal(pairs, want) {
			t.Fatalf("in the order %v the writes leave %v, want %v", order, pairs, want)
		}
	}
}

func TestMetadataTimesAreBounded(t *testing.T) {
	now := time.Now()
	pairs, times := map[string]string{"kept": "x"}, hangar.MetadataTimes{}
	for n := range 5000 {
		key := fmt.Sprint(n)
		now = now.Add(time.Millisecond)
		pairs, times = times.Set(pairs, hangar.MetadataPair{Key: key, Value: "x"}, now)
		pairs, times = times.Merge(pairs, hangar.MetadataWrite{Pairs: map[string]string{key: ""}}, now)
	}
	if len(pairs) != 1 || len(times.Keys) > 2*hangar.MaxMetadataKeys {
		t.Errorf("%d pairs and %d times are left", len(pairs), len(times.Keys))
	}
	pairs, times = times.Replace(pairs, hangar.MetadataWrite{}, now)
	if len(pairs) != 0 || len(times.Keys) != 0 {
		t.Errorf("after all was replaced, %d pairs and %d times are left", len(pairs), len(times.Keys))
	}
}

func TestMetadataOfTheFuture(t *testing.T) {
	now := time.Now()
	pairs, times := hangar.MetadataTimes{}.Set(nil, hangar.MetadataPair{Key: "k", Value: "future", UpdatedAt: now.Add(time.Hour)}, now)
	pairs, _ = times.Set(pairs, hangar.MetadataPair{Key: "k", Value: "now"}, now)
	if pairs["k"] != "now" {
		t.Errorf("a clock that is ahead keeps others from writing: %v", pairs)
	}
}

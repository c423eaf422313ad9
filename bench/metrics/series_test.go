package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/builtin"
)

// TestAppsHaveTheReference: each family of the reference is there, and no series twice.
func TestAppsHaveTheReference(t *testing.T) {
	a := newApps(10_000, 7)
	if a.series() < 10_000 || a.series() >= 10_000+len(a.of) {
		t.Errorf("there are %d series", a.series())
	}
	seen, names := map[string]bool{}, map[string]bool{}
	for app := range a.count {
		for _, labels := range a.labels(app) {
			if !slices.IsSortedFunc(labels, func(x, y metrics.Label) int { return strings.Compare(x.Name, y.Name) }) {
				t.Fatalf("labels are not sorted: %v", labels)
			}
			var key strings.Builder
			for _, l := range labels {
				key.WriteString(l.Name + "=" + l.Value + ",")
				if l.Name == metrics.NameLabel {
					names[l.Value] = true
				}
			}
			if seen[key.String()] {
				t.Fatalf("a series twice: %s", key.String())
			}
			seen[key.String()] = true
		}
	}
	for _, f := range builtin.Reference() {
		for _, name := range f.Series() {
			if want := f.Absent == ""; names[prefix+name] != want {
				t.Errorf("%s: there is one: %t, want %t", name, !want, want)
			}
		}
	}
}

// TestAppsOfOrganizations: they come one organization after the other, and each has some.
func TestAppsOfOrganizations(t *testing.T) {
	for _, orgs := range organizations {
		a := newApps(50_000, orgs)
		last := 0
		for app := range a.count {
			org := a.org(app)
			if org != last && org != last+1 || org >= orgs {
				t.Fatalf("of %d organizations App %d is of %d, the one before of %d", orgs, app, org, last)
			}
			last = org
		}
		if last != orgs-1 {
			t.Errorf("of %d organizations the last with an App is %d", orgs, last)
		}
	}
}

func TestQuantile(t *testing.T) {
	all := []int64{5, 1, 4, 2, 3}
	for share, want := range map[float64]int64{0: 1, .5: 3, .99: 5, 1: 5} {
		if got := quantile(all, share); got != want {
			t.Errorf("the quantile %v is %d, want %d", share, got, want)
		}
	}
	if got := quantile([]int64{}, .5); got != 0 {
		t.Errorf("the quantile of none is %d", got)
	}
}

package hangar_test

import (
	"testing"

	"github.com/hangar-platform/hangar"
)

func TestRegionCovers(t *testing.T) {
	for _, tc := range []struct {
		word, code hangar.Region
		want       bool
	}{
		{"ams", "ams", true},
		{"ams", "fra", false},
		{"any", "loc", true},
		{"eu", "ams", true},
		{"eu", "ord", false},
		{"us", "ord", true},
		{"us", "yyz", false},
		{"na", "yyz", true},
		{"sa", "gru", true},
		{"apac", "nrt", true},
		{"", "ams", false},
		{"EU", "ams", false},
	} {
		if got := tc.word.Covers(tc.code); got != tc.want {
			t.Errorf("%q covers %q: %v", tc.word, tc.code, got)
		}
	}
}

package replay

import (
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
)

const aliasAny = string(hangar.AnyRegion)

// Regions reads a list of regions and aliases, separated by commas, in order of preference, as
// hangar.HeaderPreferRegion has it; anywhere: "any" is among them. It answers with an EdgeError
// for an impossible name.
func Regions(list string) (regions []hangar.Region, anywhere bool, err error) {
	for word := range strings.SplitSeq(list, ",") {
		word = strings.ToLower(strings.TrimSpace(word))
		switch {
		case word == "":
			continue
		case word == aliasAny:
			anywhere = true
			continue
		case !plausible(word):
			return nil, false, refused("%q is not a region", word)
		}
		if r := hangar.Region(word); !slices.Contains(regions, r) {
			regions = append(regions, r)
		}
		if len(regions) > maxRegions {
			return nil, false, refused("region lists more than %d", maxRegions)
		}
	}
	return regions, anywhere, nil
}

// regions is Regions for a field that has to name one.
func regions(list string) ([]hangar.Region, bool, error) {
	found, anywhere, err := Regions(list)
	if err == nil && len(found) == 0 && !anywhere {
		err = refused("region is empty")
	}
	return found, anywhere, err
}

// plausible reports whether a word can be a region or an alias: two to eight letters and digits.
// Looking up an unknown one does no harm.
func plausible(word string) bool {
	return len(word) >= 2 && len(word) <= 8 && !strings.ContainsFunc(word, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
}

package control

import (
	"strings"

	"github.com/hangar-platform/hangar"
)

// regionFor is the first of some regions that is wished for, or else of codes that no server
// has, the wish itself. A wish is the code of a region, a word for several, see
// hangar.Region.Covers, or a list of such with commas, the dearest first; empty: the first of all.
func regionFor(wish hangar.Region, regions []hangar.Region) hangar.Region {
	if wish == "" {
		return regions[0]
	}
	for word := range strings.SplitSeq(string(wish), ",") {
		for _, code := range regions {
			if hangar.Region(strings.TrimSpace(word)).Covers(code) {
				return code
			}
		}
	}
	return wish
}

package hangar

import "slices"

// regionGroups are the words that a request may use for several regions, with the codes of regions that
// users of the public platform know.
var regionGroups = map[Region][]Region{
	"us":   {"atl", "bos", "den", "dfw", "ewr", "iad", "lax", "mia", "ord", "phx", "sea", "sjc"},
	"usa":  {"atl", "bos", "den", "dfw", "ewr", "iad", "lax", "mia", "ord", "phx", "sea", "sjc"},
	"na":   {"atl", "bos", "den", "dfw", "ewr", "gdl", "iad", "lax", "mia", "ord", "phx", "qro", "sea", "sjc", "yul", "yyz"},
	"sa":   {"bog", "eze", "gig", "gru", "scl"},
	"eu":   {"ams", "arn", "cdg", "fra", "lhr", "mad", "otp", "waw"},
	"apac": {"bom", "hkg", "maa", "nrt", "sin", "syd"},
}

// Covers reports whether r, the code of a region or a word for several (us, usa, na, sa, eu, apac,
// AnyRegion), stands for the region with a code.
func (r Region) Covers(code Region) bool {
	return r == code || r == AnyRegion || slices.Contains(regionGroups[r], code)
}

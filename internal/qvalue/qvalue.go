// Package qvalue parses the weights of content negotiation (RFC 9110, section 12.4.2).
package qvalue

import (
	"strconv"
	"strings"
)

// Parse returns the parameter q of an item of Accept or Accept-Encoding, in thousandths. Without that
// parameter it returns 1000, and 0, which means that the item is not accepted, for an unparsable value.
// params is the part of the item after its first semicolon.
func Parse(params string) int {
	for p := range strings.SplitSeq(params, ";") {
		name, value, ok := strings.Cut(p, "=")
		if !ok || !strings.EqualFold(strings.TrimSpace(name), "q") {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err == nil && f >= 0 && f <= 1 {
			return int(f*1000 + 0.5)
		}
		return 0
	}
	return 1000
}

package compress

import (
	"strings"

	"github.com/hangar-platform/hangar/internal/qvalue"
)

// encoding is a way to compress a body. Among encodings that a client likes equally, the first in
// this order is used.
type encoding int

const (
	noEncoding encoding = iota
	zstandard
	brotliCoding
	gzipCoding
	encodings
)

func (e encoding) String() string { return [...]string{"identity", "zstd", "br", "gzip"}[e] }

// negotiate chooses the encoding that a client likes best (RFC 9110, section 12.5.3). refused means
// that it does not accept an uncompressed body.
func negotiate(accept []string) (best encoding, refused bool) {
	const unnamed = -1
	likes := [encodings]int{unnamed, unnamed, unnamed, unnamed}
	others := unnamed
	for _, line := range accept {
		for item := range strings.SplitSeq(line, ",") {
			name, params, _ := strings.Cut(item, ";")
			q := qvalue.Parse(params)
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "identity":
				likes[noEncoding] = q
			case "zstd":
				likes[zstandard] = q
			case "br":
				likes[brotliCoding] = q
			case "gzip", "x-gzip":
				likes[gzipCoding] = q
			case "*":
				others = q
			}
		}
	}
	most := 0
	for e := zstandard; e < encodings; e++ {
		q := likes[e]
		if q == unnamed {
			q = others
		}
		if q > most {
			best, most = e, q
		}
	}
	if likes[noEncoding] > most {
		return noEncoding, false // it prefers the body uncompressed
	}
	refused = likes[noEncoding] == 0 || likes[noEncoding] == unnamed && others == 0
	return best, refused
}

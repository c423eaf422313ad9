package proxy

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/hangar-platform/hangar"
)

// requestID returns a new <ULID>-<region>. It is not a secret and defines no order, so it needs
// neither a lock nor the kernel.
func requestID(now time.Time, region hangar.Region) string {
	var id ulid.ULID
	_ = id.SetTime(ulid.Timestamp(now)) // fails in 10889
	binary.NativeEndian.PutUint16(id[6:], uint16(random()))
	binary.NativeEndian.PutUint64(id[8:], random())
	var b [ulid.EncodedSize + 1 + 16]byte
	_ = id.MarshalTextTo(b[:ulid.EncodedSize]) // fails without room
	b[ulid.EncodedSize] = '-'
	return string(append(b[:ulid.EncodedSize+1], region...))
}

// random is for values that have to be unique but not secret.
func random() uint64 { return rand.Uint64() } //nolint:gosec // see there

const lowerHex = "0123456789abcdef"

// traceparent returns the HeaderTraceparent for a Machine: the caller's trace continues in a new
// span, or a new trace begins. continued reports which.
func traceparent(sent string) (value string, continued bool) {
	const length = 2 + 1 + 32 + 1 + 16 + 1 + 2
	var b [length]byte
	continued = len(sent) >= length && validTrace(sent)
	copy(b[:], "00-")
	// Odd numbers, because no id may be all zero.
	if continued {
		copy(b[3:], sent[3:36])
		copy(b[53:], sent[53:55])
	} else {
		hex64(b[3:], random())
		hex64(b[19:], random()|1)
		b[35] = '-'
		copy(b[53:], "00")
	}
	hex64(b[36:], random()|1)
	b[52] = '-'
	return string(b[:]), continued
}

func hex64(to []byte, n uint64) {
	for i := 15; i >= 0; i-- {
		to[i] = lowerHex[n&15]
		n >>= 4
	}
}

// validTrace reports whether a text of at least 55 bytes begins as the W3C's Trace Context
// says: the version, which is not ff, the trace, the span and flags.
func validTrace(s string) bool {
	if s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" || s[:2] == "00" && len(s) != 55 || len(s) > 55 && s[55] != '-' {
		return false
	}
	for _, part := range [...]struct {
		from, to int
		zero     bool // may be all zero
	}{{0, 2, true}, {3, 35, false}, {36, 52, false}, {53, 55, true}} {
		zero := true
		for _, c := range []byte(s[part.from:part.to]) {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
			zero = zero && c == '0'
		}
		if zero && !part.zero {
			return false
		}
	}
	return true
}

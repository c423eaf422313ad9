package http1

import (
	"net/http"
	"slices"
)

// appendField writes one header field. Control characters of the value become spaces.
func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	value = trimSpace(value)
	if all(value, inValue) {
		b = append(b, value...)
	} else {
		for i := range len(value) {
			if c := value[i]; class[c]&inValue != 0 {
				b = append(b, c)
			} else {
				b = append(b, ' ')
			}
		}
	}
	return append(b, "\r\n"...)
}

// sortedNames returns the names of a header in a stable order. The array is a buffer for them.
func sortedNames(h http.Header, room []string) []string {
	names := room[:0]
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// appendHex writes the size of a chunk.
func appendHex(b []byte, n int) []byte {
	const digits = "0123456789abcdef"
	var d [16]byte
	i := len(d)
	for {
		i--
		d[i] = digits[n&15]
		if n >>= 4; n == 0 {
			return append(b, d[i:]...)
		}
	}
}

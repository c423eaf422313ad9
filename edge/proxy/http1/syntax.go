package http1

import (
	"net/netip"
	"strings"
)

// Character classes. RFC 9110, section 5.6.2 and 5.5; RFC 3986.
const (
	inToken  = 1 << iota // names of methods and fields
	inValue              // values of fields
	inTarget             // targets of requests
	inPlain              // paths that are the same escaped and unescaped
	inHost               // registered names
	inHex
	isUpper
	isLower
)

var class = classes()

func classes() (c [256]uint8) {
	set := func(chars string, bits uint8) {
		for i := range len(chars) {
			c[chars[i]] |= bits
		}
	}
	set("abcdefghijklmnopqrstuvwxyz", inToken|inPlain|inHost|isLower)
	set("ABCDEFGHIJKLMNOPQRSTUVWXYZ", inToken|inPlain|inHost|isUpper)
	set("0123456789", inToken|inPlain|inHost|inHex)
	set("abcdefABCDEF", inHex)
	set("!#$%&'*+-.^_`|~", inToken)
	set("-._~$&+,/:;=@", inPlain)
	set("-._~!$&'()*+,;=", inHost)
	for b := 0x21; b < 0x7f; b++ {
		c[b] |= inValue | inTarget
	}
	for b := 0x80; b <= 0xff; b++ {
		c[b] |= inValue | inTarget
	}
	set(" \t", inValue)
	c['#'] &^= inTarget
	return c
}

// all reports whether every byte of s is in a class.
func all[T ~string | ~[]byte](s T, bits uint8) bool {
	for i := range len(s) {
		if class[s[i]]&bits == 0 {
			return false
		}
	}
	return true
}

func isToken(s string) bool { return s != "" && all(s, inToken) }

// isCanonical reports whether a token is spelled as http.CanonicalHeaderKey spells it.
func isCanonical(name string) bool {
	lower := uint8(isLower)
	for i := range len(name) {
		if class[name[i]]&lower != 0 {
			return false
		}
		lower = isUpper
		if name[i] == '-' {
			lower = isLower
		}
	}
	return true
}

// commonNames are the canonical spellings of fields that clients often send in lower case.
var commonNames = func() map[string]string {
	names := make(map[string]string)
	for _, n := range []string{
		"Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Accept-Ranges", "Age", "Allow",
		"Authorization", "Cache-Control", "Connection", "Content-Disposition", "Content-Encoding",
		"Content-Language", "Content-Length", "Content-Location", "Content-Range", "Content-Security-Policy",
		"Content-Type", "Cookie", "Date", "Etag", "Expect", "Expires", "Forwarded", "Host", "If-Match",
		"If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since", "Keep-Alive", "Last-Modified",
		"Link", "Location", "Origin", "Pragma", "Priority", "Proxy-Authorization", "Range", "Referer",
		"Sec-Ch-Ua", "Sec-Ch-Ua-Mobile", "Sec-Ch-Ua-Platform", "Sec-Fetch-Dest", "Sec-Fetch-Mode",
		"Sec-Fetch-Site", "Sec-Fetch-User", "Sec-Websocket-Accept", "Sec-Websocket-Extensions",
		"Sec-Websocket-Key", "Sec-Websocket-Protocol", "Sec-Websocket-Version", "Server", "Set-Cookie",
		"Strict-Transport-Security", "Te", "Traceparent", "Tracestate", "Trailer", "Transfer-Encoding",
		"Upgrade", "Upgrade-Insecure-Requests", "User-Agent", "Vary", "Via", "X-Content-Type-Options",
		"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Frame-Options", "X-Powered-By",
		"X-Request-Id", "X-Requested-With", "X-Xss-Protection",
	} {
		names[strings.ToLower(n)] = n
	}
	return names
}()

// ValidHost reports whether s may be the value of a Host field.
func ValidHost(s string) bool { return isHost(s) }

// ValidTarget reports whether all characters of s may be in the target of a request.
func ValidTarget(s string) bool { return all(s, inTarget) }

// isHost reports whether s is a valid Host field: a name, or an address (IPv6 in brackets), with or
// without a port.
func isHost(s string) bool {
	port := ""
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return false
		}
		a, err := netip.ParseAddr(s[1:end])
		if err != nil || !a.Is6() || a.Zone() != "" {
			return false
		}
		port = s[end+1:]
	} else {
		host := s
		if i := strings.IndexByte(s, ':'); i >= 0 {
			host, port = s[:i], s[i:]
		}
		if host == "" || len(host) > 255 || !all(host, inHost) {
			return false
		}
	}
	return port == "" || port[0] == ':' && isPort(port[1:])
}

// isPort allows an empty port, as RFC 3986 does.
func isPort(s string) bool {
	if len(s) > 5 {
		return false
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n <= 65535
}

// parseLength reads a Content-Length: digits, and nothing else.
func parseLength(s string) (int64, bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	n := int64(0)
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}

// trimSpace removes whitespace around a value.
func trimSpace(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// hasWord reports whether a comma-separated list contains a word, in any case.
func hasWord(list, word string) bool {
	for list != "" {
		item := list
		if i := strings.IndexByte(list, ','); i >= 0 {
			item, list = list[:i], list[i+1:]
		} else {
			list = ""
		}
		if strings.EqualFold(trimSpace(item), word) {
			return true
		}
	}
	return false
}

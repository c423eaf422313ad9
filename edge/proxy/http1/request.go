package http1

import (
	"net/http"
	"net/url"
	"strings"
)

// head is a parsed request header.
type head struct {
	framing
	method, target string // the target is in origin form, or * or an authority
	minor          int    // of the version: 0 or 1
	authority      string // host of the request
	header         http.Header
	trailer        http.Header // names that are announced
}

// parseRequest parses the head of a request: its request line and its fields, including line ends,
// with the given number of lines.
func parseRequest(s string, lines int) (h head, err error) {
	end := strings.IndexByte(s, '\n')
	if err = h.requestLine(s[:end-1]); err != nil {
		return h, err
	}
	if h.header, err = parseFields(s[end+1:len(s)-2], lines-1, &h.framing); err != nil {
		return h, err
	}
	switch {
	case h.coding > 0 && h.lengths > 0:
		return h, malformed("there are both Content-Length and Transfer-Encoding")
	case h.coding > 0 && h.minor == 0:
		return h, malformed("HTTP/1.0 has no Transfer-Encoding")
	case h.hosts > 1:
		return h, malformed("there is more than one Host")
	case h.hosts == 0 && h.minor > 0:
		return h, malformed("there is no Host")
	case h.hosts > 0 && !isHost(h.host):
		return h, malformed("Host is not a name or an address")
	case (h.method == http.MethodTrace || h.method == http.MethodConnect) && (h.coding > 0 || h.length > 0):
		return h, malformed(h.method + " has a body")
	case h.expects > 0 && h.minor > 0 && (h.expects > 1 || !strings.EqualFold(h.expect, "100-continue")):
		return h, &ProtocolError{Status: http.StatusExpectationFailed, Reason: "Expect is not 100-continue"}
	}
	delete(h.header, "Host")
	delete(h.header, "Transfer-Encoding")
	if h.trailers {
		if h.trailer, err = declared(h.header); err != nil {
			return h, err
		}
		if h.coding == 0 {
			h.trailer = nil
		}
	}
	if h.authority == "" {
		h.authority = h.host
	}
	return h, nil
}

const maxMethod = 64 // bytes

func (h *head) requestLine(line string) error {
	method, rest, ok := strings.Cut(line, " ")
	if !ok || len(method) > maxMethod || !isToken(method) {
		return malformed("the request line does not begin with a method")
	}
	target, version, ok := strings.Cut(rest, " ")
	if !ok {
		return malformed("the request line has no version")
	}
	switch version {
	case "HTTP/1.1":
		h.minor = 1
	case "HTTP/1.0":
	default:
		if len(version) == 8 && version[:5] == "HTTP/" && version[6] == '.' && class[version[5]]&inHex != 0 && class[version[7]]&inHex != 0 {
			return &ProtocolError{Status: http.StatusHTTPVersionNotSupported, Reason: "the version is not HTTP/1.0 or HTTP/1.1"}
		}
		return malformed("the request line does not end with a version")
	}
	if target == "" || !all(target, inTarget) {
		return malformed("the target has a character that is not allowed")
	}
	h.method, h.target = method, target
	switch {
	case method == http.MethodConnect:
		i := strings.LastIndexByte(target, ':')
		if i < 0 || i == len(target)-1 || !isHost(target) || target[len(target)-1] == ']' {
			return malformed("the target of CONNECT is not a host and a port")
		}
		h.authority = target
	case target[0] == '/':
	case target == "*":
		if method != http.MethodOptions {
			return malformed("the target * is for OPTIONS alone")
		}
	default:
		return h.absolute()
	}
	return nil
}

// absolute converts a target from absolute to origin form. Its host takes precedence over the Host
// field. RFC 9112, section 3.2.2.
func (h *head) absolute() error {
	scheme, rest, ok := strings.Cut(h.target, "://")
	if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return malformed("the target is not a path and not a URL of HTTP")
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	h.authority = rest[:end]
	if !isHost(h.authority) {
		return malformed("the host of the target is not a name or an address")
	}
	switch h.target = rest[end:]; {
	case h.target == "" && h.method == http.MethodOptions:
		h.target = "*"
	case h.target == "" || h.target[0] == '?':
		h.target = "/" + h.target
	}
	return nil
}

// parseTarget parses the target into u, and returns it in its escaped form.
func (h *head) parseTarget(u *url.URL) (string, error) {
	switch {
	case h.method == http.MethodConnect:
		u.Host = h.target
		return h.target, nil
	case h.target == "*":
		u.Path = "*"
		return h.target, nil
	}
	path, query, has := strings.Cut(h.target, "?")
	if all(path, inPlain) {
		u.Path = path
	} else {
		unescaped, err := url.PathUnescape(path)
		if err != nil {
			return "", malformed("the path has a percent sign that is not followed by two digits")
		}
		u.Path = unescaped
		if u.EscapedPath() != path {
			u.RawPath = path
		}
		path = u.EscapedPath() // it differs if a byte has to be escaped
	}
	if !has {
		return path, nil
	}
	query = escapeQuery(query)
	u.RawQuery = query
	u.ForceQuery = query == ""
	if len(path)+1+len(query) == len(h.target) {
		return h.target, nil
	}
	return path + "?" + query, nil
}

// escapeQuery escapes non-ASCII characters.
func escapeQuery(q string) string {
	n := 0
	for i := range len(q) {
		if q[i] >= 0x80 {
			n++
		}
	}
	if n == 0 {
		return q
	}
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(q)+2*n)
	for i := range len(q) {
		if q[i] < 0x80 {
			b = append(b, q[i])
		} else {
			b = append(b, '%', digits[q[i]>>4], digits[q[i]&15])
		}
	}
	return string(b)
}

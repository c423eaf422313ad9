package http1

import (
	"net/http"
	"net/textproto"
	"strings"
)

// framing is what the fields of a message specify about its length and connection.
type framing struct {
	host                   string
	hosts, lengths, coding int // number of these fields
	length                 int64
	close, keepAlive       bool // options of Connection
	upgrade                bool
	expect                 string
	expects                int
	trailers               bool
}

// parseFields reads header fields: lines that end with CR LF, n of them. The framing is nil
// for trailer fields.
func parseFields(s string, n int, f *framing) (http.Header, error) {
	h := make(http.Header, n)
	values := make([]string, n)
	for used := 0; s != ""; used++ {
		end := strings.IndexByte(s, '\n') // head has verified it, and the CR before it
		line := s[:end-1]
		s = s[end+1:]
		colon := strings.IndexByte(line, ':')
		if colon <= 0 {
			if line != "" && (line[0] == ' ' || line[0] == '\t') {
				return nil, malformed("a header line is folded")
			}
			return nil, malformed("a header line has no name")
		}
		name, ok := canonical(line[:colon])
		if !ok {
			if line[0] == ' ' || line[0] == '\t' {
				return nil, malformed("a header line is folded")
			}
			return nil, malformed("the name of a header field has a character that is not allowed")
		}
		value := trimSpace(line[colon+1:])
		if !all(value, inValue) {
			return nil, malformed("a header field has a control character")
		}
		if f != nil {
			if err := f.note(name, value); err != nil {
				return nil, err
			}
		}
		if have, ok := h[name]; ok {
			h[name] = append(have, value)
			continue
		}
		one := values[used : used+1 : used+1]
		one[0] = value
		h[name] = one
	}
	return h, nil
}

// canonical returns the canonical spelling of a field's name, if it is a valid name.
func canonical(name string) (string, bool) {
	if !isToken(name) {
		return "", false
	}
	if isCanonical(name) {
		return name, true
	}
	if c, ok := commonNames[name]; ok {
		return c, true
	}
	return textproto.CanonicalMIMEHeaderKey(name), true
}

// note records what a field specifies about framing.
func (f *framing) note(name, value string) error {
	switch len(name) {
	case len("Host"):
		if name == "Host" {
			f.host = value
			f.hosts++
		}
	case len("Expect"):
		if name == "Expect" {
			f.expect = value
			f.expects++
		}
	case len("Trailer"):
		if name == "Trailer" {
			f.trailers = true
		}
		if name == "Upgrade" {
			f.upgrade = true
		}
	case len("Connection"):
		if name == "Connection" {
			f.close = f.close || hasWord(value, "close")
			f.keepAlive = f.keepAlive || hasWord(value, "keep-alive")
		}
	case len("Content-Length"):
		if name == "Content-Length" {
			if f.lengths++; f.lengths > 1 {
				return malformed("there is more than one Content-Length")
			}
			var ok bool
			if f.length, ok = parseLength(value); !ok {
				return malformed("Content-Length is not a number of bytes")
			}
		}
	case len("Transfer-Encoding"):
		if name == "Transfer-Encoding" {
			if f.coding++; f.coding > 1 {
				return malformed("there is more than one Transfer-Encoding")
			}
			if !strings.EqualFold(value, "chunked") {
				if value == "" || hasWord(value, "chunked") && strings.EqualFold(strings.ReplaceAll(strings.ReplaceAll(value, " ", ""), "chunked", ""), ",") {
					return malformed("Transfer-Encoding is not chunked, once")
				}
				return &ProtocolError{Status: http.StatusNotImplemented, Reason: "Transfer-Encoding is not chunked"}
			}
		}
	}
	return nil
}

// notInTrailers are fields that would change the meaning of earlier ones.
func notInTrailers(name string) bool {
	switch name {
	case "Transfer-Encoding", "Content-Length", "Trailer", "Host", "Connection", "Te", "Upgrade",
		"Content-Encoding", "Content-Type", "Content-Range", "Authorization", "Proxy-Authorization",
		"Cache-Control", "Max-Forwards", "Expect", "Range", "Set-Cookie", "Cookie":
		return true
	}
	return false
}

// declared removes the names of trailer fields from a header.
func declared(h http.Header) (http.Header, error) {
	lists := h["Trailer"]
	delete(h, "Trailer")
	var t http.Header
	for _, list := range lists {
		for name := range strings.SplitSeq(list, ",") {
			name = trimSpace(name)
			if name == "" {
				continue
			}
			c, ok := canonical(name)
			if !ok || notInTrailers(c) {
				return nil, malformed("Trailer announces a field that cannot be one")
			}
			if t == nil {
				t = make(http.Header)
			}
			t[c] = nil
		}
	}
	return t, nil
}

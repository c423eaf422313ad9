package proxy

import (
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/proxy/replay"
)

// pair is a NamePair as keys of an http.Header.
type pair struct{ neutral, original string }

func canonical(n hangar.NamePair) pair {
	return pair{http.CanonicalHeaderKey(n.Neutral), http.CanonicalHeaderKey(n.Original)}
}

var (
	clientIP             = canonical(hangar.HeaderClientIP)
	forwardedProto       = canonical(hangar.HeaderForwardedProto)
	forwardedSSL         = canonical(hangar.HeaderForwardedSSL)
	forwardedPort        = canonical(hangar.HeaderForwardedPort)
	region               = canonical(hangar.HeaderRegion)
	requestIDs           = canonical(hangar.HeaderRequestID)
	traceparents         = canonical(hangar.HeaderTraceparent)
	tracestates          = canonical(hangar.HeaderTracestate)
	replaySource         = canonical(hangar.HeaderReplaySource)
	replayFailed         = canonical(hangar.HeaderReplayFailed)
	cacheStatus          = canonical(hangar.HeaderCacheStatus)
	replayCacheState     = canonical(hangar.HeaderReplayCacheState)
	preferredUnavailable = canonical(hangar.HeaderPreferredUnavailable)
	preferRegion         = canonical(hangar.HeaderPreferRegion)
	forceRegion          = canonical(hangar.HeaderForceRegion)
	preferInstance       = canonical(hangar.HeaderPreferInstance)
	forceInstance        = canonical(hangar.HeaderForceInstance)
)

// answerOnly are the headers with which a Machine controls the edge. Clients do not see them.
var answerOnly = []pair{
	canonical(hangar.HeaderReplay), canonical(hangar.HeaderReplayCache),
	canonical(hangar.HeaderReplayCacheTTL), canonical(hangar.HeaderReplayCacheAllowBypass),
}

// edgeOnly are the headers of requests that a Machine can trust, because only the
// edge sets them.
var edgeOnly = func() map[string]bool {
	set := map[string]bool{}
	for _, name := range replay.EdgeOnly {
		set[name] = true
	}
	for _, p := range []pair{
		clientIP, forwardedProto, forwardedSSL, forwardedPort, region, requestIDs, traceparents, tracestates,
		replaySource, replayFailed, replayCacheState, preferredUnavailable,
		{"Platform-Dispatch-Start", "Fly-Dispatch-Start"},
		{"Platform-Src", "Fly-Src"},
		{"Platform-Src-Signature", "Fly-Src-Signature"},
	} {
		set[p.neutral], set[p.original] = true, true
	}
	return set
}()

// get reads a header under either name.
func (p pair) get(h http.Header) string {
	if v := h[p.neutral]; len(v) > 0 {
		return v[0]
	}
	if v := h[p.original]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func (p pair) set(h http.Header, value []string) { h[p.neutral], h[p.original] = value, value }

func (p pair) remove(h http.Header) {
	delete(h, p.neutral)
	delete(h, p.original)
}

// hopByHop reports whether a header is about one connection and never passed on: those of
// RFC 9110, section 7.6.1, and all for proxies.
func hopByHop(key string) bool {
	switch key {
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings", "Proxy":
		return true
	}
	return strings.HasPrefix(key, "Proxy-")
}

// spoofed reports whether a program that treats "_" and other characters as "-", as CGI does, would
// read a header as one that only the edge sets, or that frames the request.
func spoofed(key string) bool {
	if strings.IndexFunc(key, unusual) < 0 {
		return false
	}
	key = http.CanonicalHeaderKey(strings.Map(func(r rune) rune {
		if unusual(r) {
			return '-'
		}
		return r
	}, key))
	return edgeOnly[key] || strings.HasPrefix(key, "X-Forwarded-") || hopByHop(key) || key == "Content-Length" || key == "Host"
}

func unusual(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
}

// forged reports whether a client's header is not forwarded.
func forged(key string) bool { return hopByHop(key) || edgeOnly[key] || spoofed(key) }

// dropForged removes trailers that a program which merges them into the headers would take for the
// edge's own.
func dropForged(trailers http.Header) {
	for key := range trailers {
		if forged(key) || strings.HasPrefix(key, "X-Forwarded-") || key == "Via" {
			delete(trailers, key)
		}
	}
}

// dropNominated removes the headers that Connection names.
func dropNominated(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = textproto.TrimString(name); name != "" {
				delete(h, http.CanonicalHeaderKey(name))
			}
		}
	}
}

// upgradeOf returns the protocol to which the client asks to switch; empty: none that can be
// forwarded.
func upgradeOf(r *http.Request) string {
	if r.ProtoMajor != 1 || r.ProtoMinor != 1 || len(r.Header["Upgrade"]) != 1 || !hasToken(r.Header["Connection"], "upgrade") {
		return ""
	}
	to := r.Header["Upgrade"][0]
	if strings.EqualFold(to, "h2c") || strings.IndexByte(to, ',') >= 0 || to == "" {
		return ""
	}
	return to
}

// hasToken reports whether a list in headers contains a word.
func hasToken(lines []string, word string) bool {
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(textproto.TrimString(part), word) {
				return true
			}
		}
	}
	return false
}

// cleaned returns the headers of a request that may be forwarded, with room for the edge's own.
func cleaned(sent http.Header) http.Header {
	trailers := hasToken(sent["Te"], "trailers") // read before Connection removes it, as it must
	if sent["Connection"] != nil {
		dropNominated(sent)
	}
	h := make(http.Header, len(sent)+ownHeaders)
	for key, values := range sent {
		if !forged(key) {
			h[key] = values
		}
	}
	if trailers {
		h["Te"] = trailersAccepted
	}
	return h
}

// ownHeaders is how many headers identify sets.
const ownHeaders = 24

// Values that many headers share. They are never modified.
var (
	trailersAccepted = []string{"trailers"}
	protoHTTP        = []string{"http"}
	protoHTTPS       = []string{"https"}
	sslOn            = []string{"on"}
	sslOff           = []string{"off"}
	upgradeOnly      = []string{"Upgrade"}
	product          = []string{hangar.EdgeProduct}
	via10            = []string{"1.0 " + hangar.EdgeProduct}
	via11            = []string{"1.1 " + hangar.EdgeProduct}
	via2             = []string{"2 " + hangar.EdgeProduct}
	via3             = []string{"3 " + hangar.EdgeProduct}
)

func viaOf(major, minor int) []string {
	switch {
	case major == 3:
		return via3
	case major == 2:
		return via2
	case minor == 0:
		return via10
	}
	return via11
}

// appendVia adds another proxy to the Via header.
func appendVia(h http.Header, via []string) {
	if before := h["Via"]; len(before) > 0 {
		h["Via"] = append(slices.Clip(before), via...)
		return
	}
	h["Via"] = via
}

// identify sets the headers of a request that the Machine gets: the client's without those that it
// may not set, and the edge's own.
func (x *exchange) identify(now time.Time) {
	v, upgrade := x.client, upgradeOf(x.sent)
	h := cleaned(x.sent.Header)
	x.sent.Header = h
	x.sent.Close = false // it concerns the client's connection
	dropForged(x.sent.Trailer)
	if x.sent.Host == "" { // HTTP/1.0 may omit it, RFC 9112, section 3.3
		if x.sent.Host = string(v.ServerName); x.sent.Host == "" {
			x.sent.Host = hostOnly(v.Local.String())
		}
	}
	if upgrade != "" {
		x.upgrade = upgrade
		h["Connection"], h["Upgrade"] = upgradeOnly, x.value(upgrade)
	}
	id := x.value(x.id)
	requestIDs.set(h, id)
	clientIP.set(h, v.ip)
	proto, ssl := protoHTTP, sslOff
	if v.TLS != nil {
		proto, ssl = protoHTTPS, sslOn
	}
	h["X-Forwarded-Proto"], h["X-Forwarded-Ssl"] = proto, ssl
	forwardedProto.set(h, proto)
	forwardedSSL.set(h, ssl)
	forwardedPort.set(h, v.port)
	if sent := h["X-Forwarded-Port"]; len(sent) != 1 || !isPort(sent[0]) {
		h["X-Forwarded-Port"] = v.port
	}
	region.set(h, x.p.region)
	if before := h["X-Forwarded-For"]; len(before) > 0 {
		h["X-Forwarded-For"] = x.value(strings.Join(before, ", ") + ", " + v.forwarded[0])
	} else {
		h["X-Forwarded-For"] = v.forwarded
	}
	appendVia(h, viaOf(x.sent.ProtoMajor, x.sent.ProtoMinor))
	h["X-Request-Start"] = x.value("t=" + strconv.FormatInt(now.UnixMicro(), 10))
	sent := ""
	if list := h["Traceparent"]; len(list) == 1 {
		sent = list[0]
	}
	trace, continued := traceparent(sent)
	traceparents.set(h, x.value(trace))
	if state := h["Tracestate"]; continued && len(state) > 0 {
		tracestates.set(h, state)
	}
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// cleanTrailers removes trailers that the client must not get.
func cleanTrailers(trailers http.Header) {
	for key := range trailers {
		if hopByHop(key) {
			delete(trailers, key)
		}
	}
	for _, p := range answerOnly {
		p.remove(trailers)
	}
}

// setAnswerHeaders sets the headers that the client gets from those of a Machine's answer.
func (x *exchange) setAnswerHeaders(h http.Header, answer *http.Response) {
	from := answer.Header
	if from["Connection"] != nil {
		dropNominated(from)
	}
	for key, values := range from {
		if !hopByHop(key) {
			h[key] = values
		}
	}
	for _, p := range answerOnly {
		p.remove(h)
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // otherwise the server guesses
	}
	x.setEdgeHeaders(h, viaOf(answer.ProtoMajor, answer.ProtoMinor))
}

// Values of HeaderCacheStatus, shared by all answers and never changed.
var cacheHit, cacheMiss = []string{"HIT"}, []string{"MISS"}

// setEdgeHeaders sets the edge's own headers of an answer, and those that the service configures.
// via is the protocol of the Machine's answer; nil: the answer is the edge's own.
func (x *exchange) setEdgeHeaders(h http.Header, via []string) {
	o := x.ep.Options.HTTP
	pristine := o != nil && o.Response != nil && o.Response.Pristine != nil && *o.Response.Pristine
	if !pristine {
		h["Server"] = product
		cache := cacheHit
		if via != nil {
			appendVia(h, via)
			cache = cacheMiss
		}
		cacheStatus.set(h, cache)
		requestIDs.set(h, x.value(x.id))
	}
	if alt := x.client.alt; alt != nil && h["Alt-Svc"] == nil {
		h["Alt-Svc"] = alt
	}
	if o != nil && o.Response != nil {
		setServiceHeaders(h, o.Response.Headers)
	}
}

// setServiceHeaders sets and removes headers of an answer as the service configures, except those
// that frame the answer.
func setServiceHeaders(h http.Header, headers map[string]any) {
	for name, value := range headers {
		key := http.CanonicalHeaderKey(name)
		if hopByHop(key) || key == "Content-Length" || !httpguts.ValidHeaderFieldName(name) {
			continue
		}
		switch v := value.(type) {
		case bool:
			if !v {
				delete(h, key)
			}
		case string:
			if httpguts.ValidHeaderFieldValue(v) {
				h[key] = []string{v}
			}
		case []any:
			list := make([]string, 0, len(v))
			for _, each := range v {
				if s, ok := each.(string); ok && httpguts.ValidHeaderFieldValue(s) {
					list = append(list, s)
				}
			}
			h[key] = list
		}
	}
}

package hangar

import (
	"slices"
	"strconv"
	"strings"
)

// The bounds of what a config may ask of the edge.
const (
	MaxStatics = 10

	maxPublicPorts    = 16 << 10         // of a Machine; the edge opens a socket for each
	maxHTTPIdle       = 7 * 24 * 60 * 60 // seconds
	maxHeadersRead    = 60 * 60          // seconds
	maxResponse       = 64               // headers
	maxALPN           = 16
	maxReplayCaches   = 16
	minReplayCacheTTL = 10 // seconds
)

var (
	tlsVersions        = []string{"TLSv1.2", "TLSv1.3"}
	proxyProtoVersions = []string{"", "v1", "v2", "1", "2"}
	replayCacheTypes   = []string{"cookie", "header"}
)

// framingHeaders describe the connection or mark the end of an answer. Only the edge may set them.
var framingHeaders = []string{
	"connection", "content-length", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

// validateEdge checks how the edge handles the ports of the service.
func (s *Service) validateEdge(at string) error {
	for i := range s.Ports {
		if err := s.Ports[i].validateEdge(at+".ports["+strconv.Itoa(i)+"]", s.UDP()); err != nil {
			return err
		}
	}
	return nil
}

// publicPorts is how many ports the edge opens for the service.
func (s *Service) publicPorts() (n int) {
	for i := range s.Ports {
		first, last := s.Ports[i].Range()
		n += last - first + 1
	}
	return n
}

func (p *ServicePort) validateEdge(at string, udp bool) error {
	if err := p.validateHandlers(at, udp); err != nil {
		return err
	}
	if t := p.TLS; t != nil {
		if err := t.validate(at + ".tls_options"); err != nil {
			return err
		}
	}
	if p.ProxyProto != nil && !slices.Contains(proxyProtoVersions, p.ProxyProto.Version) {
		return badConfig(at+".proxy_proto_options.version", "%q is not \"v1\" or \"v2\"", p.ProxyProto.Version)
	}
	if p.HTTP == nil {
		return nil
	}
	return p.HTTP.validate(at + ".http_options")
}

// validateHandlers checks which handlers can be combined. Their order has no effect. Ports of datagrams
// may have any handlers, which do nothing, because existing configs have some.
func (p *ServicePort) validateHandlers(at string, udp bool) error {
	h := p.Handling()
	switch {
	case udp:
		return nil
	case h.PgTLS && (h.TLS || h.HTTP):
		return badConfig(at+".handlers", "\"pg_tls\" goes with neither \"tls\" nor \"http\"")
	case p.ForceHTTPS && !h.HTTP:
		return badConfig(at+".force_https", "it needs the handler \"http\"")
	}
	return nil
}

func (t *TLSOptions) validate(at string) error {
	for i, v := range t.Versions {
		if !slices.Contains(tlsVersions, v) {
			return badConfig(at+".versions["+strconv.Itoa(i)+"]", "%q is not one of %v", v, tlsVersions)
		}
	}
	if len(t.ALPN) > maxALPN {
		return badConfig(at+".alpn", "has %d entries, more than the %d that are allowed", len(t.ALPN), maxALPN)
	}
	for i, protocol := range t.ALPN {
		if protocol == "" || len(protocol) > 255 || strings.ContainsFunc(protocol, unprintable) {
			return badConfig(at+".alpn["+strconv.Itoa(i)+"]", "%q is not a protocol of 1 to 255 printable ASCII characters", protocol)
		}
	}
	return nil
}

func (h *HTTPOptions) validate(at string) error {
	switch {
	case h.IdleTimeout != nil && *h.IdleTimeout > maxHTTPIdle:
		return badConfig(at+".idle_timeout", "%d s is more than %d", *h.IdleTimeout, maxHTTPIdle)
	case h.HeadersReadTimeout != nil && *h.HeadersReadTimeout > maxHeadersRead:
		return badConfig(at+".headers_read_timeout", "%d s is more than %d", *h.HeadersReadTimeout, maxHeadersRead)
	case len(h.ReplayCache) > maxReplayCaches:
		return badConfig(at+".replay_cache", "has %d entries, more than the %d that are allowed", len(h.ReplayCache), maxReplayCaches)
	}
	for i := range h.ReplayCache {
		if err := h.ReplayCache[i].validate(at + ".replay_cache[" + strconv.Itoa(i) + "]"); err != nil {
			return err
		}
	}
	if h.Response == nil {
		return nil
	}
	return h.Response.validate(at + ".response.headers")
}

func (c *ReplayCache) validate(at string) error {
	switch {
	case !plainPath(c.PathPrefix):
		return badConfig(at+".path_prefix", "%q is not a plain path that starts with a slash", c.PathPrefix)
	case c.TTLSeconds < minReplayCacheTTL:
		return badConfig(at+".ttl_seconds", "%d is less than %d", c.TTLSeconds, minReplayCacheTTL)
	case !slices.Contains(replayCacheTypes, c.Type):
		return badConfig(at+".type", "%q is not \"cookie\" or \"header\"", c.Type)
	case len(c.Name) > maxCheckText || !isToken(c.Name):
		return badConfig(at+".name", "%q is not the name of a cookie or a header", c.Name)
	}
	return nil
}

// validate checks the headers that the edge sets or, for false, removes.
func (r *HTTPResponseOptions) validate(at string) error {
	if len(r.Headers) > maxResponse {
		return badConfig(at, "has %d entries, more than the %d that are allowed", len(r.Headers), maxResponse)
	}
	for name, value := range r.Headers {
		here := at + "." + name
		switch {
		case len(name) > maxCheckText || !isToken(name):
			return badConfig(at, "has a name that is no header's: %.64q", name)
		case slices.Contains(framingHeaders, strings.ToLower(name)):
			return badConfig(here, "it is the edge's own")
		}
		switch v := value.(type) {
		case string:
			if !headerValue(v) {
				return badConfig(here, "is longer than %d bytes or contains control characters", maxCheckText)
			}
		case []any:
			if len(v) > maxCheckHeaders {
				return badConfig(here, "has %d entries, more than the %d that are allowed", len(v), maxCheckHeaders)
			}
			for i, x := range v {
				if text, ok := x.(string); !ok || !headerValue(text) {
					return badConfig(here+"["+strconv.Itoa(i)+"]", "is not a text of at most %d bytes without control characters", maxCheckText)
				}
			}
		case bool:
			if v {
				return badConfig(here, "is true; give a text, a list of texts, or false to remove the header")
			}
		default:
			return badConfig(here, "is not a text, a list of texts, or false to remove the header")
		}
	}
	return nil
}

// headerValue reports whether a text can be the value of a header.
func headerValue(v string) bool {
	return len(v) <= maxCheckText && !strings.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// plainPath reports whether a path begins with a slash and can be taken literally: printable ASCII
// without escapes, wildcards, a query, or the steps . and ..
func plainPath(p string) bool {
	if !strings.HasPrefix(p, "/") || len(p) > maxCheckText || strings.ContainsFunc(p, unprintable) ||
		strings.ContainsAny(p, "%*?#\\") || strings.Contains(p, "//") {
		return false
	}
	for step := range strings.SplitSeq(p, "/") {
		if step == "." || step == ".." {
			return false
		}
	}
	return true
}

// validateStatics checks the files that the edge serves without the program. Prefixes may nest, because
// the longest one wins, so only equal ones are an error.
func (c *MachineConfig) validateStatics() error {
	if len(c.Statics) > MaxStatics {
		return badConfig("config.statics", "has %d entries, more than the %d that are allowed", len(c.Statics), MaxStatics)
	}
	prefixes := map[string]int{}
	for i := range c.Statics {
		at := "config.statics[" + strconv.Itoa(i) + "]"
		if err := c.Statics[i].validate(at); err != nil {
			return err
		}
		prefix := strings.TrimSuffix(c.Statics[i].URLPrefix, "/")
		if other, taken := prefixes[prefix]; taken {
			return badConfig(at+".url_prefix", "%q is also the prefix of config.statics[%d]", c.Statics[i].URLPrefix, other)
		}
		prefixes[prefix] = i
	}
	return nil
}

func (s *Static) validate(at string) error {
	switch {
	case s.TigrisBucket == "" && !strings.HasPrefix(s.GuestPath, "/"):
		return badConfig(at+".guest_path", "%q is not an absolute path", s.GuestPath)
	case !cleanSteps(s.GuestPath):
		return badConfig(at+".guest_path", "%q has control characters or steps that lead upwards", s.GuestPath)
	case !strings.HasPrefix(s.URLPrefix, "/"):
		return badConfig(at+".url_prefix", "%q does not start with a slash", s.URLPrefix)
	case !plainPath(s.URLPrefix):
		return badConfig(at+".url_prefix", "%q is not a plain path", s.URLPrefix)
	case s.TigrisBucket != "" && !ValidBucket(s.TigrisBucket):
		return badConfig(at+".tigris_bucket", "%q is not the name of a bucket", s.TigrisBucket)
	case s.IndexDocument != "" && s.TigrisBucket == "":
		return badConfig(at+".index_document", "only files in a bucket have one")
	case strings.HasPrefix(s.IndexDocument, "/") || !cleanSteps(s.IndexDocument):
		return badConfig(at+".index_document", "%q is not the name of a file", s.IndexDocument)
	}
	return nil
}

// cleanSteps reports whether a path never leaves its root.
func cleanSteps(p string) bool {
	if len(p) > maxCheckText || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return false
	}
	for step := range strings.SplitSeq(p, "/") {
		if step == ".." {
			return false
		}
	}
	return true
}

// ValidBucket reports whether a name can be the name of a bucket: a host name of 3 to 63
// lower-case letters, digits, dots and dashes.
func ValidBucket(name string) bool {
	if len(name) < 3 || len(name) > 63 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' || strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
		}) {
			return false
		}
	}
	return true
}

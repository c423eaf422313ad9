package replay

import (
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/hangar-platform/hangar"
)

// Headers that belong to the connection or to the message, which a transformation can neither set
// nor delete.
var framing = []string{
	"Connection", "Content-Length", "Expect", "Host", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate",
	"Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings",
}

// EdgeOnly are the headers, beside those under ownPrefixes, that programs believe about the
// client and that only the edge may set: no client and no transformation.
var EdgeOnly = []string{
	"Forwarded", "True-Client-Ip", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Ssl", "X-Real-Ip", "X-Request-Start",
}

// owned are the headers that no transformation may set. Clients may send the last ones.
var owned = slices.Concat(EdgeOnly, []string{"Via", "X-Forwarded-For", "X-Forwarded-Port"})

// Headers with these prefixes are for the edge and Machines only.
var ownPrefixes = []string{"Platform-", "Fly-"}

// steering headers are the client's preferences, which a transformation may remove.
var steering = []hangar.NamePair{
	hangar.HeaderPreferRegion, hangar.HeaderForceRegion, hangar.HeaderPreferInstance, hangar.HeaderForceInstance,
	hangar.HeaderReplayCacheControl,
}

// check validates a transformation.
func (t *transform) check() (*Transform, error) {
	out := &Transform{Path: t.Path}
	if t.Path != "" {
		if _, err := target(t.Path); err != nil {
			return nil, err
		}
	}
	if len(t.DeleteHeaders)+len(t.SetHeaders) > maxTransforms {
		return nil, refused("transform changes more than %d headers", maxTransforms)
	}
	for _, name := range t.DeleteHeaders {
		key, err := headerName("transform.delete_headers", name)
		if err != nil {
			return nil, err
		}
		steers := slices.ContainsFunc(steering, func(p hangar.NamePair) bool {
			return strings.EqualFold(name, p.Neutral) || strings.EqualFold(name, p.Original)
		})
		if edgeOwns(key) && !steers {
			return nil, refused("transform.delete_headers names %q, which is the edge's own", name)
		}
		out.DeleteHeaders = append(out.DeleteHeaders, key)
	}
	for _, h := range t.SetHeaders {
		key, err := headerName("transform.set_headers", h.Name)
		switch {
		case err != nil:
			return nil, err
		case edgeOwns(key):
			return nil, refused("transform.set_headers names %q, which is the edge's own", h.Name)
		case !httpguts.ValidHeaderFieldValue(h.Value):
			return nil, refused("transform.set_headers gives %q a value that no header can have", h.Name)
		}
		i := slices.IndexFunc(out.SetHeaders, func(x hangar.Header) bool { return x.Name == key })
		if i < 0 {
			i = len(out.SetHeaders)
			out.SetHeaders = append(out.SetHeaders, hangar.Header{Name: key})
		}
		out.SetHeaders[i].Values = append(out.SetHeaders[i].Values, h.Value)
	}
	return out, nil
}

func headerName(at, name string) (string, error) {
	if !httpguts.ValidHeaderFieldName(name) {
		return "", refused("%s names %q, which is no header", at, name)
	}
	return textproto.CanonicalMIMEHeaderKey(name), nil
}

// edgeOwns reports whether an App may not set a canonical header.
func edgeOwns(key string) bool {
	return slices.Contains(framing, key) || slices.Contains(owned, key) ||
		slices.ContainsFunc(ownPrefixes, func(p string) bool { return strings.HasPrefix(key, p) })
}

// target parses a path with its query as in a request line.
func target(path string) (*url.URL, error) {
	plain := len(path) <= maxPath && strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") &&
		!strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' || r == '\\' })
	if plain {
		if u, err := url.ParseRequestURI(path); err == nil {
			return u, nil
		}
	}
	return nil, refused("transform.path is not a path of printable ASCII that begins with one slash")
}

// Apply changes a request as the transformation says. The request must be the caller's own,
// its URL and its headers too.
func (t *Transform) Apply(r *http.Request) error {
	if t.Path != "" {
		u, err := target(t.Path)
		if err != nil {
			return err
		}
		r.URL.Path, r.URL.RawPath, r.URL.RawQuery, r.URL.ForceQuery = u.Path, u.RawPath, u.RawQuery, u.ForceQuery
		r.RequestURI = t.Path
	}
	for _, key := range t.DeleteHeaders {
		delete(r.Header, key)
	}
	for _, h := range t.SetHeaders {
		r.Header[h.Name] = slices.Clone(h.Values)
	}
	return nil
}

package proxy

import (
	"net/http"

	"github.com/hangar-platform/hangar"
)

// platformOf returns the handler of a request for a name of the platform; nil: it is for an App
// (ADR 34).
//
// A request for such a name never reaches an App, and one on a connection whose TLS is for such a
// name is never answered as another: a request that came by an address or a port of an App's own,
// or with TLS for another name, is misdirected (RFC 9110, section 15.5.20). A request with TLS for
// no name, to an address that Apps share, is for the platform, whatever its Host is.
func (p *Proxy) platformOf(v *clientConn, r *http.Request) (http.Handler, *hangar.EdgeError) {
	if v.TLS != nil && v.Route == nil && v.ServerName == "" {
		return p.options.Nameless, nil
	}
	if len(p.options.Platform) == 0 {
		return nil, nil //nolint:nilnil // it is for an App
	}
	name := nameOf(v, r)
	own := p.options.Platform[name]
	switch {
	case own == nil && p.options.Platform[v.ServerName] == nil:
		return nil, nil //nolint:nilnil // it is for an App
	case own == nil, v.Route != nil, v.Port != 80 && v.Port != 443, v.TLS != nil && v.ServerName != name:
		return nil, misdirected()
	}
	return own, nil
}

// servePlatform lets the platform itself answer a request. Without TLS it redirects a harmless
// request and refuses others: a token must not cross a network in the clear, and a client that has
// sent one has to know.
func (x *exchange) servePlatform(own http.Handler) *hangar.EdgeError {
	r := x.sent
	if x.client.TLS == nil {
		_, token := r.Header["Authorization"]
		if token || r.Method != http.MethodGet && r.Method != http.MethodHead {
			e := &hangar.EdgeError{
				Code: hangar.EdgeNeedsTLS, Status: http.StatusForbidden,
				Message: "this name is served by https alone, and what a request carries can be read on its way without",
			}
			if token {
				e.Message += "; the token in this one was: revoke it"
			}
			return e
		}
		x.redirectHTTPS()
		return nil
	}
	client := x.client.Client
	if !x.p.callers.Take(client) {
		return &hangar.EdgeError{Code: hangar.EdgeTooMany, Status: http.StatusTooManyRequests, Message: "too many requests of this client are in flight"}
	}
	defer x.p.callers.Leave(client)
	own.ServeHTTP(x.w, r)
	return nil
}

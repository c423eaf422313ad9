package signon

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
)

// The cookies. Over TLS their names begin with __Host-, so that no other name of the domain can set them
// (RFC 6265bis, section 4.1.3.2).
const (
	sessionCookie = "hangar-session"
	visitCookie   = "hangar-visit"  // of a browser that has no session yet: what the token of its form is bound to
	openIDCookie  = "hangar-openid" // of a browser that is at the OpenID Connect provider: see openIDVisit
	hostPrefix    = "__Host-"
)

func cookieName(r *http.Request, name string) string {
	if r.TLS != nil {
		return hostPrefix + name
	}
	return name
}

// setCookie sets a cookie until the browser ends; without a value it removes it.
func setCookie(w http.ResponseWriter, r *http.Request, name, value string) {
	cookie := &http.Cookie{ //nolint:gosec // a browser does not send back what is Secure to a server without TLS
		Name: cookieName(r, name), Value: value, Path: "/", HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteLaxMode,
	}
	if value == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(w, cookie)
}

// cookie is the value of a cookie, or empty. A duplicate counts as none, because it is unknown which of
// the two this server has set.
func cookie(r *http.Request, name string) string {
	list := r.CookiesNamed(cookieName(r, name))
	if len(list) != 1 {
		return ""
	}
	return list[0].Value
}

// session returns who has signed in with the browser.
func (h *Handler) session(r *http.Request) (p hangar.Principal, text string, ok bool) {
	text = cookie(r, sessionCookie)
	if text == "" {
		return p, "", false
	}
	p, err := h.Sessions.Session(r.Context(), hangar.NewSensitive(text))
	return p, text, err == nil
}

// derived is a value for one use, derived from a cookie's secret. It reveals nothing of the cookie, or of the values
// for other uses.
func derived(secret, use string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(use))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// formToken is the token in a form that shows that its page was made for this browser.
func formToken(bound string) string { return derived(bound, "form") }

// visitToken returns the token of a form for a browser without a session, and sets the cookie that it is
// bound to.
func visitToken(w http.ResponseWriter, r *http.Request) string {
	visit := cookie(r, visitCookie)
	if len(visit) < len(rand.Text()) {
		visit = rand.Text()
		setCookie(w, r, visitCookie, visit)
	}
	return formToken(visit)
}

// sameOrigin reports whether a form was sent by a page of this server, as far as the browser says.
//
// Pages have the policy no-referrer, with which browsers send the origin "null" for a form. They send
// it for pages without an origin, too, so it means nothing. Then the token of the form decides, as for
// browsers that send neither header.
func sameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site == "same-origin"
	}
	switch from := r.Header.Get("Origin"); from {
	case "", "null":
		return true
	default:
		u, err := url.Parse(from)
		return err == nil && u.Scheme+"://"+u.Host == router.Origin(r)
	}
}

// own reports whether a form was sent by a page of this server to the browser whose cookie is bound.
func own(r *http.Request, f form, bound string) bool {
	return bound != "" && sameOrigin(r) && hmac.Equal([]byte(f[fieldToken]), []byte(formToken(bound)))
}

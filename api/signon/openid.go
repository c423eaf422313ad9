package signon

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/signon/openid"
)

// OpenID is the operator's OpenID Connect provider: see openid.Provider.
type OpenID interface {
	Title() string
	URL(ctx context.Context, in openid.SignIn) (string, error)
	Identify(ctx context.Context, in openid.SignIn, code string) (hangar.Identity, error)
}

// maxOpenIDCookie bounds a cookie, in bytes, below what browsers keep.
const maxOpenIDCookie = 3800

// openIDVisit is a browser that is at the provider: a secret that only the browser has, and the
// authorization request that it returns to.
type openIDVisit struct{ secret, request string }

// signIn returns what to ask of the provider. The provider sees some of the values, and cannot derive
// the others. The browser returns to the name by which it has called this server, where its cookie is.
func (v openIDVisit) signIn(r *http.Request) openid.SignIn {
	return openid.SignIn{
		State: derived(v.secret, "state"), Nonce: derived(v.secret, "nonce"), Verifier: derived(v.secret, "verifier"), Redirect: router.Origin(r) + openIDBackPath,
	}
}

func (v openIDVisit) String() string {
	return v.secret + "." + base64.RawURLEncoding.EncodeToString([]byte(v.request))
}

func parseOpenIDVisit(text string) (v openIDVisit, ok bool) {
	secret, encoded, whole := strings.Cut(text, ".")
	request, err := base64.RawURLEncoding.DecodeString(encoded)
	return openIDVisit{secret, string(request)}, whole && err == nil && len(secret) >= len(rand.Text())
}

// goToOpenID sends a browser to the provider.
func (h *Handler) goToOpenID(w http.ResponseWriter, r *http.Request) {
	f, err := parseForm(r.URL.RawQuery, maxQuery+len(fieldRequest))
	if err != nil {
		h.formRefused(w, r, err)
		return
	}
	request, ok := h.continued(w, r, f[fieldRequest])
	if !ok {
		return
	}
	visit := openIDVisit{secret: rand.Text()}
	if request != nil {
		visit.request = request.raw
	}
	text := visit.String()
	if len(text) > maxOpenIDCookie {
		h.refuse(w, r, http.StatusBadRequest, "The link that led here is too long.")
		return
	}
	to, err := h.OpenID.URL(r.Context(), visit.signIn(r))
	if err != nil {
		h.openIDFailed(w, r, nil, err)
		return
	}
	setCookie(w, r, openIDCookie, text)
	seeOther(w, to)
}

// backFromOpenID opens a session for a browser that comes back from the provider.
func (h *Handler) backFromOpenID(w http.ResponseWriter, r *http.Request) {
	f, err := parseFormOf(r.URL.RawQuery, maxForeignQuery, maxForeignQuery)
	if err != nil {
		h.formRefused(w, r, err)
		return
	}
	visit, ok := parseOpenIDVisit(cookie(r, openIDCookie))
	setCookie(w, r, openIDCookie, "")
	in := visit.signIn(r)
	if !ok || !hmac.Equal([]byte(f[paramState]), []byte(in.State)) {
		h.refuse(w, r, http.StatusForbidden, "This sign-in was not begun with this browser, or has ended. Begin again at "+signInPath+".")
		return
	}
	request, ok := h.continued(w, r, visit.request)
	if !ok {
		return
	}
	if f["code"] == "" {
		h.askToSignIn(w, r, http.StatusForbidden, request, signInView{}, h.OpenID.Title()+" did not sign you in.")
		return
	}
	if wait := h.returns.Take(source(r), returnPace); wait > 0 {
		h.askToWait(w, r, wait, request, signInView{})
		return
	}
	who, err := h.OpenID.Identify(r.Context(), in, f["code"])
	if err != nil {
		h.openIDFailed(w, r, request, err)
		return
	}
	made, err := h.Sessions.OpenSessionAs(r.Context(), who)
	if err != nil {
		h.openIDFailed(w, r, request, err)
		return
	}
	h.begin(w, r, made.Text)
	resume(w, request)
}

// openIDFailed shows why a sign-in by the provider failed.
func (h *Handler) openIDFailed(w http.ResponseWriter, r *http.Request, request *request, err error) {
	title := h.OpenID.Title()
	var status int
	var alert string
	switch hangar.CodeOf(err) {
	case hangar.CodeUnauthenticated:
		status, alert = http.StatusForbidden, title+" did not confirm who you are. Try again."
	case hangar.CodeForbidden:
		status, alert = http.StatusForbidden, title+" has signed you in, but there is no user and no invitation for your e-mail address. Ask an administrator for an invitation."
	case hangar.CodeFailedPrecondition:
		status, alert = http.StatusForbidden, "The user with your e-mail address signs in with another account at "+title+". Ask an administrator of the platform."
	case hangar.CodeUnavailable:
		status, alert = http.StatusServiceUnavailable, title+" does not answer now. Try again in a moment."
	default:
		h.failed(w, r, err)
		return
	}
	h.Log.WarnContext(r.Context(), "sign-in by the OpenID Connect provider failed", router.KeyRequest, router.RequestID(r), router.KeyError, err)
	h.askToSignIn(w, r, status, request, signInView{}, alert)
}

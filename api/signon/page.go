package signon

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"net/url"
	"strconv"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
)

var (
	//go:embed page.html
	pageSource string
	//go:embed page.css
	style string

	page = template.Must(template.New("page").Parse(pageSource))

	// styleSource allows only the style of the pages.
	styleSource = func() string {
		sum := sha256.Sum256([]byte(style))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}()
)

// The fields of forms.
const (
	fieldToken    = "token"   // see formToken
	fieldRequest  = "request" // the query of a pending authorization request
	fieldEmail    = "email"
	fieldPassword = "password"
	fieldOrg      = "organization"
	fieldDecision = "decision"
	allow         = "allow"
)

// view is what a page shows.
type view struct {
	Title   string
	Style   template.CSS
	Alert   string // what went wrong
	Token   string // of its forms
	SignIn  *signInView
	Consent *consentView
	User    *hangar.User // the signed-in user, or nil
	Back    string       // the authorization request that follows signing out
}

type signInView struct {
	Client  string // that the user comes from; empty: none
	Request string
	Email   string
	// OpenID is the link to the OpenID Connect provider, and OpenIDTitle its name. Empty: there is
	// none.
	OpenID, OpenIDTitle string
}

type consentView struct {
	Client  string
	Whole   bool // it wants everything that the user may do
	Site    string
	Request string
	Orgs    []hangar.Membership // to choose from
}

// policy is the Content-Security-Policy of a page whose forms may lead to another site. Browsers also
// apply form-action to the redirects of a form.
func policy(site string) string {
	action := "'self'"
	if site != "" {
		action += " " + site
	}
	return "default-src 'none'; style-src " + styleSource + "; form-action " + action + "; frame-ancestors 'none'; base-uri 'none'"
}

// siteOf is the origin of a redirect URI, which a client has registered.
func siteOf(redirect string) string {
	u, err := url.Parse(redirect)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// show writes a page.
func (h *Handler) show(w http.ResponseWriter, r *http.Request, status int, v view) {
	v.Style = template.CSS(style) //nolint:gosec // our own
	var b bytes.Buffer
	if err := page.Execute(&b, v); err != nil {
		h.Log.ErrorContext(r.Context(), "page of single sign-on", router.KeyError, err)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", router.MediaHTML+"; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // an error is of no use to a client that is gone
}

// refuse shows a page that says what is wrong with the request.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	h.show(w, r, status, view{Title: "This does not work", Alert: text})
}

// failed shows a page for an error of a service.
func (h *Handler) failed(w http.ResponseWriter, r *http.Request, err error) {
	switch hangar.CodeOf(err) {
	case hangar.CodeUnavailable, hangar.CodeTimeout:
		w.Header().Set("Retry-After", "1")
		h.refuse(w, r, http.StatusServiceUnavailable, "The platform cannot answer now. Try again in a moment.")
	default:
		h.Log.ErrorContext(r.Context(), "single sign-on failed", router.KeyRequest, router.RequestID(r), router.KeyPath, r.URL.Path, router.KeyError, err)
		h.refuse(w, r, http.StatusInternalServerError, "Something went wrong on the platform. Its log has more under the id of this request.")
	}
}

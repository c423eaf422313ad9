package signon

import (
	"net/http"
	"net/url"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
)

// signInPage shows the form to a browser without a session, and the user to one with a session.
func (h *Handler) signInPage(w http.ResponseWriter, r *http.Request) {
	p, text, ok := h.session(r)
	if !ok {
		h.askToSignIn(w, r, http.StatusOK, nil, signInView{}, "")
		return
	}
	choice, err := h.OAuth.Choice(hangar.WithPrincipal(r.Context(), p), "")
	if err != nil {
		h.failed(w, r, err)
		return
	}
	h.show(w, r, http.StatusOK, view{Title: "You are signed in", Token: formToken(text), User: choice.User})
}

// askToSignIn shows the form, which then continues a pending authorization request.
func (h *Handler) askToSignIn(w http.ResponseWriter, r *http.Request, status int, request *request, v signInView, alert string) {
	if request != nil {
		v.Client, v.Request = request.client.Title(), request.raw
		w.Header().Set("Content-Security-Policy", policy(siteOf(request.redirect)))
	}
	if h.OpenID != nil {
		v.OpenID = openIDPath
		if v.Request != "" {
			v.OpenID += "?" + url.Values{fieldRequest: {v.Request}}.Encode()
		}
		v.OpenIDTitle = h.OpenID.Title()
	}
	h.show(w, r, status, view{Title: "Sign in", Alert: alert, Token: visitToken(w, r), SignIn: &v})
}

// askToWait shows the form after too many attempts.
func (h *Handler) askToWait(w http.ResponseWriter, r *http.Request, wait time.Duration, request *request, v signInView) {
	w.Header().Set("Retry-After", router.RetryAfter(wait))
	h.askToSignIn(w, r, http.StatusTooManyRequests, request, v, "There were too many attempts. Wait a moment before the next.")
}

// form reads a form and the authorization request in it, or nil. If either is not valid, it answers and
// returns false.
func (h *Handler) form(w http.ResponseWriter, r *http.Request) (f form, request *request, ok bool) {
	f, err := readForm(r)
	if err != nil {
		h.formRefused(w, r, err)
		return nil, nil, false
	}
	request, ok = h.continued(w, r, f[fieldRequest])
	return f, request, ok
}

// continued checks an authorization request that pages carry as if it were new; nil: they carry none.
// If it is not valid, continued answers and returns false.
func (h *Handler) continued(w http.ResponseWriter, r *http.Request, raw string) (request *request, ok bool) {
	if raw == "" {
		return nil, true
	}
	request, no := h.parseRequest(r.Context(), raw)
	if no != nil {
		h.answerRefusal(w, r, no)
		return nil, false
	}
	return request, true
}

// formRefused shows what is wrong with a form.
func (h *Handler) formRefused(w http.ResponseWriter, r *http.Request, err error) {
	h.refuse(w, r, http.StatusBadRequest, "The form was not understood: "+err.Error()+".")
}

// signIn opens a session for a user who knows the password.
func (h *Handler) signIn(w http.ResponseWriter, r *http.Request) {
	f, request, ok := h.form(w, r)
	if !ok {
		return
	}
	shown := signInView{Email: f[fieldEmail]}
	if !own(r, f, cookie(r, visitCookie)) {
		h.askToSignIn(w, r, http.StatusForbidden, request, shown, "The form was not sent from this page, or the browser keeps no cookies. Try again.")
		return
	}
	if wait := h.Attempts.Try(f[fieldEmail], source(r)); wait > 0 {
		h.askToWait(w, r, wait, request, shown)
		return
	}
	made, err := h.Sessions.OpenSession(r.Context(), hangar.SignIn{Email: f[fieldEmail], Password: hangar.NewSensitive(f[fieldPassword]), Source: source(r)})
	if hangar.CodeOf(err) == hangar.CodeUnauthenticated {
		h.askToSignIn(w, r, http.StatusForbidden, request, shown, "The e-mail address or the password is wrong.")
		return
	}
	if err != nil {
		h.failed(w, r, err)
		return
	}
	h.Attempts.Succeeded(f[fieldEmail], source(r))
	h.begin(w, r, made.Text)
	resume(w, request)
}

// begin gives a browser its session. It ends an earlier session of the browser, which may have been
// planted.
func (h *Handler) begin(w http.ResponseWriter, r *http.Request, session string) {
	if old := cookie(r, sessionCookie); old != "" {
		if err := h.Sessions.CloseSession(r.Context(), hangar.NewSensitive(old)); err != nil {
			h.Log.WarnContext(r.Context(), "the previous session is not closed", router.KeyError, err)
		}
	}
	setCookie(w, r, sessionCookie, session)
	setCookie(w, r, visitCookie, "")
}

// resume sends a browser to an authorization request, or to the page about the session.
func resume(w http.ResponseWriter, request *request) {
	to := signInPath
	if request != nil {
		to = authorizePath + "?" + request.raw
	}
	seeOther(w, to)
}

func seeOther(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

// signOut ends a session.
func (h *Handler) signOut(w http.ResponseWriter, r *http.Request) {
	f, request, ok := h.form(w, r)
	if !ok {
		return
	}
	text := cookie(r, sessionCookie)
	if !own(r, f, text) {
		h.refuse(w, r, http.StatusForbidden, "The form was not sent from a page of this server.")
		return
	}
	if err := h.Sessions.CloseSession(r.Context(), hangar.NewSensitive(text)); err != nil {
		h.failed(w, r, err)
		return
	}
	setCookie(w, r, sessionCookie, "")
	resume(w, request)
}

package signon

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
)

// request is a valid authorization request (RFC 6749, section 4.1.1).
type request struct {
	client    *hangar.OAuthClient
	redirect  string
	state     string
	org       hangar.OrgID // empty: the user chooses
	challenge string       // of PKCE
	raw       string       // the same request as a query, without unknown parameters
}

// refusal is the answer to an authorization request that gets no code. It is a page unless it has a redirect URI.
type refusal struct {
	err      error // of a service; nil: the fields below apply
	redirect string
	state    string
	code     string
	text     string
}

// Parameters of an authorization request. Others are ignored (RFC 6749, section 3.1).
const (
	paramClient       = "client_id"
	paramRedirect     = "redirect_uri"
	paramResponseType = "response_type"
	paramResponseMode = "response_mode"
	paramScope        = "scope"
	paramState        = "state"
	paramOrg          = "organization_id"
	paramChallenge    = "code_challenge"
	paramMethod       = "code_challenge_method"
)

// challengeLength is the length of an S256 challenge, which is 32 bytes in base64url.
const challengeLength = 43

// parseRequest reads an authorization request.
func (h *Handler) parseRequest(ctx context.Context, raw string) (*request, *refusal) {
	f, broken := parseForm(raw, maxQuery)
	switch {
	case f == nil:
		return nil, &refusal{text: "The link that led here is broken: " + broken.Error() + "."}
	case f[paramClient] == "":
		return nil, &refusal{text: "The link that led here is broken: it must have one client_id."}
	}
	client, err := h.OAuth.OAuthClient(ctx, hangar.OAuthClientID(f[paramClient]))
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		return nil, &refusal{text: "The link that led here is of an application that is not registered."}
	}
	if err != nil {
		return nil, &refusal{err: err}
	}
	if f[paramRedirect] == "" || !client.RedirectsTo(f[paramRedirect]) {
		return nil, &refusal{text: "The link that led here leads on to an address that is not registered for the application."}
	}
	code, text := checkForm(f, client)
	if broken != nil {
		code, text = hangar.ReasonInvalidRequest, broken.Error()
	}
	if code != "" { // now that the redirect URI is known to be right, the client gets the error
		return nil, &refusal{redirect: f[paramRedirect], state: f[paramState], code: code, text: text}
	}
	known := url.Values{}
	for _, name := range []string{paramClient, paramRedirect, paramResponseType, paramScope, paramState, paramOrg, paramChallenge, paramMethod} {
		if f[name] != "" {
			known.Set(name, f[name])
		}
	}
	return &request{
		client: client, redirect: f[paramRedirect], state: f[paramState], org: hangar.OrgID(f[paramOrg]), challenge: f[paramChallenge], raw: known.Encode(),
	}, nil
}

// checkForm checks what a client sends besides its id and redirect URI. It returns the code and the text
// of an error for the client, or nothing.
func checkForm(f form, client *hangar.OAuthClient) (code, text string) {
	scope := hangar.OAuthScopeRead
	if client.ID == hangar.OAuthClientCLI {
		scope = hangar.OAuthScopeSignIn
	}
	challenge, method := f[paramChallenge], f[paramMethod]
	switch {
	case f["request"] != "":
		return "request_not_supported", "request objects are not supported"
	case f["request_uri"] != "":
		return "request_uri_not_supported", "request objects are not supported"
	case f[paramResponseType] == "":
		return hangar.ReasonInvalidRequest, "response_type is missing"
	case f[paramResponseType] != "code":
		return "unsupported_response_type", "response_type must be code"
	case f[paramResponseMode] != "" && f[paramResponseMode] != "query":
		return hangar.ReasonInvalidRequest, "response_mode must be query"
	case f[paramScope] != "" && f[paramScope] != scope:
		return hangar.ReasonInvalidScope, "scope must be " + scope
	case challenge == "" && method != "":
		return hangar.ReasonInvalidRequest, "code_challenge is missing"
	case challenge != "" && method != "S256":
		return hangar.ReasonInvalidRequest, "code_challenge_method must be S256"
	case challenge != "" && !isChallenge(challenge):
		return hangar.ReasonInvalidRequest, "code_challenge is not one of S256"
	case challenge == "" && client.Public:
		return hangar.ReasonInvalidRequest, "code_challenge is missing, which an application without a secret must send"
	}
	return "", ""
}

// isChallenge reports whether a text has the shape of a challenge by S256 (RFC 7636, section 4.2).
func isChallenge(text string) bool {
	return len(text) == challengeLength && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	})
}

// answerRefusal says why there is no code, to the user or to the client.
func (h *Handler) answerRefusal(w http.ResponseWriter, r *http.Request, no *refusal) {
	switch {
	case no.err != nil:
		h.failed(w, r, no.err)
	case no.redirect == "":
		h.refuse(w, r, http.StatusBadRequest, no.text)
	default:
		h.sendBack(w, r, no.redirect, url.Values{"error": {no.code}, "error_description": {no.text}}, no.state)
	}
}

// sendBack redirects a browser to a redirect URI of a client, which was checked against the registered
// ones. iss identifies the server (RFC 9207).
func (h *Handler) sendBack(w http.ResponseWriter, r *http.Request, redirect string, answer url.Values, state string) {
	if state != "" {
		answer.Set("state", state)
	}
	answer.Set("iss", h.issuer(r))
	to := redirect
	switch {
	case !strings.Contains(to, "?"):
		to += "?"
	case !strings.HasSuffix(to, "?") && !strings.HasSuffix(to, "&"):
		to += "&"
	}
	seeOther(w, to+answer.Encode())
}

// asking is an authorization request of a browser that is signed in.
type asking struct {
	*request
	r       *http.Request // with the principal of the session
	p       hangar.Principal
	session string
	choice  *hangar.OAuthChoice
}

// asking returns the authorization request in a query. Otherwise it answers: with an error or, to a
// browser that is not signed in, with the sign-in form, a status and an alert.
func (h *Handler) asking(w http.ResponseWriter, r *http.Request, raw string, status int, alert string) (*asking, bool) {
	request, no := h.parseRequest(r.Context(), raw)
	if no != nil {
		h.answerRefusal(w, r, no)
		return nil, false
	}
	p, text, ok := h.session(r)
	if !ok {
		h.askToSignIn(w, r, status, request, signInView{}, alert)
		return nil, false
	}
	r = r.WithContext(hangar.WithPrincipal(r.Context(), p))
	choice, no := h.choice(r.Context(), request)
	if no != nil {
		h.answerRefusal(w, r, no)
		return nil, false
	}
	return &asking{request, r, p, text, choice}, true
}

// authorize answers an authorization request: with a form, or with a code if no question is left.
func (h *Handler) authorize(w http.ResponseWriter, r *http.Request) {
	a, ok := h.asking(w, r, r.URL.RawQuery, http.StatusOK, "")
	if !ok {
		return
	}
	orgs := a.orgsOf(a.choice.User)
	if len(orgs) == 1 && slices.Contains(a.choice.Consented, orgs[0].OrgID) {
		h.giveCode(w, a, hangar.OAuthAuthorization{Org: orgs[0].OrgID})
		return
	}
	h.askForConsent(w, a, http.StatusOK, "")
}

// choice returns what the user can grant to the client of a request. It refuses if that is nothing.
func (h *Handler) choice(ctx context.Context, request *request) (*hangar.OAuthChoice, *refusal) {
	choice, err := h.OAuth.Choice(ctx, request.client.ID)
	if err != nil {
		return nil, &refusal{err: err}
	}
	if !request.whole() && len(request.orgsOf(choice.User)) == 0 {
		text := "the user is a member of no organization"
		if request.org != "" {
			text = "the user is no member of the organization"
		}
		return nil, request.deny(text)
	}
	return choice, nil
}

// whole reports whether the request is for everything that the user may do, and so for no single
// organization.
func (q *request) whole() bool { return q.client.ID == hangar.OAuthClientCLI }

// orgsOf are the organizations of a user that the request may be for.
func (q *request) orgsOf(user *hangar.User) []hangar.Membership {
	if q.whole() {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(user.Memberships), func(m hangar.Membership) bool { return q.org != "" && m.OrgID != q.org })
}

func (h *Handler) askForConsent(w http.ResponseWriter, a *asking, status int, alert string) {
	w.Header().Set("Content-Security-Policy", policy(siteOf(a.redirect)))
	title := "Sign in at " + a.client.Title()
	if a.whole() {
		title = "Sign in with the command line"
	}
	h.show(w, a.r, status, view{
		Title: title, Alert: alert, Token: formToken(a.session), User: a.choice.User, Back: a.raw,
		Consent: &consentView{
			Client: a.client.Title(), Whole: a.whole(), Site: siteOf(a.redirect), Request: a.raw, Orgs: a.orgsOf(a.choice.User),
		},
	})
}

// decide answers the form in which the user has decided.
func (h *Handler) decide(w http.ResponseWriter, r *http.Request) {
	f, err := readForm(r)
	if err != nil {
		h.formRefused(w, r, err)
		return
	}
	a, ok := h.asking(w, r, f[fieldRequest], http.StatusForbidden, "The session has ended. Sign in again.")
	if !ok {
		return
	}
	org := hangar.OrgID(f[fieldOrg])
	switch {
	case !own(r, f, a.session):
		h.askForConsent(w, a, http.StatusForbidden, "The form was not sent from this page. Decide again.")
	case f[fieldDecision] != allow:
		h.answerRefusal(w, a.r, a.deny("the user does not allow it"))
	case !a.whole() && !slices.ContainsFunc(a.orgsOf(a.choice.User), func(m hangar.Membership) bool { return m.OrgID == org }):
		h.askForConsent(w, a, http.StatusBadRequest, "Choose an organization.")
	default:
		h.giveCode(w, a, hangar.OAuthAuthorization{Org: org, Remember: true})
	}
}

// deny tells the client that it gets no access.
func (q *request) deny(text string) *refusal {
	return &refusal{redirect: q.redirect, state: q.state, code: hangar.ReasonAccessDenied, text: text}
}

// giveCode sends the user back to the client with a code.
func (h *Handler) giveCode(w http.ResponseWriter, a *asking, in hangar.OAuthAuthorization) {
	if wait := h.codes.Take(a.p.User, codePace); wait > 0 {
		w.Header().Set("Retry-After", router.RetryAfter(wait))
		h.refuse(w, a.r, http.StatusTooManyRequests, "You were sent on too often. Wait a moment.")
		return
	}
	in.Client, in.RedirectURI, in.Challenge = a.client, a.redirect, a.challenge
	if a.whole() {
		in.Org = ""
	}
	code, err := h.OAuth.Authorize(a.r.Context(), in)
	switch {
	case hangar.ReasonOf(err) == hangar.ReasonAccessDenied:
		h.answerRefusal(w, a.r, a.deny("the user is no member of the organization"))
	case err != nil:
		h.failed(w, a.r, err)
	default:
		h.sendBack(w, a.r, a.redirect, url.Values{"code": {code.Reveal()}}, a.state)
	}
}

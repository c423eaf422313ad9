package signon

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
)

// tokenAnswer is the answer of /oauth/token (RFC 6749, section 5.1), with the time at which the token
// was made.
type tokenAnswer struct {
	AccessToken  string `json:"access_token"`
	TokenType    string `json:"token_type"`
	ExpiresIn    int64  `json:"expires_in"` // seconds
	RefreshToken string `json:"refresh_token,omitempty"`
	Scope        string `json:"scope"`
	CreatedAt    int64  `json:"created_at"` // Unix seconds
}

// infoAnswer is the answer of /oauth/token/info.
type infoAnswer struct {
	ResourceOwnerID hangar.UserID `json:"resource_owner_id"`
	UserID          hangar.UserID `json:"user_id"`
	UserName        string        `json:"user_name"`
	Email           string        `json:"email"`
	Organizations   []infoOrg     `json:"organizations"`
	Scope           []string      `json:"scope"`
	ExpiresIn       int64         `json:"expires_in"` // seconds
	Application     infoClient    `json:"application"`
	CreatedAt       int64         `json:"created_at"` // Unix seconds
}

type infoOrg struct {
	ID   hangar.OrgID `json:"id"`
	Role hangar.Role  `json:"role"`
}

type infoClient struct {
	UID hangar.OAuthClientID `json:"uid"`
}

// errorAnswer is an error as clients of OAuth read it (RFC 6749, section 5.2).
type errorAnswer struct {
	Error       string `json:"error"`
	Description string `json:"error_description,omitempty"`
}

// answer writes JSON.
func answer(w http.ResponseWriter, status int, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		raw, status = []byte(`{"error":"server_error"}`), http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", router.MediaJSON)
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	w.WriteHeader(status)
	_, _ = w.Write(raw) // an error is of no use to a client that is gone
}

// oauthError is an error that a client receives.
type oauthError struct {
	status int
	errorAnswer
}

func (e *oauthError) Error() string { return e.Description }

func invalidRequest(text string) error {
	return &oauthError{http.StatusBadRequest, errorAnswer{hangar.ReasonInvalidRequest, text}}
}

func invalidClient() error {
	return &oauthError{http.StatusUnauthorized, errorAnswer{hangar.ReasonInvalidClient, "the client is unknown, or its secret is another one"}}
}

// answerError writes an error of an endpoint.
func (h *Handler) answerError(w http.ResponseWriter, r *http.Request, err error) {
	var known *oauthError
	switch code := hangar.CodeOf(err); {
	case errors.As(err, &known):
		if known.status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="oauth"`)
		}
		answer(w, known.status, known.errorAnswer)
	case code == hangar.CodeInvalid && hangar.ReasonOf(err) != "":
		answer(w, http.StatusBadRequest, errorAnswer{hangar.ReasonOf(err), router.Describe(err).Text})
	case code == hangar.CodeUnavailable, code == hangar.CodeTimeout:
		w.Header().Set("Retry-After", "1")
		answer(w, http.StatusServiceUnavailable, errorAnswer{"temporarily_unavailable", "try again in a moment"})
	default:
		h.Log.ErrorContext(r.Context(), "single sign-on failed", router.KeyRequest, router.RequestID(r), router.KeyPath, r.URL.Path, router.KeyError, err)
		answer(w, http.StatusInternalServerError, errorAnswer{"server_error", "the log of the server has more under the id of this request"})
	}
}

// tooMany tells a client to wait.
func tooMany(w http.ResponseWriter, wait time.Duration) {
	w.Header().Set("Retry-After", router.RetryAfter(wait))
	answer(w, http.StatusTooManyRequests, errorAnswer{"slow_down", "too many requests: wait as long as Retry-After says"})
}

// fromClient reads a request of a client and authenticates the client. If that fails, it answers and
// returns false.
func (h *Handler) fromClient(w http.ResponseWriter, r *http.Request) (*hangar.OAuthClient, form, bool) {
	client, f, err := h.authenticate(r)
	var known *oauthError
	if errors.As(err, &known) && known.status == http.StatusUnauthorized {
		if wait := h.failures.Take(source(r), router.SignInPace); wait > 0 {
			tooMany(w, wait)
			return nil, nil, false
		}
	}
	if err != nil {
		h.answerError(w, r, err)
		return nil, nil, false
	}
	wait := time.Duration(0)
	if client.Public { // it cannot authenticate, so everyone may claim its id
		wait = h.failures.Take(source(r), router.SignInPace)
	} else {
		wait = h.requests.Take(client.ID, requestPace)
	}
	if wait > 0 {
		tooMany(w, wait)
		return nil, nil, false
	}
	return client, f, true
}

// authenticate finds the client of a request (RFC 6749, section 2.3.1). The client authenticates by
// HTTP Basic or by the form, but not by both. A client without a secret gives only its id.
func (h *Handler) authenticate(r *http.Request) (*hangar.OAuthClient, form, error) {
	if r.URL.RawQuery != "" {
		return nil, nil, invalidRequest("parameters are in the body, not in the query")
	}
	f, err := readForm(r)
	if err != nil {
		return nil, nil, invalidRequest(err.Error())
	}
	id, secret, inForm := f[paramClient], "", false
	secret, inForm = f["client_secret"]
	if header := r.Header.Values("Authorization"); len(header) > 0 {
		name, password, ok := basic(r)
		switch {
		case !ok || len(header) > 1:
			return nil, nil, invalidClient()
		case inForm || id != "" && id != name:
			return nil, nil, invalidRequest("the client authenticates twice")
		}
		id, secret = name, password
	}
	if id == "" {
		return nil, nil, invalidClient()
	}
	client, err := h.OAuth.OAuthClient(r.Context(), hangar.OAuthClientID(id))
	switch {
	case hangar.CodeOf(err) == hangar.CodeNotFound:
		return nil, nil, invalidClient()
	case err != nil:
		return nil, nil, err
	case client.Public && secret == "", client.HasSecret(secret):
		return client, f, nil
	default:
		return nil, nil, invalidClient()
	}
}

// basic returns the id and the secret of a client, which are form-encoded inside HTTP Basic.
func basic(r *http.Request) (id, secret string, ok bool) {
	name, password, ok := r.BasicAuth()
	if !ok {
		return "", "", false
	}
	id, err := url.QueryUnescape(name)
	if err != nil {
		return "", "", false
	}
	secret, err = url.QueryUnescape(password)
	return id, secret, err == nil
}

// token exchanges a code or a refresh token (RFC 6749, sections 4.1.3 and 6).
func (h *Handler) token(w http.ResponseWriter, r *http.Request) {
	client, f, ok := h.fromClient(w, r)
	if !ok {
		return
	}
	var made *hangar.OAuthTokens
	var err error
	switch f["grant_type"] {
	case "authorization_code":
		if f["code"] == "" || f[paramRedirect] == "" {
			err = invalidRequest("code or redirect_uri is missing")
			break
		}
		made, err = h.OAuth.ExchangeCode(r.Context(), hangar.OAuthExchange{
			Client: client, Code: hangar.NewSensitive(f["code"]), RedirectURI: f[paramRedirect], Verifier: hangar.NewSensitive(f["code_verifier"]),
		})
	case "refresh_token":
		switch scope := f[paramScope]; {
		case f["refresh_token"] == "":
			err = invalidRequest("refresh_token is missing")
		case scope != "" && scope != hangar.OAuthScopeRead:
			err = hangar.Errorf(hangar.CodeInvalid, hangar.ReasonInvalidScope, "scope must be %s", hangar.OAuthScopeRead)
		default:
			made, err = h.OAuth.RefreshTokens(r.Context(), client, hangar.NewSensitive(f["refresh_token"]))
		}
	case "":
		err = invalidRequest("grant_type is missing")
	default:
		err = &oauthError{http.StatusBadRequest, errorAnswer{"unsupported_grant_type", "grant_type must be authorization_code or refresh_token"}}
	}
	if err != nil {
		h.answerError(w, r, err)
		return
	}
	answer(w, http.StatusOK, tokenAnswer{
		AccessToken: made.Access.Reveal(), TokenType: "Bearer", ExpiresIn: int64(made.ExpiresAt.Sub(made.CreatedAt).Seconds()),
		RefreshToken: made.Refresh.Reveal(), Scope: made.Scope, CreatedAt: made.CreatedAt.Unix(),
	})
}

// tokenInfo says who an access token stands for.
func (h *Handler) tokenInfo(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Has("access_token") { // RFC 9700, section 4.3.2
		h.answerError(w, r, invalidRequest("the token belongs into the Authorization header"))
		return
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if len(r.Header.Values("Authorization")) != 1 || !strings.EqualFold(scheme, "Bearer") {
		w.Header().Set("WWW-Authenticate", `Bearer realm="oauth"`)
		answer(w, http.StatusUnauthorized, errorAnswer{Error: "invalid_token", Description: "the request has no token"})
		return
	}
	info, err := h.OAuth.TokenInfo(r.Context(), hangar.NewSensitive(strings.TrimSpace(token)))
	if hangar.CodeOf(err) == hangar.CodeUnauthenticated {
		w.Header().Set("WWW-Authenticate", `Bearer realm="oauth", error="invalid_token"`) // RFC 6750, section 3.1
		answer(w, http.StatusUnauthorized, errorAnswer{Error: "invalid_token", Description: "the token is expired, revoked, or none of single sign-on"})
		return
	}
	if err != nil {
		h.answerError(w, r, err)
		return
	}
	if wait := h.requests.Take(info.Client, requestPace); wait > 0 {
		tooMany(w, wait)
		return
	}
	out := infoAnswer{
		ResourceOwnerID: info.User.ID, UserID: info.User.ID, UserName: info.User.Name, Email: info.User.CustomerAddress, Organizations: []infoOrg{},
		Scope: []string{info.Scope}, ExpiresIn: int64(info.ExpiresAt.Sub(h.Now()).Seconds()), Application: infoClient{info.Client}, CreatedAt: info.CreatedAt.Unix(),
	}
	for _, m := range info.User.Memberships {
		out.Organizations = append(out.Organizations, infoOrg{m.OrgID, m.Role})
	}
	answer(w, http.StatusOK, out)
}

// revoke ends a grant (RFC 7009).
func (h *Handler) revoke(w http.ResponseWriter, r *http.Request) {
	client, f, ok := h.fromClient(w, r)
	if !ok {
		return
	}
	if f["token"] == "" {
		h.answerError(w, r, invalidRequest("token is missing"))
		return
	}
	if err := h.OAuth.RevokeGrant(r.Context(), client, hangar.NewSensitive(f["token"])); err != nil {
		h.answerError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// metadataAnswer is the metadata of the server (RFC 8414, section 2).
type metadataAnswer struct {
	Issuer        string   `json:"issuer"`
	Authorization string   `json:"authorization_endpoint"`
	Token         string   `json:"token_endpoint"`
	Revocation    string   `json:"revocation_endpoint"`
	Scopes        []string `json:"scopes_supported"`
	ResponseTypes []string `json:"response_types_supported"`
	ResponseModes []string `json:"response_modes_supported"`
	GrantTypes    []string `json:"grant_types_supported"`
	AuthMethods   []string `json:"token_endpoint_auth_methods_supported"`
	Challenges    []string `json:"code_challenge_methods_supported"`
	Iss           bool     `json:"authorization_response_iss_parameter_supported"` // RFC 9207, section 3
}

func (h *Handler) metadata(w http.ResponseWriter, r *http.Request) {
	issuer := h.issuer(r)
	answer(w, http.StatusOK, metadataAnswer{
		Issuer: issuer, Authorization: issuer + authorizePath, Token: issuer + tokenPath, Revocation: issuer + revokePath,
		Scopes: []string{hangar.OAuthScopeRead}, ResponseTypes: []string{"code"}, ResponseModes: []string{"query"},
		GrantTypes: []string{"authorization_code", "refresh_token"}, AuthMethods: []string{"client_secret_basic", "client_secret_post"},
		Challenges: []string{"S256"}, Iss: true,
	})
}

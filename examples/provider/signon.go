package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
)

const (
	sessionCookie = "session"
	sessionFor    = time.Hour
	signInFor     = 10 * time.Minute
	maxSessions   = 10_000
)

// session is the session of a browser that is signed in, or is signing in.
type session struct {
	until time.Time
	// While signing in: the state that the platform must send back, the PKCE verifier, and
	// the extension to show afterwards.
	state, verifier, extension string
	// Once signed in.
	userName string
	roles    map[string]string // by organization
	form     string            // the secret in the forms of its pages
}

// sessions are kept in memory. After a restart users sign in again, by a redirect.
type sessions struct {
	now func() time.Time
	mu  sync.Mutex
	all map[string]session
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, all: map[string]session{}}
}

// begin stores a session and sets its id as a cookie.
func (v *sessions) begin(w http.ResponseWriter, s session, secure bool) {
	id := rand.Text()
	v.mu.Lock()
	defer v.mu.Unlock()
	for other, old := range v.all {
		if len(v.all) >= maxSessions || v.now().After(old.until) {
			delete(v.all, other)
		}
	}
	v.all[id] = s
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // Secure wherever it is served by https
		Name: sessionCookie, Value: id, Path: "/", HttpOnly: true, Secure: secure, SameSite: http.SameSiteLaxMode, Expires: s.until,
	})
}

// of returns the session of a request.
func (v *sessions) of(r *http.Request) (session, bool) {
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return session{}, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	s, ok := v.all[cookie.Value]
	return s, ok && v.now().Before(s.until)
}

func (v *server) secure() bool { return strings.HasPrefix(v.baseURL, "https:") }

func (v *server) oauth() *oauth2.Config {
	return &oauth2.Config{
		ClientID: v.clientID, ClientSecret: v.clientSecret, RedirectURL: v.baseURL + "/callback", Scopes: []string{"read"},
		Endpoint: oauth2.Endpoint{AuthURL: v.authURL + "/oauth/authorize", TokenURL: v.authURL + "/oauth/token", AuthStyle: oauth2.AuthStyleInParams},
	}
}

// signOn redirects a browser to its extension, or to the platform if it is not signed in. The link is
// signed, but does not identify the visitor.
func (v *server) signOn(w http.ResponseWriter, r *http.Request) {
	e, _, err := v.store.get(r.PathValue("id"))
	if err != nil {
		v.failed(w, r, err)
		return
	}
	if s, ok := v.sessions.of(r); ok && s.roles[e.OrganizationID] != "" {
		http.Redirect(w, r, v.baseURL+"/dashboard/"+e.ID, http.StatusFound)
		return
	}
	s := session{until: v.sessions.now().Add(signInFor), state: rand.Text(), verifier: oauth2.GenerateVerifier(), extension: e.ID}
	v.sessions.begin(w, s, v.secure())
	http.Redirect(w, r, v.oauth().AuthCodeURL(s.state, oauth2.S256ChallengeOption(s.verifier), oauth2.SetAuthURLParam("organization_id", e.OrganizationID)), http.StatusFound)
}

// tokenInfo is the platform's answer about the signed-in user.
type tokenInfo struct {
	UserID        string `json:"user_id"`
	UserName      string `json:"user_name"`
	Email         string `json:"email"`
	Organizations []struct {
		ID   string `json:"id"`
		Role string `json:"role"`
	} `json:"organizations"`
}

// callback handles the redirect from the platform back to the provider.
func (v *server) callback(w http.ResponseWriter, r *http.Request) {
	s, ok := v.sessions.of(r)
	if !ok || s.state == "" || r.FormValue("state") != s.state {
		http.Error(w, "This sign-in was not started here, or took too long. Open the extension again.", http.StatusBadRequest)
		return
	}
	if problem := r.FormValue("error"); problem != "" {
		http.Error(w, "The platform did not let you sign in.", http.StatusForbidden)
		return
	}
	info, err := v.whoIs(r.Context(), r.FormValue("code"), s.verifier)
	if err != nil {
		v.log.Error("sign-in failed", "error", err)
		http.Error(w, "The platform did not answer who you are.", http.StatusBadGateway)
		return
	}
	signedIn := session{until: v.sessions.now().Add(sessionFor), userName: info.UserName, roles: map[string]string{}, form: rand.Text()}
	for _, o := range info.Organizations {
		signedIn.roles[o.ID] = o.Role
	}
	v.sessions.begin(w, signedIn, v.secure()) // with a new id
	http.Redirect(w, r, v.baseURL+"/dashboard/"+s.extension, http.StatusFound)
}

// whoIs exchanges a code for a token, and asks the platform for its user.
func (v *server) whoIs(ctx context.Context, code, verifier string) (info tokenInfo, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	token, err := v.oauth().Exchange(ctx, code, oauth2.VerifierOption(verifier))
	if err != nil {
		return info, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, v.authURL+"/oauth/token/info", nil)
	if err != nil {
		return info, err
	}
	token.SetAuthHeader(r)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return info, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return info, fmt.Errorf("token info: status %d", res.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&info); err != nil {
		return info, err
	}
	if info.UserID == "" {
		return info, errors.New("token info has no user_id")
	}
	return info, nil
}

package api

import (
	"net/http"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/signon"
	"github.com/hangar-platform/hangar/internal/ratelimit"
)

// passwordPace is how often passwords of one account may be tried.
var passwordPace = ratelimit.Pace{PerSecond: 1.0 / 30, Burst: 10}

// attempts bounds how often passwords are tried, for each client and for each account, existing or not.
// A client from which an account was signed in to has its own bound for this account, so that guesses
// from elsewhere do not lock the user out.
type attempts struct {
	clients  *ratelimit.Limiter[string]
	accounts *ratelimit.Limiter[attempt]
	known    *ratelimit.Limiter[attempt] // remembers from which clients accounts were signed in to
}

// attempt is the key of a bound for an account: for a client that it knows, or for all others together.
type attempt struct {
	account string
	client  string // empty: all clients that are not known
}

// owner is the client of attempts that come with the user's token.
const owner = "owner"

// knownFor is how long a sign-in to an account from a client is remembered.
const knownFor = 30 * 24 * time.Hour

func newAttempts(now func() time.Time) *attempts {
	return &attempts{
		clients:  ratelimit.New[string](router.MaxLimiters, router.SignInPace.Refill(), now),
		accounts: ratelimit.New[attempt](router.MaxLimiters, passwordPace.Refill(), now),
		known:    ratelimit.New[attempt](router.MaxLimiters, knownFor, now),
	}
}

// from counts an attempt of a client. Like of and at, it returns how long to wait.
func (a *attempts) from(client string) time.Duration {
	return a.clients.Take(client, router.SignInPace)
}

// of counts an attempt at an account by its owner, who has sent a token.
func (a *attempts) of(user hangar.UserID) time.Duration {
	return a.accounts.Take(attempt{string(user), owner}, passwordPace)
}

// at counts an attempt of a client at an account.
func (a *attempts) at(account, client string) time.Duration {
	key := attempt{account, client}
	if !a.known.Has(key) {
		key.client = ""
	}
	return a.accounts.Take(key, passwordPace)
}

// succeeded remembers from which client an account was signed in to.
func (a *attempts) succeeded(account, client string) {
	a.known.Take(attempt{account, client}, passwordPace)
}

// tooMany is the answer to a client that has to wait.
func tooMany(wait time.Duration) (router.Answer, error) {
	header := http.Header{"Retry-After": {router.RetryAfter(wait)}}
	return router.Answer{Header: header}, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonRateLimited, "too many attempts with passwords: wait before the next")
}

// Try implements signon.Attempts.
func (a *attempts) Try(email, client string) time.Duration {
	if wait := a.from(client); wait > 0 {
		return wait
	}
	return a.at(account(email), client)
}

// Succeeded implements signon.Attempts.
func (a *attempts) Succeeded(email, client string) { a.succeeded(account(email), client) }

// account returns the account for which attempts at an e-mail address count.
func account(email string) string { return strings.ToLower(input.Clip(email)) }

// signOnRoutes mounts single sign-on for browsers and third parties. Its passwords count as those here.
func (s *server) signOnRoutes() {
	if s.OAuth == nil || s.Sessions == nil {
		return
	}
	handler := signon.New(signon.Config{OAuth: s.OAuth, Sessions: s.Sessions, Attempts: s.attempts, Issuer: s.OAuthIssuer, OpenID: s.OpenID, Log: s.Log})
	for _, path := range signon.Paths() {
		s.Mount(path, handler)
	}
}

func (s *server) signInRoutes() {
	token := hangar.Token{
		ID: "4k7fbw2hxq3s", Name: "sign-in", Kind: hangar.TokenLogin, User: exampleEmail, UserID: exampleUserID, CreatedBy: exampleEmail, CreatedAt: exampleTime,
		Grant: hangar.Grant{Actions: hangar.ActionAll, Until: exampleTime.Add(hangar.SignInLifetime)},
	}
	s.Public("POST /v1/sign-in", s.signInUser, router.Operation{
		ID: "signIn", Tag: "Users", Summary: "Sign in",
		Text: "Only this answer holds the token. It allows what the user may do, in all organizations, and ends after " +
			"30 days. An unknown address gets the same answer as a wrong password. Attempts are bounded for each client and for each address.",
		Body:   signInRequest{exampleEmail, "correct horse battery staple"},
		Status: http.StatusCreated, Answer: newTokenView{"hgr_4k7fbw2hxq3s_V7m0cWq4H1uR9sX2yB6nK8tE3aZ5dF7gJ0lP4oC1iM", token},
		Errors: []int{http.StatusUnauthorized, http.StatusTooManyRequests},
	})
	user := exampleUser()
	user.LastSignIn = time.Time{}
	s.Public("POST /v1/sign-in/code", s.useCode, router.Operation{
		ID: "useCode", Tag: "Users", Summary: "Set a password with a code",
		Text: "The code comes from an invitation, whose user is created, or from a password reset. Each code works once. An existing user accepts an invitation with `acceptInvitation`.",
		Body: codeRequest{Code: exampleCode, Name: "Ann", Password: "correct horse battery staple"}, Answer: user,
		Errors: []int{http.StatusTooManyRequests, http.StatusPreconditionFailed, http.StatusNotFound},
	})
	s.Handle("DELETE /v1/sign-in", s.signOut, router.Operation{
		ID: "signOut", Tag: "Users", Summary: "Sign out", Text: "Ends the token of the request, which must come from signing in. `revokeToken` ends others.",
		Status: http.StatusNoContent,
	})
}

type signInRequest struct {
	Email    string `json:"email" schema:"required"`
	Password string `json:"password" schema:"required"`
}

type codeRequest struct {
	Code     string `json:"code" schema:"required"`
	Name     string `json:"name,omitempty"`
	Password string `json:"password" schema:"required"`
}

func (s *server) signInUser(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[signInRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	client := router.Source(r).String()
	if wait := s.attempts.Try(in.Email, client); wait > 0 {
		return tooMany(wait)
	}
	made, err := s.SignIns.SignIn(r.Context(), hangar.SignIn{Email: in.Email, Password: hangar.NewSensitive(in.Password), Source: client})
	if err != nil {
		return router.Answer{}, err
	}
	s.attempts.Succeeded(in.Email, client)
	return router.Answer{Status: http.StatusCreated, Body: newTokenView{made.Text, made.Token}, Header: router.SecretHeader()}, nil
}

func (s *server) useCode(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[codeRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if wait := s.attempts.from(router.Source(r).String()); wait > 0 {
		return tooMany(wait)
	}
	return router.AnswerOf(s.SignIns.UseCode(r.Context(), hangar.CodeUse{Code: hangar.NewSensitive(in.Code), Name: in.Name, Password: hangar.NewSensitive(in.Password)}))
}

func (s *server) signOut(r *http.Request) (router.Answer, error) {
	return router.NoContent(s.Users.SignOut(r.Context()))
}

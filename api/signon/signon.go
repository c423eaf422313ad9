// Package signon is where users sign in with a browser, and where third parties learn who they are: the
// pages, and the HTTP of an OAuth 2.0 authorization server (RFC 6749, 6750, 7009, 7636, 8414 and 9207).
//
// Promises. The pages are plain HTML that works without a script; they load nothing, are kept out of frames and
// caches, and send no referrer to other servers. Every change is a POST from this origin, with a token that is
// bound to the session of the browser. A session begins with a new id at sign-in. A browser is redirected only to
// a path of this server or to a redirect URI that is registered with the client: until the client and its
// redirect URI are known to be right, errors are a page. A parameter that is duplicated, too long or in the wrong
// place is refused.
//
// Concurrency. A Handler is safe for concurrent use. It keeps nothing but rate limits, in bounded memory.
//
// Decisions about users and grants are those of hangar.OAuthService and hangar.SessionService.
package signon

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/internal/ratelimit"
)

// The paths that are served.
const (
	signInPath     = "/sign-in"
	signOutPath    = "/sign-out"
	openIDPath     = "/sign-in/openid"
	openIDBackPath = "/sign-in/openid/callback"
	oauthPath      = "/oauth/"
	authorizePath  = "/oauth/authorize"
	tokenPath      = "/oauth/token" //nolint:gosec // a path
	infoPath       = "/oauth/token/info"
	revokePath     = "/oauth/revoke"
	metadataPath   = "/.well-known/oauth-authorization-server" // RFC 8414, section 3
)

// Paths are the paths that a Handler serves, as patterns of http.ServeMux.
func Paths() []string {
	return []string{signInPath, signInPath + "/", signOutPath, oauthPath, metadataPath}
}

// Attempts bounds how often passwords are tried.
type Attempts interface {
	// Try counts an attempt of a client at the account of an e-mail address, and returns how long to wait if there
	// were too many.
	Try(email, client string) time.Duration
	// Succeeded remembers from which client an account was signed in to.
	Succeeded(email, client string)
}

// Config is what a Handler needs.
type Config struct {
	OAuth    hangar.OAuthService
	Sessions hangar.SessionService
	Attempts Attempts
	OpenID   OpenID // a provider at which users may sign in instead; nil: none
	// Issuer is how the server identifies itself to clients, such as "https://auth.example.com". Its
	// endpoints are below it. Empty: the address by which the client calls the server.
	Issuer string
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Handler serves the pages and endpoints.
type Handler struct {
	Config
	mux      *http.ServeMux
	failures *ratelimit.Limiter[string]               // of clients that do not authenticate, by source
	requests *ratelimit.Limiter[hangar.OAuthClientID] // of clients that do
	codes    *ratelimit.Limiter[hangar.UserID]        // codes that users receive
	returns  *ratelimit.Limiter[string]               // of browsers from the OpenID Connect provider, by source
}

var (
	// requestPace is how often a client may send requests. It sends some for each of its users.
	requestPace = ratelimit.Pace{PerSecond: 50, Burst: 500}
	// codePace is how often a user may be sent back to clients with a code.
	codePace = ratelimit.Pace{PerSecond: 1, Burst: 30}
	// returnPace is how often browsers behind one address may return from the OpenID Connect provider,
	// which each of them makes this server call.
	returnPace = ratelimit.Pace{PerSecond: 1, Burst: 60}
)

// New returns a Handler. It does no I/O.
func New(cfg Config) *Handler {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	h := &Handler{
		Config: cfg, mux: http.NewServeMux(),
		failures: ratelimit.New[string](router.MaxLimiters, router.SignInPace.Refill(), cfg.Now),
		requests: ratelimit.New[hangar.OAuthClientID](router.MaxLimiters, requestPace.Refill(), cfg.Now),
		codes:    ratelimit.New[hangar.UserID](router.MaxLimiters, codePace.Refill(), cfg.Now),
		returns:  ratelimit.New[string](router.MaxLimiters, returnPace.Refill(), cfg.Now),
	}
	h.mux.HandleFunc("GET "+signInPath, h.signInPage)
	h.mux.HandleFunc("POST "+signInPath, h.signIn)
	h.mux.HandleFunc("POST "+signOutPath, h.signOut)
	if h.OpenID != nil {
		h.mux.HandleFunc("GET "+openIDPath, h.goToOpenID)
		h.mux.HandleFunc("GET "+openIDBackPath, h.backFromOpenID)
	}
	h.mux.HandleFunc("GET "+authorizePath, h.authorize)
	h.mux.HandleFunc("POST "+authorizePath, h.decide)
	h.mux.HandleFunc("POST "+tokenPath, h.token)
	h.mux.HandleFunc("GET "+infoPath, h.tokenInfo)
	h.mux.HandleFunc("POST "+revokePath, h.revoke)
	h.mux.HandleFunc("GET "+metadataPath, h.metadata)
	return h
}

// maxForm bounds the body of a request, in bytes.
const maxForm = 32 << 10

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Pragma", "no-cache") // RFC 6749, section 5.1
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Content-Security-Policy", policy(""))
	h.mux.ServeHTTP(w, r)
}

// issuer is how the server identifies itself.
func (h *Handler) issuer(r *http.Request) string {
	if h.Issuer != "" {
		return h.Issuer
	}
	return router.Origin(r)
}

// source is the client for which a request counts.
func source(r *http.Request) string { return router.Source(r).String() }

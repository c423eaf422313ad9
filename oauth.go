package hangar

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/url"
	"slices"
	"time"
)

// OAuthClientID identifies a client of single sign-on permanently. It is no secret.
type OAuthClientID string

// OAuthClientCLI is the client behind `hangar login`. Only this client gets a token for everything that
// the user may do, of kind TokenLogin.
const OAuthClientCLI OAuthClientID = "hangar-cli"

// The scopes of single sign-on (RFC 6749, section 3.3).
const (
	OAuthScopeRead   = "read"    // to see one organization, and who the user is; of every client but OAuthClientCLI
	OAuthScopeSignIn = "sign-in" // of OAuthClientCLI alone
)

// The limits of single sign-on.
const (
	OAuthCodeLifetime    = time.Minute
	OAuthAccessLifetime  = 2 * time.Hour
	OAuthRefreshLifetime = 30 * 24 * time.Hour // since the last use
	SessionLifetime      = 24 * time.Hour      // of a browser

	MaxSessions       = 20  // of one user; beyond each of these limits, the oldest one ends
	MaxOAuthCodes     = 10  // of one user, not exchanged yet
	MaxOAuthConsents  = 200 // of one user, that are remembered
	MaxOAuthGrants    = 100 // of one user
	MaxClientGrants   = 10  // of one user, to one client
	MaxOAuthParameter = 2048
)

// Reasons of errors of single sign-on: the values of `error` in RFC 6749, sections 4.1.2.1 and 5.2.
const (
	ReasonInvalidRequest     = "invalid_request"
	ReasonInvalidClient      = "invalid_client"
	ReasonInvalidGrant       = "invalid_grant"
	ReasonUnauthorizedClient = "unauthorized_client"
	ReasonInvalidScope       = "invalid_scope"
	ReasonAccessDenied       = "access_denied"
)

// OAuthClient is a third party to which users sign in.
type OAuthClient struct {
	ID          OAuthClientID
	Name        string
	DisplayName string // for people; empty: Name
	// Public says that the client is a program on the user's computer and has no secret. It proves by
	// PKCE (RFC 7636) that it made the request.
	Public bool
	// Secrets are the SHA-256 digests of its valid secrets: two during a rotation.
	Secrets [][]byte
	// RedirectURIs are compared byte by byte. A Public client's URI on a loopback address matches with
	// any port (RFC 8252, section 7.3).
	RedirectURIs []string
}

// Title is the name that people see.
func (c *OAuthClient) Title() string {
	if c.DisplayName != "" {
		return c.DisplayName
	}
	return c.Name
}

// HasSecret reports whether a secret is one of the client's, in constant time.
func (c *OAuthClient) HasSecret(secret string) bool {
	digest := sha256.Sum256([]byte(secret))
	found := 0
	for _, own := range c.Secrets {
		found |= subtle.ConstantTimeCompare(own, digest[:])
	}
	return found == 1 && !c.Public
}

// RedirectsTo reports whether users may be sent back to a URI.
func (c *OAuthClient) RedirectsTo(uri string) bool {
	if slices.Contains(c.RedirectURIs, uri) {
		return true
	}
	return c.Public && slices.ContainsFunc(c.RedirectURIs, func(own string) bool { return sameButPort(own, uri) })
}

// sameButPort reports whether two URIs are on the same loopback address and differ in their port alone.
func sameButPort(own, other string) bool {
	a, err := url.Parse(own)
	if err != nil {
		return false
	}
	b, err := url.Parse(other)
	if err != nil || b.Scheme != "http" || b.Port() == "" || b.Hostname() != "127.0.0.1" && b.Hostname() != "::1" {
		return false
	}
	a.Host, b.Host = a.Hostname(), b.Hostname()
	return a.String() == b.String()
}

// OAuthClients finds the clients of single sign-on.
type OAuthClients interface {
	// OAuthClient answers CodeNotFound. It needs no principal. It answers from memory, because every
	// request calls it.
	OAuthClient(ctx context.Context, id OAuthClientID) (*OAuthClient, error)
}

// OAuthChoice is what a user who has signed in can grant to a client.
type OAuthChoice struct {
	User *User
	// Consented are the organizations for which the user has consented before.
	Consented []OrgID
}

// OAuthAuthorization is a user's permission for a client to act.
type OAuthAuthorization struct {
	Client      *OAuthClient
	RedirectURI string
	Org         OrgID  // that the client may see; empty for OAuthClientCLI
	Challenge   string // of PKCE, by S256; empty: none, which is refused for a Public client
	Remember    bool   // the user's consent
}

// OAuthExchange is a client's request for tokens in exchange for a code. The client has been
// authenticated.
type OAuthExchange struct {
	Client      *OAuthClient
	Code        Sensitive
	RedirectURI string
	Verifier    Sensitive // of PKCE
}

// OAuthTokens is the answer to an OAuthExchange, or to a refresh.
type OAuthTokens struct {
	Access    Sensitive
	Refresh   Sensitive // empty: none
	Scope     string
	CreatedAt time.Time
	ExpiresAt time.Time // of Access
}

// OAuthTokenInfo says who an access token stands for.
type OAuthTokenInfo struct {
	User      *User // with no more than what the client may know
	Client    OAuthClientID
	Scope     string
	CreatedAt time.Time
	ExpiresAt time.Time
}

// OAuthService is an authorization server (RFC 6749) for third parties. A grant to a client ends with
// the user's membership in the organization. It also ends when all that the user has signed in to ends,
// for instance because the password changes.
type OAuthService interface {
	OAuthClients
	// Choice is for the user who has signed in. It answers CodeForbidden for a principal that is not a
	// user's.
	Choice(ctx context.Context, client OAuthClientID) (*OAuthChoice, error)
	// Authorize returns a code for the user who has signed in. The code is valid for one exchange,
	// within OAuthCodeLifetime. Authorize answers CodeForbidden with ReasonAccessDenied for an
	// organization of which the user is not a member.
	Authorize(ctx context.Context, in OAuthAuthorization) (code Sensitive, err error)
	// ExchangeCode answers CodeInvalid with ReasonInvalidGrant, even when something other than the
	// client has ended the grant. Using a code again ends the grant that it was exchanged for.
	ExchangeCode(ctx context.Context, in OAuthExchange) (*OAuthTokens, error)
	// RefreshTokens replaces both tokens of a grant. It answers as ExchangeCode does. Using a refresh
	// token again ends the grant.
	RefreshTokens(ctx context.Context, client *OAuthClient, refresh Sensitive) (*OAuthTokens, error)
	// TokenInfo answers CodeUnauthenticated for anything but an access token of a third party.
	TokenInfo(ctx context.Context, access Sensitive) (*OAuthTokenInfo, error)
	// RevokeGrant ends the grant of an access token or a refresh token. An unknown token is not an
	// error. It answers CodeInvalid with ReasonUnauthorizedClient for a grant to another client.
	RevokeGrant(ctx context.Context, client *OAuthClient, token Sensitive) error
}

// Identity is a person as an OpenID Connect provider knows them (OpenID Connect Core 1.0, sections 2 and 5.1).
type Identity struct {
	Issuer, Subject string // identify the person permanently
	Email           string
	EmailVerified   bool
	Name            string // may be empty
}

// SessionService keeps the sessions of browsers. A session is a token of kind TokenSession, which is
// accepted only here.
type SessionService interface {
	// OpenSession signs in as SignInService.SignIn does.
	OpenSession(ctx context.Context, in SignIn) (*NewToken, error)
	// OpenSessionAs signs in a person whom the operator's OpenID Connect provider has identified. At
	// first that is the user of the verified e-mail address, or a new user if there are invitations to
	// the address. From then on it is the same user, even if the address changes. It answers
	// CodeForbidden when there is neither, and CodeFailedPrecondition when that user has another
	// identity.
	OpenSessionAs(ctx context.Context, who Identity) (*NewToken, error)
	// Session returns who has signed in, or CodeUnauthenticated. It answers from memory.
	Session(ctx context.Context, session Sensitive) (Principal, error)
	// CloseSession ends a session. It is no error if there is none.
	CloseSession(ctx context.Context, session Sensitive) error
}

// Package openid asks the operator's OpenID Connect provider who a user is, by the authorization code flow of
// OpenID Connect Core 1.0 with PKCE (RFC 7636).
//
// Promises. A Provider believes an ID token only if the provider has signed it, for this client, in
// answer to this sign-in. It follows no redirect, reads no more than maxAnswer bytes of an answer, and
// waits no longer than timeout. If the provider cannot be reached, only that sign-in fails, and the
// next one asks again.
//
// Concurrency. A Provider is safe for concurrent use.
package openid

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/hangar-platform/hangar"
)

const (
	maxAnswer = 1 << 20 // bytes
	timeout   = 10 * time.Second
)

// Config names the provider, and this platform as its client.
type Config struct {
	Issuer       string // see CheckIssuer
	ClientID     string
	ClientSecret hangar.Sensitive // zero: none, for a public client
}

// CheckIssuer checks that issuer is an https URL without query and fragment (OpenID Connect Discovery
// 1.0, section 2). It allows http for the loopback.
func CheckIssuer(issuer string) error {
	u, err := url.Parse(issuer)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%q is not like https://login.example.com", issuer)
	case u.Scheme == "https", u.Scheme == "http" && (u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1" || u.Hostname() == "::1"):
		return nil
	default:
		return fmt.Errorf("%q must be an https URL", issuer)
	}
}

// Provider is an OpenID Connect provider.
type Provider struct {
	config Config
	client *http.Client

	mu    sync.Mutex
	known *oidc.Provider // nil: not discovered yet
}

// New returns a Provider. It does no I/O.
func New(config Config) *Provider {
	return &Provider{config: config, client: &http.Client{
		Timeout:       timeout,
		Transport:     bounded{&http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 4, IdleConnTimeout: time.Minute}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (p *Provider) Close() { p.client.CloseIdleConnections() }

// Title is the name that users see: the issuer's host.
func (p *Provider) Title() string {
	u, err := url.Parse(p.config.Issuer)
	if err != nil {
		return p.config.Issuer
	}
	return u.Hostname()
}

// SignIn is one sign-in, from the redirect to the provider until the browser is back.
type SignIn struct {
	State    string // binds the answer to the browser
	Nonce    string // binds the ID token to the sign-in
	Verifier string // of PKCE: 43 to 128 characters
	Redirect string // where the provider sends the browser
}

// URL is where a browser signs in. It answers hangar.CodeUnavailable when the provider cannot be reached.
func (p *Provider) URL(ctx context.Context, in SignIn) (string, error) {
	known, err := p.discover(ctx)
	if err != nil {
		return "", err
	}
	return p.oauth(known, in).AuthCodeURL(in.State, oidc.Nonce(in.Nonce), oauth2.S256ChallengeOption(in.Verifier)), nil
}

// Identify exchanges the code with which a browser has returned. It answers hangar.CodeUnauthenticated
// for a code that the provider refuses and for an invalid ID token, and hangar.CodeUnavailable when the
// provider, or its keys, cannot be reached, or it answers that it has failed or has too much to do.
func (p *Provider) Identify(ctx context.Context, in SignIn, code string) (hangar.Identity, error) {
	known, err := p.discover(ctx)
	if err != nil {
		return hangar.Identity{}, err
	}
	ctx = oidc.ClientContext(ctx, p.client)
	tokens, err := p.oauth(known, in).Exchange(ctx, code, oauth2.VerifierOption(in.Verifier))
	if refused := (*oauth2.RetrieveError)(nil); errors.As(err, &refused) && !outage(refused.Response.StatusCode) {
		return hangar.Identity{}, unauthenticated("refuses the code", err)
	}
	if err != nil {
		return hangar.Identity{}, unavailable(err)
	}
	raw, ok := tokens.Extra("id_token").(string)
	if !ok {
		return hangar.Identity{}, unauthenticated("sends no ID token", nil)
	}
	token, err := known.VerifierContext(ctx, &oidc.Config{ClientID: p.config.ClientID}).Verify(ctx, raw)
	if err != nil && strings.HasPrefix(err.Error(), noKeys) {
		return hangar.Identity{}, unavailable(err)
	}
	if err != nil {
		return hangar.Identity{}, unauthenticated("sends an ID token that is not good", err)
	}
	if token.Nonce != in.Nonce {
		return hangar.Identity{}, unauthenticated("sends the ID token of another sign-in", nil)
	}
	var c claims
	if err := token.Claims(&c); err != nil {
		return hangar.Identity{}, unauthenticated("sends claims that are not good", err)
	}
	// Claims of a scope may be only at the UserInfo endpoint (OpenID Connect Core 1.0, section 5.4).
	if c.Email == "" {
		info, err := known.UserInfo(ctx, oauth2.StaticTokenSource(tokens))
		if err != nil {
			return hangar.Identity{}, unavailable(err)
		}
		if info.Subject != token.Subject { // section 5.3.2
			return hangar.Identity{}, unauthenticated("answers for another user", nil)
		}
		if err := info.Claims(&c); err != nil {
			return hangar.Identity{}, unauthenticated("sends claims that are not good", err)
		}
	}
	return hangar.Identity{Issuer: token.Issuer, Subject: token.Subject, Email: c.Email, EmailVerified: bool(c.EmailVerified), Name: c.Name}, nil
}

// noKeys begins the error of a verification whose keys could not be fetched; the library wraps none.
const noKeys = "failed to verify signature: fetching keys"

// outage reports whether a status says nothing about the request.
func outage(status int) bool {
	return status >= http.StatusInternalServerError || status == http.StatusTooManyRequests
}

// claims has the used claims of the scopes email and profile (OpenID Connect Core 1.0, section 5.1).
type claims struct {
	Email         string  `json:"email"`
	EmailVerified boolean `json:"email_verified"`
	Name          string  `json:"name"`
}

// boolean is a boolean, which some providers send as a string.
type boolean bool

// UnmarshalJSON takes true and "true"; all else is false.
func (b *boolean) UnmarshalJSON(raw []byte) error {
	*b = string(raw) == "true" || string(raw) == `"true"`
	return nil
}

func (p *Provider) oauth(known *oidc.Provider, in SignIn) *oauth2.Config {
	return &oauth2.Config{
		ClientID: p.config.ClientID, ClientSecret: p.config.ClientSecret.Reveal(), RedirectURL: in.Redirect,
		Endpoint: known.Endpoint(), Scopes: []string{oidc.ScopeOpenID, "email", "profile"},
	}
}

// discover returns the metadata of the provider. It reads them until it has once succeeded.
func (p *Provider) discover(ctx context.Context) (*oidc.Provider, error) {
	p.mu.Lock()
	known := p.known
	p.mu.Unlock()
	if known != nil {
		return known, nil
	}
	known, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.config.Issuer)
	if err != nil {
		return nil, unavailable(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = known
	return known, nil
}

func unavailable(err error) error {
	return &hangar.Error{Code: hangar.CodeUnavailable, Message: "The provider of sign-ins cannot be asked", Err: err}
}

func unauthenticated(what string, err error) error {
	return &hangar.Error{Code: hangar.CodeUnauthenticated, Message: "The provider of sign-ins " + what, Err: err}
}

// bounded limits the bodies of answers to maxAnswer.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.next.RoundTrip(r)
	if err == nil {
		res.Body = http.MaxBytesReader(nil, res.Body, maxAnswer)
	}
	return res, err
}

// CloseIdleConnections closes those of the transport below.
func (b bounded) CloseIdleConnections() {
	if c, ok := b.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

package openid_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/signon/openid"
)

var signIn = openid.SignIn{
	State: "the state", Nonce: "the nonce", Verifier: strings.Repeat("v", 43), Redirect: "https://auth.example.com/sign-in/openid/callback",
}

// answers are what a provider answers to one sign-in.
type answers struct {
	discovery map[string]any // nil: the right one
	claims    map[string]any // of the ID token, beside the right ones
	info      map[string]any // of the UserInfo endpoint
	key       *rsa.PrivateKey
	token     http.HandlerFunc // nil: one with an ID token
	unsigned  bool
}

func newKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func reply(t *testing.T, w http.ResponseWriter, v any) {
	t.Helper()
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		t.Error(err)
	}
}

// serve is a provider whose published key is key.
func serve(t *testing.T, key *rsa.PrivateKey, a answers) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		d := map[string]any{
			"issuer": server.URL, "authorization_endpoint": server.URL + "/authorize", "token_endpoint": server.URL + "/token",
			"userinfo_endpoint": server.URL + "/info", "jwks_uri": server.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256"},
		}
		maps.Copy(d, a.discovery)
		reply(t, w, d)
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		reply(t, w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "RS256", Use: "sig"}}})
	})
	mux.HandleFunc("GET /info", func(w http.ResponseWriter, _ *http.Request) { reply(t, w, a.info) })
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		if a.token != nil {
			a.token(w, r)
			return
		}
		if id, secret, ok := r.BasicAuth(); !ok || id != "hangar" || secret != "a-secret" || r.FormValue("code") != "the code" ||
			r.FormValue("code_verifier") != signIn.Verifier || r.FormValue("redirect_uri") != signIn.Redirect {
			t.Errorf("exchange by %q with %v", id, r.Form)
		}
		claims := map[string]any{
			"iss": server.URL, "aud": "hangar", "sub": "7", "nonce": signIn.Nonce, "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		}
		maps.Copy(claims, a.claims)
		reply(t, w, map[string]any{"access_token": "x", "token_type": "Bearer", "id_token": idToken(t, claims, a)})
	})
	if a.key == nil {
		a.key = key
	}
	return server
}

func idToken(t *testing.T, claims map[string]any, a answers) string {
	t.Helper()
	raw, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	if a.unsigned {
		encode := base64.RawURLEncoding.EncodeToString
		return encode([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + encode(raw) + "."
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: a.key}, (&jose.SignerOptions{}).WithHeader("kid", "1"))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(raw)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func newProvider(t *testing.T, issuer string) *openid.Provider {
	t.Helper()
	p := openid.New(openid.Config{Issuer: issuer, ClientID: "hangar", ClientSecret: hangar.NewSensitive("a-secret")})
	t.Cleanup(p.Close)
	return p
}

func failing(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not now", status) }
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	whole := map[string]any{"email": "ann@example.com", "email_verified": true, "name": "Ann"}
	for name, test := range map[string]struct {
		answers
		want hangar.Identity // without the issuer
		code hangar.Code
	}{
		"claims in the ID token": {answers{claims: whole}, hangar.Identity{Email: "ann@example.com", EmailVerified: true, Name: "Ann"}, ""},
		"claims at the UserInfo endpoint": {
			answers{info: map[string]any{"sub": "7", "email": "bob@example.com", "email_verified": "true"}}, hangar.Identity{Email: "bob@example.com", EmailVerified: true}, "",
		},
		"an address that is not verified": {answers{claims: map[string]any{"email": "ann@example.com"}}, hangar.Identity{Email: "ann@example.com"}, ""},
		"verified by something odd":       {answers{claims: map[string]any{"email": "ann@example.com", "email_verified": 1}}, hangar.Identity{Email: "ann@example.com"}, ""},

		"UserInfo of another":         {answers: answers{info: map[string]any{"sub": "8", "email": "bob@example.com"}}, code: hangar.CodeUnauthenticated},
		"another nonce":               {answers: answers{claims: map[string]any{"nonce": "x"}}, code: hangar.CodeUnauthenticated},
		"no nonce":                    {answers: answers{claims: map[string]any{"nonce": nil}}, code: hangar.CodeUnauthenticated},
		"another audience":            {answers: answers{claims: map[string]any{"aud": "x"}}, code: hangar.CodeUnauthenticated},
		"another issuer":              {answers: answers{claims: map[string]any{"iss": "https://evil.example"}}, code: hangar.CodeUnauthenticated},
		"expired":                     {answers: answers{claims: map[string]any{"exp": 1}}, code: hangar.CodeUnauthenticated},
		"another key":                 {answers: answers{claims: whole, key: newKey(t)}, code: hangar.CodeUnauthenticated},
		"no signature":                {answers: answers{claims: whole, unsigned: true}, code: hangar.CodeUnauthenticated},
		"claims of wrong types":       {answers: answers{claims: map[string]any{"email": 7}}, code: hangar.CodeUnauthenticated},
		"discovery of another issuer": {answers: answers{discovery: map[string]any{"issuer": "https://evil.example"}}, code: hangar.CodeUnavailable},
		"keys that cannot be reached": {answers: answers{discovery: map[string]any{"jwks_uri": "http://127.0.0.1:1/"}}, code: hangar.CodeUnavailable},
		"keys that are not found":     {answers: answers{discovery: map[string]any{"jwks_uri": "/none"}}, code: hangar.CodeUnavailable},
		"tokens that are not there":   {answers: answers{discovery: map[string]any{"token_endpoint": "http://127.0.0.1:1/"}}, code: hangar.CodeUnavailable},
		"a refused code": {answers: answers{token: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
		}}, code: hangar.CodeUnauthenticated},
		"a failure":         {answers: answers{token: failing(http.StatusInternalServerError)}, code: hangar.CodeUnavailable},
		"a gateway's error": {answers: answers{token: failing(http.StatusBadGateway)}, code: hangar.CodeUnavailable},
		"an outage":         {answers: answers{token: failing(http.StatusServiceUnavailable)}, code: hangar.CodeUnavailable},
		"too many requests": {answers: answers{token: failing(http.StatusTooManyRequests)}, code: hangar.CodeUnavailable},
		"an answer without an ID token": {answers: answers{token: func(w http.ResponseWriter, _ *http.Request) {
			reply(t, w, map[string]any{"access_token": "x", "token_type": "Bearer"})
		}}, code: hangar.CodeUnauthenticated},
		"an answer that is too large": {answers: answers{token: func(w http.ResponseWriter, _ *http.Request) {
			reply(t, w, map[string]any{"access_token": strings.Repeat("x", 2<<20), "token_type": "Bearer"})
		}}, code: hangar.CodeUnavailable},
		"a redirect": {answers: answers{token: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/token2", http.StatusTemporaryRedirect)
		}}, code: hangar.CodeUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, key, test.answers)
			got, err := newProvider(t, server.URL).Identify(t.Context(), signIn, "the code")
			if hangar.CodeOf(err) != test.code {
				t.Fatalf("%v, not %q", err, test.code)
			}
			if test.code == "" {
				test.want.Issuer, test.want.Subject = server.URL, "7"
			}
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// TestURL: the browser is asked for the values of the sign-in, and a provider that was unreachable is
// asked again.
func TestURL(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	server := serve(t, key, answers{})
	p := newProvider(t, server.URL)
	to, err := p.URL(t.Context(), signIn)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for key, want := range map[string]string{
		"client_id": "hangar", "redirect_uri": signIn.Redirect, "response_type": "code", "state": signIn.State, "nonce": signIn.Nonce,
		"scope": "openid email profile", "code_challenge_method": "S256",
	} {
		if q.Get(key) != want {
			t.Errorf("%s is %q, not %q", key, q.Get(key), want)
		}
	}
	if strings.Contains(to, signIn.Verifier) {
		t.Error("the verifier is sent to the browser")
	}
	server.Close()
	if _, err := p.URL(t.Context(), signIn); err != nil {
		t.Errorf("what was discovered is not kept: %v", err)
	}
	if _, err := newProvider(t, server.URL).URL(t.Context(), signIn); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("of a provider that is down: %v", err)
	}
}

func TestCheckIssuer(t *testing.T) {
	t.Parallel()
	for issuer, ok := range map[string]bool{
		"https://login.example.com": true, "https://login.example.com/realms/a": true, "http://127.0.0.1:9998": true, "http://localhost:1": true,
		"http://login.example.com": false, "login.example.com": false, "": false, "https://a:b@example.com": false, "https://example.com?x": false, "https://example.com#x": false,
	} {
		if err := openid.CheckIssuer(issuer); (err == nil) != ok {
			t.Errorf("%q: %v", issuer, err)
		}
	}
}

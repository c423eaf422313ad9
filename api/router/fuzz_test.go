package router

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// FuzzAuthorization: the authenticator gets only tokens that follow a known scheme.
func FuzzAuthorization(f *testing.F) {
	for _, seed := range []string{"", "Bearer secret", "bearer  secret ", "PlatformV1 a,b", "FlyV1 fm2_x", "Basic c2VjcmV0", "Bearer", "secret", "Bearer\tsecret", "Bearer secret extra"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		asked := &askedTokens{}
		rt := New(Config{Auth: asked})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header["Authorization"] = []string{header}
		_, err := rt.principal(r)
		if hangar.CodeOf(err) != hangar.CodeUnauthenticated {
			t.Fatalf("%q is answered %v", header, err)
		}
		scheme, _, _ := strings.Cut(strings.TrimSpace(header), " ")
		known := slices.ContainsFunc(hangar.AuthorizationSchemes(), func(s string) bool { return strings.EqualFold(s, scheme) })
		for _, token := range asked.tokens {
			if !known || token == "" || token != strings.TrimSpace(token) || !strings.HasSuffix(strings.TrimSpace(header), token) {
				t.Fatalf("%q is read as the token %q", header, token)
			}
		}
	})
}

// askedTokens knows no token, and records those that it gets.
type askedTokens struct{ tokens []string }

// Authenticate implements hangar.Authenticator.
func (a *askedTokens) Authenticate(_ context.Context, token string) (hangar.Principal, error) {
	a.tokens = append(a.tokens, token)
	return hangar.Principal{}, hangar.Errorf(hangar.CodeUnauthenticated, "", "no such token")
}

// Life implements hangar.Authenticator.
func (*askedTokens) Life(hangar.TokenID) context.Context { return context.Background() }

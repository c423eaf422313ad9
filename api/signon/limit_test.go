package signon

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
)

// two is a service with two clients, whose grants never end.
type two struct{ hangar.OAuthService }

func (two) OAuthClient(_ context.Context, id hangar.OAuthClientID) (*hangar.OAuthClient, error) {
	return &hangar.OAuthClient{ID: id, Secrets: [][]byte{secretDigest}}, nil
}

func (two) RevokeGrant(context.Context, *hangar.OAuthClient, hangar.Sensitive) error { return nil }

// secretDigest is the SHA-256 digest of "secret".
var secretDigest = []byte("\x2b\xb8\x0d\x53\x7b\x1d\xa3\xe3\x8b\xd3\x03\x61\xaa\x85\x56\x86\xbd\xe0\xea\xcd\x71\x62\xfe\xf6\xa2\x5f\xe9\x7b\xf5\x27\xa2\x5b")

// TestClientsAreBounded: a third party that asks too often, or an attacker who guesses its secret, does
// not block other clients.
func TestClientsAreBounded(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	h := New(Config{OAuth: two{}, Now: func() time.Time { return now }})
	ask := func(client, secret, from string) int {
		r := httptest.NewRequest(http.MethodPost, revokePath, strings.NewReader("token=x&client_id="+client+"&client_secret="+secret))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.RemoteAddr = from + ":1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "" {
			t.Error("the answer does not say how long to wait")
		}
		return w.Code
	}
	answers := map[int]int{}
	for range 2 * requestPace.Burst {
		answers[ask("greedy", "secret", "192.0.2.1")]++
	}
	if answers[http.StatusOK] != requestPace.Burst || answers[http.StatusTooManyRequests] != requestPace.Burst {
		t.Errorf("answered %v", answers)
	}
	clear(answers)
	for range 100 {
		answers[ask("quiet", "guess", "192.0.2.2")]++
	}
	if answers[http.StatusUnauthorized] != router.SignInPace.Burst || answers[http.StatusTooManyRequests] != 100-router.SignInPace.Burst {
		t.Errorf("guesses are answered %v", answers)
	}
	for _, from := range []string{"192.0.2.2", "192.0.2.3"} {
		if code := ask("quiet", "secret", from); code != http.StatusOK {
			t.Errorf("from %s the client itself is answered %d", from, code)
		}
	}
}

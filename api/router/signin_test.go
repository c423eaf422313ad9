package router

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// oneToken is an authenticator that knows the token "good".
type oneToken struct{ hangar.Authenticator }

func (oneToken) Authenticate(_ context.Context, credential string) (hangar.Principal, error) {
	if credential == "good" {
		return hangar.Principal{Subject: "me", Admin: true}, nil
	}
	return hangar.Principal{}, hangar.Unauthenticated()
}

// signInRouter has an operation, a registry, and a clock that the test moves.
func signInRouter(now *time.Time) (*Router, http.Handler) {
	var mu sync.Mutex
	rt := newRouter(Config{Auth: oneToken{}, Region: "loc", Log: slog.New(slog.DiscardHandler)}, func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return *now
	})
	rt.Handle("GET /v1/apps", func(*http.Request) (Answer, error) { return Done(nil) }, Operation{ID: "listApps"})
	rt.Mount("/v2/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); ok && password == "good" {
			w.WriteHeader(http.StatusOK)
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.Header().Set("Content-Length", "2")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, "no")
	}))
	chain, _ := rt.Chain()
	return rt, chain
}

func signInAs(t *testing.T, h http.Handler, path, from, authorization string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.RemoteAddr = from
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const (
	bad       = "Bearer bad"
	badBasic  = "Basic eDpiYWQ=" // x:bad
	goodBasic = "Basic eDpnb29k" // x:good
)

// TestSignInsAreLimited floods the API and the registry with bad tokens. The source gets 429 after a
// while. Other sources do not, nor does a valid token of the same source.
func TestSignInsAreLimited(t *testing.T) {
	for _, door := range []struct{ name, path, bad, good string }{
		{"api", "/v1/apps", bad, "Bearer good"}, {"registry", "/v2/", badBasic, goodBasic},
	} {
		for name, from := range map[string]struct{ flood, same, other string }{
			"IPv4":    {"192.0.2.1:%d", "192.0.2.1:9", "192.0.2.2:9"},
			"mapped":  {"[::ffff:192.0.2.1]:%d", "192.0.2.1:9", "192.0.2.2:9"},
			"IPv6":    {"[2001:db8::%x]:1", "[2001:db8::ffff:1]:9", "[2001:db8:0:1::1]:9"},
			"machine": {"[fdaa:0:1:a7b:1:2:3:%x]:1", "[fdaa:0:1:a7b:1:2:3:ffff]:9", "[fdaa:0:1:a7b:1:2:4:1]:9"},
		} {
			t.Run(door.name+" "+name, func(t *testing.T) {
				now := time.Unix(1_700_000_000, 0)
				_, h := signInRouter(&now)
				for i := range 100 {
					want := http.StatusUnauthorized
					if i >= SignInPace.Burst {
						want = http.StatusTooManyRequests
					}
					w := signInAs(t, h, door.path, fmt.Sprintf(from.flood, i+1), door.bad)
					if w.Code != want {
						t.Fatalf("attempt %d is answered %d, want %d", i, w.Code, want)
					}
					if want == http.StatusTooManyRequests {
						if s, err := strconv.Atoi(w.Header().Get("Retry-After")); err != nil || s < 1 || s > 3 || !json.Valid(w.Body.Bytes()) || w.Header().Get("WWW-Authenticate") != "" {
							t.Fatalf("attempt %d is answered %v %s", i, w.Header(), w.Body)
						}
					}
					if w := signInAs(t, h, door.path, from.same, door.good); w.Code == http.StatusUnauthorized || w.Code == http.StatusTooManyRequests {
						t.Fatalf("the valid token of the same source is answered %d beside attempt %d", w.Code, i)
					}
				}
				if w := signInAs(t, h, door.path, from.same, door.bad); w.Code != http.StatusTooManyRequests {
					t.Errorf("the same source is answered %d", w.Code)
				}
				if w := signInAs(t, h, door.path, from.same, ""); w.Code != http.StatusUnauthorized {
					t.Errorf("a request without a token is answered %d", w.Code)
				}
				if w := signInAs(t, h, door.path, from.other, door.bad); w.Code != http.StatusUnauthorized {
					t.Errorf("another source is answered %d", w.Code)
				}
				now = now.Add(4 * time.Second)
				if w := signInAs(t, h, door.path, from.same, door.bad); w.Code != http.StatusUnauthorized {
					t.Errorf("after a rest it is answered %d", w.Code)
				}
			})
		}
	}
}

// TestSignInSourcesAreBounded floods from many sources, and checks that memory is bounded.
func TestSignInSourcesAreBounded(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	rt, h := signInRouter(&now)
	for i := range 3 * MaxLimiters {
		signInAs(t, h, "/v1/apps", fmt.Sprintf("[2001:db8:%x:%x::1]:1", i>>16, i&0xffff), bad)
	}
	if kept := rt.signIns.Len(); kept > 2*MaxLimiters {
		t.Errorf("%d sources are remembered, more than %d", kept, 2*MaxLimiters)
	}
	if w := signInAs(t, h, "/v1/apps", "192.0.2.9:1", "Bearer good"); w.Code == http.StatusTooManyRequests {
		t.Error("a valid token is refused")
	}
}

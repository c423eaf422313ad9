package signon

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// one is a service that knows one client and no users.
type one struct{ hangar.OAuthService }

func (one) OAuthClient(_ context.Context, id hangar.OAuthClientID) (*hangar.OAuthClient, error) {
	if id != "logs" {
		return nil, hangar.Errorf(hangar.CodeNotFound, "", "no such client")
	}
	return &hangar.OAuthClient{ID: "logs", Name: "logs", RedirectURIs: []string{"https://provider.example.com/callback"}}, nil
}

// FuzzAuthorizationRequest: no input redirects a browser anywhere but to the client, and the request
// that is carried on is the same.
func FuzzAuthorizationRequest(f *testing.F) {
	const right = "client_id=logs&redirect_uri=https%3A%2F%2Fprovider.example.com%2Fcallback&response_type=code"
	for _, seed := range []string{
		right, right + "&state=s&scope=read", right + "&scope=x", right + "&client_id=logs", right + "&state=%0d%0aLocation:x", "", "%", right + "&x=%ff",
		right + "&code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM&code_challenge_method=S256", strings.Replace(right, "provider", "evil", 1),
	} {
		f.Add(seed)
	}
	h := New(Config{OAuth: one{}})
	f.Fuzz(func(t *testing.T, raw string) {
		q, no := h.parseRequest(t.Context(), raw)
		switch {
		case (q == nil) == (no == nil):
			t.Fatalf("both or none of %v and %v", q, no)
		case no != nil && no.redirect == "":
		case no != nil:
			w := httptest.NewRecorder()
			h.answerRefusal(w, httptest.NewRequest(http.MethodGet, "/", nil), no)
			to, err := url.Parse(w.Header().Get("Location"))
			if err != nil || to.Host != "provider.example.com" || to.Path != "/callback" || to.Query().Get("error") == "" || to.Query().Get("state") != no.state {
				t.Fatalf("sent to %v, %v", to, err)
			}
		default:
			again, no := h.parseRequest(t.Context(), q.raw)
			if no != nil || again.state != q.state || again.org != q.org || again.challenge != q.challenge || again.raw != q.raw || strings.ContainsAny(q.raw, "\r\n <>\"") {
				t.Fatalf("%q is carried on as %+v, %+v", raw, again, no)
			}
		}
	})
}

// FuzzForm: a form has every parameter once and within its bounds, or is refused.
func FuzzForm(f *testing.F) {
	for _, seed := range []string{"a=1&b=2", "a=1&a=2", "%zz", "a=%00", "a=%ff", strings.Repeat("a", 3000), "a;b", "=&=", "a=" + strings.Repeat("x", 3000)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := parseForm(raw, maxQuery)
		if err != nil && !errors.Is(err, errFormTwice) {
			if got != nil {
				t.Fatalf("%v, with %v", err, got)
			}
			return
		}
		values, parseErr := url.ParseQuery(raw)
		if parseErr != nil || len(raw) > maxQuery {
			t.Fatalf("%q was read", raw)
		}
		for name, value := range got {
			if list := values[name]; len(list) != 1 || list[0] != value || len(value) > hangar.MaxOAuthParameter && name != fieldRequest {
				t.Fatalf("%q is %q of %q", name, value, list)
			}
		}
		if (err == nil) != (len(got) == len(values)) {
			t.Fatalf("%d of %d parameters, %v", len(got), len(values), err)
		}
	})
}

// FuzzBasic: the name and secret of a client are the same as in a form.
func FuzzBasic(f *testing.F) {
	f.Add("Basic bG9nczpsb2dzK3NlY3JldA==")
	f.Add("Basic %")
	f.Add("Bearer x")
	f.Fuzz(func(t *testing.T, header string) {
		r := httptest.NewRequest(http.MethodPost, "/oauth/token", nil)
		r.Header["Authorization"] = []string{header}
		if id, secret, ok := basic(r); !ok && id != "" && secret != "" {
			t.Fatalf("%q is refused with %q and %q", header, id, secret)
		}
	})
}

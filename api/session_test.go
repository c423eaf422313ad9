package api

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
)

// TestAttemptsAreBounded: guesses at the password of one account are limited over all sources, and do
// not block its owner at a client that has signed in before.
func TestAttemptsAreBounded(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	a := newAttempts(func() time.Time { return now })
	a.succeeded("ann@example.com", "home")
	let := 0
	for i := range 1000 {
		if a.at("ann@example.com", fmt.Sprint("client", i)) == 0 {
			let++
		}
	}
	if let != passwordPace.Burst {
		t.Errorf("%d attempts at one account", let)
	}
	if wait := a.at("bob@example.com", "client1"); wait != 0 {
		t.Errorf("another account has to wait for %s", wait)
	}
	now = now.Add(24 * time.Hour)
	for range 1000 {
		a.at("ann@example.com", "elsewhere")
	}
	if wait := a.at("ann@example.com", "home"); wait != 0 {
		t.Errorf("the owner has to wait for %s", wait)
	}
	// A pause restores one attempt, not all of them.
	now = now.Add(2 * time.Minute)
	let = 0
	for range 100 {
		if a.at("ann@example.com", "elsewhere") == 0 {
			let++
		}
	}
	if let != 4 {
		t.Errorf("%d attempts after two minutes", let)
	}
}

// TestAttemptsAreForgotten: memory is bounded for any number of addresses.
func TestAttemptsAreForgotten(t *testing.T) {
	a := newAttempts(time.Now)
	for i := range 3 * router.MaxLimiters {
		a.at(fmt.Sprint(i), "client")
		a.from(fmt.Sprint(i))
		a.succeeded(fmt.Sprint(i), "client")
	}
	for _, n := range []int{a.clients.Len(), a.accounts.Len(), a.known.Len()} {
		if n > 2*router.MaxLimiters {
			t.Errorf("%d are remembered", n)
		}
	}
}

// closed is a SignInService that refuses and counts all attempts.
type closed struct {
	hangar.SignInService
	asked int
}

func (c *closed) SignIn(context.Context, hangar.SignIn) (*hangar.NewToken, error) {
	c.asked++
	return nil, hangar.Errorf(hangar.CodeUnauthenticated, hangar.ReasonWrongPassword, "wrong")
}

func (c *closed) UseCode(context.Context, hangar.CodeUse) (*hangar.User, error) {
	c.asked++
	return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonCodeInvalid, "wrong")
}

// TestOneClientTriesSoManyAccounts: the answer to more attempts says when to retry.
func TestOneClientTriesSoManyAccounts(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/sign-in": `{"email":"u%d@example.com","password":"correct horse battery staple"}`, "/v1/sign-in/code": `{"code":"c%d","password":"correct horse battery staple"}`,
	} {
		service := &closed{}
		handler := New(Config{SignIns: service, Log: slog.New(slog.DiscardHandler)})
		refused := 0
		for i := range 50 {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(fmt.Appendf(nil, body, i)))
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code == http.StatusTooManyRequests {
				refused++
				if w.Header().Get("Retry-After") == "" {
					t.Error("nothing says when to come back")
				}
			}
		}
		if service.asked < router.SignInPace.Burst || service.asked > 40 || service.asked+refused != 50 { // some more, if this takes long
			t.Errorf("%s: %d were asked, %d refused", path, service.asked, refused)
		}
	}
}

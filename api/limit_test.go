package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/api/router"
)

// ask sends a request without a body and returns the answer.
func ask(t *testing.T, h http.Handler, credential, method, path string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	r.Header.Set("Authorization", "Bearer "+credential)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// nothing is an empty platform, as far as the limits need one.
type nothing struct {
	hangar.AppService
	hangar.MachineService
	hangar.TokenService
	hangar.LogService
	hangar.OrgService
	hangar.PlatformService
}

var errNothing = hangar.Errorf(hangar.CodeNotFound, "", "there is nothing")

func (nothing) Machine(context.Context, hangar.MachineRef) (*hangar.Machine, error) {
	return nil, errNothing
}

func (nothing) StartMachine(context.Context, hangar.MachineRef) (hangar.StartResult, error) {
	return hangar.StartResult{}, errNothing
}

func (nothing) StopMachine(context.Context, hangar.MachineRef, hangar.MachineStop) error {
	return errNothing
}

func (nothing) WaitMachine(context.Context, hangar.MachineRef, hangar.MachineWait) (hangar.MachineReached, error) {
	return hangar.MachineReached{}, errNothing
}

func (nothing) DestroyApp(context.Context, hangar.AppName, bool) error { return errNothing }

func (nothing) CurrentTokens(context.Context) ([]*hangar.Token, error) { return nil, errNothing }

func (nothing) Logs(context.Context, hangar.AppName, hangar.LogQuery) (hangar.LogPage, error) {
	return hangar.LogPage{}, errNothing
}

func (nothing) Orgs(context.Context) ([]*hangar.Org, error) { return nil, errNothing }

func (nothing) Regions(context.Context, hangar.Guest) ([]hangar.RegionRoom, error) {
	return nil, errNothing
}

func limited(c *api.Config, limits router.RateLimits) {
	n := nothing{}
	c.Orgs, c.Tokens, c.Apps, c.Machines, c.Logs, c.Platform, c.RateLimits = n, n, n, n, n, n, limits
}

// passes counts how many of n requests at once are not refused.
func passes(t *testing.T, h http.Handler, credential, method, path string, n int) (passed int) {
	t.Helper()
	for range n {
		w := ask(t, h, credential, method, path)
		if w.Code != http.StatusTooManyRequests {
			passed++
			continue
		}
		if !strings.Contains(w.Body.String(), `"error":"rate limit exceeded"`) {
			t.Errorf("refused with %s", w.Body)
		}
		if s, err := strconv.Atoi(w.Header().Get("Retry-After")); err != nil || s < 1 || s > 60 {
			t.Errorf("retry after %q", w.Header().Get("Retry-After"))
		}
	}
	return passed
}

func TestRateLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newAPI(func(c *api.Config) { limited(c, router.PublicRateLimits) })
		const machine = "/v1/apps/web/machines/00000000000001"
		for _, test := range []struct {
			who, method, path string
			burst, perMinute  int
		}{
			{token, http.MethodPost, machine + "/start", 3, 60},
			{token, http.MethodPost, machine + "/stop", 3, 60}, // another action
			{token, http.MethodPost, "/v1/apps/web/machines/00000000000002/start", 3, 60},
			{"guest", http.MethodPost, machine + "/start", 3, 60}, // of another organization
			{token, http.MethodGet, machine, 10, 300},
			{token, http.MethodGet, machine + "/wait", 3, 60},
			{token, http.MethodPost, "/v1/apps/web/machines", 3, 60},
			{token, http.MethodPost, "/v1/apps/api/machines", 3, 60},
			{token, http.MethodPost, "/v1/apps", 3, 60},
		} {
			if got := passes(t, h, test.who, test.method, test.path, 20); got != test.burst {
				t.Errorf("%s %s as %s: %d at once, want %d", test.method, test.path, test.who, got, test.burst)
			}
			passed := 0
			for range 600 {
				time.Sleep(100 * time.Millisecond)
				passed += passes(t, h, test.who, test.method, test.path, 1)
			}
			if passed != test.perMinute {
				t.Errorf("%s %s as %s: %d in a minute, want %d", test.method, test.path, test.who, passed, test.perMinute)
			}
		}
		// Deletions of Apps count together.
		deleted := 0
		for i := range 150 {
			deleted += passes(t, h, token, http.MethodDelete, fmt.Sprintf("/v1/apps/app-%d", i), 1)
		}
		if deleted != 100 {
			t.Errorf("%d deletions of apps at once, want 100", deleted)
		}
		// Only the Machines API has limits.
		for _, path := range []string{"/v1/tokens/current", "/v1/orgs", "/api/v1/organizations", "/api/v1/apps/web/logs", "/healthz", "/v1/platform/regions"} {
			if got := passes(t, h, token, http.MethodGet, path, 50); got != 50 {
				t.Errorf("%s: %d of 50", path, got)
			}
		}
	})
}

func TestRateLimitsAreAMultiple(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for scale, want := range map[router.RateLimits]int{0: 100, 0.1: 1, 2: 6, 10: 30} {
			h := newAPI(func(c *api.Config) { limited(c, scale) })
			if got := passes(t, h, token, http.MethodPost, "/v1/apps/web/machines/00000000000001/start", 100); got != want {
				t.Errorf("%g times the limits: %d at once, want %d", float64(scale), got, want)
			}
		}
	})
}

package signon

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestCookies: over TLS, no other name of the domain and no plain connection gets or sets them.
func TestCookies(t *testing.T) {
	for name, state := range map[string]*tls.ConnectionState{"hangar-session": nil, "__Host-hangar-session": {}} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.TLS = state
		w := httptest.NewRecorder()
		setCookie(w, r, sessionCookie, "value")
		setCookie(w, r, sessionCookie, "")
		cookies := w.Result().Cookies()
		c := cookies[0]
		if c.Name != name || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Secure != (state != nil) || c.Path != "/" || c.Domain != "" || c.MaxAge != 0 {
			t.Errorf("%s: %+v", name, c)
		}
		if cookies[1].MaxAge != -1 || cookies[1].Name != name {
			t.Errorf("%s is removed by %+v", name, cookies[1])
		}
		for header, want := range map[string]string{name + "=a": "a", name + "=a; " + name + "=b": "", "other=a": "", "hangar-session=a": map[bool]string{true: "a"}[state == nil]} {
			r.Header.Set("Cookie", header)
			if got := cookie(r, sessionCookie); got != want {
				t.Errorf("%q: the session is %q, want %q", header, got, want)
			}
		}
	}
}

package wire

import (
	"io"
	"net/http"
	"testing"

	"github.com/hangar-platform/hangar/test/platform"
)

// TestIssuerIsCached: what third parties fetch again and again is sent once.
func TestIssuerIsCached(t *testing.T) {
	t.Parallel()
	p := platform.Start(t, platform.Options{})
	plain := &http.Transport{DisableCompression: true}
	t.Cleanup(plain.CloseIdleConnections)
	transport := p.Checked(plain)
	ask := func(method, path, tag string) answer {
		r, err := http.NewRequestWithContext(t.Context(), method, p.URL()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if tag != "" {
			r.Header.Set("If-None-Match", tag)
		}
		res, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer{res.StatusCode, res.Header, body}
	}
	for _, path := range []string{"/oidc/personal/.well-known/openid-configuration", "/oidc/personal/.well-known/jwks"} {
		first := ask(http.MethodGet, path, "")
		tag := first.header.Get("ETag")
		if first.status != http.StatusOK || len(tag) < 10 || first.header.Get("Cache-Control") != "public, max-age=300" {
			t.Fatalf("%s: answered %d with %v", path, first.status, first.header)
		}
		for _, known := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
			a := ask(http.MethodGet, path, known)
			if a.status != http.StatusNotModified || len(a.body) != 0 || a.header.Get("ETag") != tag || a.header.Get("Cache-Control") == "" {
				t.Errorf("%s: with %s the answer is %d with %v and %d bytes", path, known, a.status, a.header, len(a.body))
			}
		}
		if a := ask(http.MethodGet, path, `"other"`); a.status != http.StatusOK {
			t.Errorf("%s: with another tag the answer is %d", path, a.status)
		}
		if a := ask(http.MethodHead, path, ""); a.status != http.StatusOK || a.header.Get("ETag") != tag {
			t.Errorf("%s: HEAD is answered %d with %v", path, a.status, a.header)
		}
	}
}

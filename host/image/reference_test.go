package image

import (
	"net/http"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

func TestParseReference(t *testing.T) {
	h := "sha256:" + strings.Repeat("a", 64)
	for text, want := range map[string]string{
		"nginx":                                "registry-1.docker.io library/nginx latest ",
		"nginx:alpine":                         "registry-1.docker.io library/nginx alpine ",
		"docker.io/nginx":                      "registry-1.docker.io library/nginx latest ",
		"index.docker.io/team/app":             "registry-1.docker.io team/app latest ",
		"registry-1.docker.io/library/nginx:1": "registry-1.docker.io library/nginx 1 ",
		"nginx@" + h:                           "registry-1.docker.io library/nginx  " + h,
		"nginx:1@" + h:                         "registry-1.docker.io library/nginx 1 " + h,
		"localhost:5000/a/b/c":                 "localhost:5000 a/b/c latest ",
		"registry.hangar.localhost/org/app:v1": "registry.hangar.localhost org/app v1 ",
		"[::1]:5000/app":                       "[::1]:5000 app latest ",
		"ghcr.io/team/app:v1@" + h:             "ghcr.io team/app v1 " + h,
		strings.Repeat("a", 247):               "registry-1.docker.io library/" + strings.Repeat("a", 247) + " latest ",
	} {
		r, err := parseReference(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := r.registryName() + " " + r.repository.RepositoryStr() + " " + r.tag + " " + r.digest; got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{
		"", " ", "UPPER", "a b", "app:", "app:ta g", "app@", "app@sha256:12", "app@sha512:" + strings.Repeat("a", 128),
		"app@" + strings.ToUpper(h), "../app", "reg.example/../app", "https://reg.example/app", "app:tag@" + h + "@" + h,
		strings.Repeat("a", 2000), "reg.example/", "/app", strings.Repeat("a", 248), // with library/ before it
	} {
		if r, err := parseReference(text); hangar.ReasonOf(err) != hangar.ReasonBadConfig {
			t.Errorf("%q is %+v, %v", text, r, err)
		}
	}
}

func FuzzParseReference(f *testing.F) {
	for _, s := range []string{"nginx", "a.b/c:d@sha256:" + strings.Repeat("0", 64), "docker.io/x", "[::1]:1/a", "a@b@c", "::/", strings.Repeat("0", 248)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseReference(text)
		if err != nil {
			if hangar.CodeOf(err) != hangar.CodeInvalid {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		// A parsed reference is the same after it was written and read again.
		again, err := parseReference(r.resolved(r.digest, nil).String())
		if err != nil {
			t.Fatalf("%q became %q: %v", text, r.resolved(r.digest, nil), err)
		}
		if again.source() != r.source() || again.tag != r.tag || again.digest != r.digest {
			t.Fatalf("%q is %+v, then %+v", text, r, again)
		}
	})
}

func FuzzParseManifest(f *testing.F) {
	h := "sha256:" + strings.Repeat("a", 64)
	f.Add([]byte(`{"schemaVersion":2,"config":{"digest":"` + h + `"},"layers":[{"digest":"` + h + `","size":3}]}`))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"` + h + `","platform":{"os":"linux","architecture":"amd64"}}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parseManifest(raw)
		if err != nil {
			if hangar.ReasonOf(err) != hangar.ReasonBadImage {
				t.Fatal(err)
			}
			return
		}
		for _, d := range append(m.Layers, m.Manifests...) {
			if !digestPattern.MatchString(d.Digest.String()) || d.Size < 0 {
				t.Fatalf("accepted %+v", d)
			}
		}
		if _, err := New(Options{}).pick(m.Manifests); err != nil && hangar.ReasonOf(err) != hangar.ReasonBadImage {
			t.Fatal(err)
		}
	})
}

func TestPlainAllowed(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "registry.hangar.localhost:4280": true, "127.0.0.1:1": true, "127.8.8.8": true,
		"[::1]:5000": true, "10.0.0.1:5000": false, "192.168.1.1": false, "registry.example": false, "localhost.example": false, "0.0.0.0:1": false,
	} {
		if got := plainAllowed(host); got != want {
			t.Errorf("%s: %v", host, got)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/v2/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		asked := false
		_, _ = guard{roundTripper(func() { asked = true })}.RoundTrip(req)
		if asked != want {
			t.Errorf("%s was asked: %v", host, asked)
		}
	}
}

type roundTripper func()

func (f roundTripper) RoundTrip(*http.Request) (*http.Response, error) {
	f()
	return nil, http.ErrUseLastResponse
}

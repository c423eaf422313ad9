package image_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
)

func TestTransfersThatBreakAreRepeated(t *testing.T) {
	u := serve(t)
	l := files(t, map[string]string{"a": strings.Repeat("abc", 50000)})
	img := imageOf(t, l)
	ref := u.push(t, "app:v1", img)
	var tries atomic.Int64
	u.on(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, digest(t, l)) || tries.Add(1) > 1 {
			return false
		}
		rc, err := l.Compressed()
		if err != nil {
			t.Error(err)
		}
		size, _ := l.Size()
		w.Header().Set("Content-Length", fmt.Sprint(size))
		_, _ = io.CopyN(w, rc, size/2)
		_ = rc.Close()
		panic(http.ErrAbortHandler)
	})
	dir := t.TempDir()
	pull(t, open(t, image.Options{Dir: dir}), ref)
	if tries.Load() != 2 {
		t.Errorf("asked %d times", tries.Load())
	}
	if n, tmp := left(t, dir); n != 1 || tmp != 0 {
		t.Errorf("%d layers, %d half-made things", n, tmp)
	}
}

func TestErrorsOfRegistries(t *testing.T) {
	u := serve(t)
	ref := u.push(t, "app:v1", imageOf(t))
	s := open(t, image.Options{})
	_, err := s.Resolve(t.Context(), tenant, u.host+"/app:none")
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "failed to get manifest "+u.host+"/app:none: request failed: not found")
	_, err = s.Resolve(t.Context(), tenant, u.host+"/none/none")
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "not found")
	u.on(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2/" {
			return false
		}
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	_, err = s.Resolve(t.Context(), tenant, ref)
	wantError(t, err, hangar.CodeUnavailable, "registry_rate_limited", "too many requests")
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	named, err := s.Resolve(t.Context(), tenant, strings.TrimPrefix(closed.URL, "http://")+"/app")
	wantError(t, err, hangar.CodeUnavailable, "registry_unreachable", "registry "+strings.TrimPrefix(closed.URL, "http://")+" cannot be reached: connection refused")
	if named.Repository != "app" || named.Tag != "latest" || named.Digest != "" {
		t.Errorf("the reference to a registry that does not answer is %+v", named)
	}
	// An image without layers still has one directory.
	u.on(func(http.ResponseWriter, *http.Request) bool { return false })
	img := pull(t, s, ref)
	if len(img.Layers) != 1 {
		t.Fatalf("layers %q", img.Layers)
	}
	if entries, err := os.ReadDir(img.Layers[0]); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestMultiArchitecture(t *testing.T) {
	u := serve(t)
	mine := imageOf(t, files(t, map[string]string{"mine": "1"}))
	other := imageOf(t, files(t, map[string]string{"other": "1"}))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: mine, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}},
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}},
	)
	push(t, u.host+"/app:v1", index)
	s := open(t, image.Options{})
	img := pull(t, s, u.host+"/app:v1")
	if img.Ref.Digest != digest(t, index) {
		t.Errorf("the image is known as %s, its tag stands for %s", img.Ref.Digest, digest(t, index))
	}
	if _, err := os.Stat(filepath.Join(img.Layers[0], "mine")); err != nil {
		t.Error(err)
	}
	s390x := open(t, image.Options{Platform: v1.Platform{OS: "linux", Architecture: "s390x"}})
	_, err := s390x.Pull(t.Context(), tenant, u.host+"/app@"+digest(t, mine), nil)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadImage, "not for linux/s390x")
}

func TestCredentials(t *testing.T) {
	u := serve(t)
	ref := u.push(t, "private:v1", imageOf(t, files(t, map[string]string{"a": "1"})))
	u.on(func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user == "me" && password == "secret:with:colons" {
			return false
		}
		w.Header().Set("Www-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	config := filepath.Join(t.TempDir(), "config.json")
	write := func(text string) {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own := func(_ context.Context, registry string) (string, string, bool) {
		return "me", "secret:with:colons", registry == u.host
	}
	const auth = "bWU6c2VjcmV0OndpdGg6Y29sb25z" // me:secret:with:colons
	for _, tt := range []struct {
		name   string
		config string
		own    func(context.Context, string) (string, string, bool)
		ok     bool
	}{
		{"none", ``, nil, false},
		{"platform", ``, own, true},
		{"docker", `{"auths":{"` + u.host + `":{"auth":"` + auth + `"}}}`, nil, true},
		{"docker by URL", `{"auths":{"https://` + u.host + `/v1/":{"username":"me","password":"secret:with:colons"}}}`, nil, true},
		{"docker of another", `{"auths":{"other.example":{"auth":"` + auth + `"}}}`, nil, false},
		{"docker damaged", `{"auths":`, nil, false},
		{"docker helper", `{"auths":{"` + u.host + `":{}},"credsStore":"desktop"}`, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			write(tt.config)
			s := open(t, image.Options{DockerConfig: config, Credentials: tt.own})
			_, err := s.Resolve(t.Context(), tenant, ref)
			if tt.ok && err != nil {
				t.Fatal(err)
			}
			if !tt.ok {
				wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "access denied")
			}
		})
	}
}

func TestPlainHTTPStaysOnThisHost(t *testing.T) {
	s := open(t, image.Options{Log: slog.New(slog.DiscardHandler), Dialer: dialer(t, "0.0.0.0/8")})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// No server here has addresses in 192.0.2.0/24 and 10/8: the test is that they are not
	// contacted.
	for _, host := range []string{"0.0.0.0:1", "0.0.0.0"} {
		_, err := s.Resolve(ctx, tenant, host+"/app:v1")
		if hangar.CodeOf(err) != hangar.CodeUnavailable {
			t.Errorf("%s: %v", host, err)
		}
	}
}

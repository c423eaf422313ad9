package ociimage_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	foreign "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/ociimage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(tb testing.TB, name, content string, mode os.FileMode) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), mode); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		tb.Fatal(err)
	}
}

// tree makes a small root file system, the same each time.
func tree(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	write(tb, filepath.Join(dir, "bin", "app"), "program", 0o755|os.ModeSetuid)
	write(tb, filepath.Join(dir, "etc", "conf"), "text", 0o640)
	if err := os.Link(filepath.Join(dir, "bin", "app"), filepath.Join(dir, "bin", "other")); err != nil {
		tb.Fatal(err)
	}
	if err := os.Symlink("../etc/conf", filepath.Join(dir, "bin", "link")); err != nil {
		tb.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(dir, "socket"), unix.S_IFSOCK|0o600, 0); err != nil {
		tb.Fatal(err)
	}
	when := time.Unix(1e9, 0)
	err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		ts := unix.NsecToTimespec(when.UnixNano())
		return unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

func open(tb testing.TB, name string, c ociimage.Config) *ociimage.Image {
	tb.Helper()
	c.TempDir = tb.TempDir()
	img, err := ociimage.Open(name, c)
	if err != nil {
		tb.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		tb.Errorf("not a valid image: %v", err)
	}
	tb.Cleanup(func() {
		if err := img.Close(); err != nil {
			tb.Error(err)
		}
		if left, _ := os.ReadDir(c.TempDir); len(left) != 0 {
			tb.Errorf("left behind: %v", left)
		}
	})
	return img
}

func digest(tb testing.TB, img v1.Image) string {
	tb.Helper()
	d, err := img.Digest()
	if err != nil {
		tb.Fatal(err)
	}
	return d.String()
}

func entries(tb testing.TB, img v1.Image) map[string]*tar.Header {
	tb.Helper()
	layers, err := img.Layers()
	if err != nil {
		tb.Fatal(err)
	}
	found := map[string]*tar.Header{}
	for _, l := range layers {
		rc, err := l.Uncompressed()
		if err != nil {
			tb.Fatal(err)
		}
		r := tar.NewReader(rc)
		for {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				tb.Fatal(err)
			}
			found[h.Name] = h
		}
		if err := rc.Close(); err != nil {
			tb.Fatal(err)
		}
	}
	return found
}

func TestDirectory(t *testing.T) {
	c := ociimage.Config{Entrypoint: []string{"/bin/app"}, Env: []string{"A=1", "A=2"}, WorkingDir: "srv", User: "7:8", Expose: []string{"80", "53/udp"}}
	img := open(t, tree(t), c)
	if again := open(t, tree(t), c); digest(t, again) != digest(t, img) {
		t.Error("the same tree gives another digest")
	}
	f, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Config; !slices.Equal(got.Entrypoint, c.Entrypoint) || got.WorkingDir != "/srv" || got.User != "7:8" || len(got.ExposedPorts) != 2 ||
		!slices.Contains(got.Env, "A=2") || slices.Contains(got.Env, "A=1") || f.OS != "linux" || f.Architecture != runtime.GOARCH {
		t.Errorf("config %+v", f)
	}
	got := entries(t, img)
	if len(got) != 7 {
		t.Errorf("entries %v", got)
	}
	if h := got["bin/app"]; h.Mode != 0o4755 || h.Uid != 0 || !h.ModTime.Equal(time.Unix(1e9, 0)) {
		t.Errorf("bin/app %+v", h)
	}
	if h := got["bin/other"]; h.Typeflag != tar.TypeLink || h.Linkname != "bin/app" {
		t.Errorf("bin/other %+v", h)
	}
	if h := got["bin/link"]; h.Typeflag != tar.TypeSymlink || h.Linkname != "../etc/conf" {
		t.Errorf("bin/link %+v", h)
	}
	if _, ok := got["socket"]; ok {
		t.Error("a socket is in the image")
	}
}

func TestBinary(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go tool to build a program with")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "main.go"), "package main\nfunc main() {}\n", 0o600)
	build := func(arch string) string {
		out := filepath.Join(dir, "prog-"+arch)
		cmd := exec.CommandContext(t.Context(), goTool, "build", "-o", out, filepath.Join(dir, "main.go"))
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=")
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		return out
	}
	img := open(t, build("amd64"), ociimage.Config{Cmd: []string{"-v"}})
	f, err := img.ConfigFile()
	if err != nil || f.Architecture != "amd64" || !slices.Equal(f.Config.Entrypoint, []string{"/prog-amd64"}) || !slices.Equal(f.Config.Cmd, []string{"-v"}) {
		t.Errorf("config %+v, %v", f, err)
	}
	if got := entries(t, img); got["prog-amd64"] == nil || got["prog-amd64"].Mode != 0o755 || got["tmp/"].Mode != 0o1777 {
		t.Errorf("entries %v", got)
	}
	if _, err := ociimage.Open(build("amd64"), ociimage.Config{Platform: v1.Platform{Architecture: "arm64"}}); err == nil {
		t.Error("a program for another platform was taken")
	}
	if sh, err := filepath.EvalSymlinks("/bin/sh"); err == nil {
		if _, err := ociimage.Open(sh, ociimage.Config{}); err == nil || !strings.Contains(err.Error(), "linked dynamically") {
			t.Errorf("%s: %v", sh, err)
		}
	}
}

func TestArchives(t *testing.T) {
	img, err := random.Image(2000, 2)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	saved := filepath.Join(dir, "saved.tar")
	tag, _ := name.NewTag("app:v1")
	if err := tarball.WriteToFile(saved, tag, img); err != nil {
		t.Fatal(err)
	}
	oci := filepath.Join(dir, "oci")
	p, err := layout.Write(oci, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	if err := w.AddFS(os.DirFS(oci)); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteHeader(&tar.Header{Name: "../../escape", Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "oci.tar"), packed.String(), 0o600)
	for _, n := range []string{"saved.tar", "oci.tar"} {
		raw, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(raw)
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, n+".gz"), b.String(), 0o600)
	}
	want, _ := img.ConfigName()
	for _, n := range []string{"saved.tar", "saved.tar.gz", "oci.tar", "oci.tar.gz", "oci"} {
		t.Run(n, func(t *testing.T) {
			got := open(t, filepath.Join(dir, n), ociimage.Config{})
			if id, err := got.ConfigName(); err != nil || id != want {
				t.Errorf("image %s, want %s, %v", id, want, err)
			}
			changed := open(t, filepath.Join(dir, n), ociimage.Config{Cmd: []string{"x"}})
			if f, err := changed.ConfigFile(); err != nil || !slices.Equal(f.Config.Cmd, []string{"x"}) {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
	for n, content := range map[string]string{"empty": "", "text": "hello world", "other.tar": emptyTar(t)} {
		write(t, filepath.Join(dir, n), content, 0o600)
		temp := t.TempDir()
		if _, err := ociimage.Open(filepath.Join(dir, n), ociimage.Config{TempDir: temp}); !errors.Is(err, ociimage.ErrUnsupported) {
			t.Errorf("%s: %v", n, err)
		}
		if left, _ := os.ReadDir(temp); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	// Two images: neither is guessed.
	other, err := random.Image(10, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(other); err != nil {
		t.Fatal(err)
	}
	if _, err := ociimage.Open(oci, ociimage.Config{}); err == nil || !strings.Contains(err.Error(), "2 images") {
		t.Errorf("two images: %v", err)
	}
}

func emptyTar(tb testing.TB) string {
	tb.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).Close(); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

func TestPush(t *testing.T) {
	s := httptest.NewServer(foreign.New(foreign.Logger(log.New(io.Discard, "", 0))))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	img := open(t, tree(t), ociimage.Config{Entrypoint: []string{"/bin/app"}})
	var done, total int64
	plain := ociimage.Registry{Plain: true, Token: "token"}
	pushed, err := ociimage.Push(t.Context(), img, host+"/team/app:v1", plain, func(d, of int64) { done, total = d, of })
	if err != nil {
		t.Fatal(err)
	}
	if want := digest(t, img); pushed.String() != want {
		t.Errorf("pushed %s, want %s", pushed, want)
	}
	if done == 0 || done != total {
		t.Errorf("progress ended at %d of %d", done, total)
	}
	tag, _ := name.ParseReference(host + "/team/app:v1")
	transport := remote.DefaultTransport
	if got, err := remote.Image(tag, remote.WithContext(t.Context()), remote.WithTransport(transport)); err != nil || digest(t, got) != digest(t, img) {
		t.Errorf("came back as %v, %v", got, err)
	}
	if c, ok := transport.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
	if _, err := ociimage.Push(t.Context(), img, "not a reference", plain, nil); err == nil {
		t.Error("a bad reference was taken")
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	if _, err := ociimage.Push(t.Context(), mutate.MediaType(img, "x"), strings.TrimPrefix(closed.URL, "http://")+"/app", plain, func(int64, int64) {}); err == nil {
		t.Error("pushed to a closed registry")
	}
}

// TestPushSpeaksOneScheme: a token is sent over TLS to registries whose certificate the authority
// has signed, and over plain HTTP only to a registry that is known to use it.
func TestPushSpeaksOneScheme(t *testing.T) {
	var plainRequests atomic.Int32
	registry := foreign.New(foreign.Logger(log.New(io.Discard, "", 0)))
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		plainRequests.Add(1)
		registry.ServeHTTP(w, r)
	}))
	defer plain.Close()
	secure := httptest.NewUnstartedServer(registry)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	img := open(t, tree(t), ociimage.Config{Entrypoint: []string{"/bin/app"}})
	for name, tt := range map[string]struct {
		url string
		to  ociimage.Registry
		ok  bool
	}{
		"TLS with the authority":    {secure.URL, ociimage.Registry{Roots: roots, Token: "token"}, true},
		"TLS without the authority": {secure.URL, ociimage.Registry{Token: "token"}, false},
		"TLS where HTTP is asked":   {secure.URL, ociimage.Registry{Plain: true, Token: "token"}, false},
		"HTTP where TLS is asked":   {plain.URL, ociimage.Registry{Roots: roots, Token: "token"}, false},
	} {
		_, host, _ := strings.Cut(tt.url, "://")
		if _, err := ociimage.Push(t.Context(), img, host+"/team/app:v1", tt.to, nil); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := plainRequests.Load(); n > 0 {
		t.Errorf("%d requests in the clear", n)
	}
}

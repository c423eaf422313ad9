package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	foreign "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream is a third-party registry behind real HTTP that counts requests.
type upstream struct {
	host  string
	blobs atomic.Int64 // GETs of blobs
	all   atomic.Int64
	// intercept, if set, answers instead of the registry when it returns true.
	intercept atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
}

func serve(tb testing.TB) *upstream {
	tb.Helper()
	u := &upstream{}
	h := foreign.New(foreign.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.all.Add(1)
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			u.blobs.Add(1)
		}
		if f := u.intercept.Load(); f != nil && (*f)(w, r) {
			return
		}
		h.ServeHTTP(w, r)
	}))
	tb.Cleanup(s.Close)
	u.host = strings.TrimPrefix(s.URL, "http://")
	return u
}

func (u *upstream) on(f func(http.ResponseWriter, *http.Request) bool) { u.intercept.Store(&f) }

func (u *upstream) push(tb testing.TB, ref string, img v1.Image) string {
	tb.Helper()
	full := u.host + "/" + ref
	push(tb, full, img)
	return full
}

func push(tb testing.TB, ref string, img remote.Taggable, more ...remote.Option) {
	tb.Helper()
	tag, err := name.ParseReference(ref)
	if err != nil {
		tb.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	o := append([]remote.Option{remote.WithContext(tb.Context()), remote.WithTransport(transport)}, more...)
	switch i := img.(type) {
	case v1.Image:
		err = remote.Write(tag, i, o...)
	case v1.ImageIndex:
		err = remote.WriteIndex(tag, i, o...)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// tenant is the puller in tests.
var tenant = image.Puller{Org: "orgtenant", Slug: "personal"}

// dialer returns a dialer with exceptions.
func dialer(tb testing.TB, allow ...string) *publicdial.Dialer {
	tb.Helper()
	var o publicdial.Options
	for _, text := range allow {
		a, err := publicdial.ParseAllowed(text)
		if err != nil {
			tb.Fatal(err)
		}
		o.Allow = append(o.Allow, a)
	}
	return publicdial.New(o)
}

// open returns a store in dir, closed with the test. It may call registries on loopback.
func open(tb testing.TB, opts image.Options) *image.Store {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("owners and whiteouts need root")
	}
	if opts.Dir == "" {
		opts.Dir = tb.TempDir()
	}
	if opts.Dialer == nil {
		opts.Dialer = dialer(tb, "127.0.0.0/8", "[::1]")
	}
	s := image.New(opts)
	if err := s.Open(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// files makes a layer; a name that ends with a slash is a directory of mode 1777.
func files(tb testing.TB, content map[string]string) v1.Layer {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	names := make([]string, 0, len(content))
	for n := range content {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		h := &tar.Header{Name: n, Mode: 0o644, Size: int64(len(content[n])), Typeflag: tar.TypeReg}
		if strings.HasSuffix(n, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o1777
		}
		if err := w.WriteHeader(h); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, content[n]); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func imageOf(tb testing.TB, layers ...v1.Layer) v1.Image {
	tb.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		tb.Fatal(err)
	}
	f, err := img.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	f = f.DeepCopy()
	f.OS, f.Architecture = "linux", runtime.GOARCH
	f.Config = v1.Config{Env: []string{"A=b"}, Cmd: []string{"/run"}, Labels: map[string]string{"made": "here"}, StopSignal: "SIGQUIT"}
	if img, err = mutate.ConfigFile(img, f); err != nil {
		tb.Fatal(err)
	}
	return img
}

func digest(tb testing.TB, d interface{ Digest() (v1.Hash, error) }) string {
	tb.Helper()
	h, err := d.Digest()
	if err != nil {
		tb.Fatal(err)
	}
	return h.String()
}

func pull(tb testing.TB, s *image.Store, ref string) *image.Image {
	tb.Helper()
	img, err := s.Pull(tb.Context(), tenant, ref, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return img
}

func wantError(tb testing.TB, err error, code hangar.Code, reason, says string) {
	tb.Helper()
	if hangar.CodeOf(err) != code || hangar.ReasonOf(err) != reason || !strings.Contains(fmt.Sprint(err), says) {
		tb.Errorf("error %v (%s, %s), want %s, %s, %q", err, hangar.CodeOf(err), hangar.ReasonOf(err), code, reason, says)
	}
}

// left lists the store's directories for layers and for temporary files.
func left(tb testing.TB, dir string) (layers, tmp int) {
	tb.Helper()
	l, err := os.ReadDir(filepath.Join(dir, "layers"))
	if err != nil {
		tb.Fatal(err)
	}
	h, err := os.ReadDir(filepath.Join(dir, "tmp"))
	if err != nil {
		tb.Fatal(err)
	}
	return len(l), len(h)
}

func TestPull(t *testing.T) {
	u := serve(t)
	lower := files(t, map[string]string{"tmp/": "", "etc/a": "1", "etc/gone": "1"})
	upper := files(t, map[string]string{"tmp/x": "22", "etc/.wh.gone": "", "etc/b": "333"})
	nothing := files(t, nil)
	img := imageOf(t, lower, upper, nothing, lower)
	ref := u.push(t, "team/app:v1", img)
	s := open(t, image.Options{})

	resolved, err := s.Resolve(t.Context(), tenant, ref)
	if err != nil {
		t.Fatal(err)
	}
	want := hangar.ImageRef{Registry: u.host, Repository: "team/app", Tag: "v1", Digest: digest(t, img), Labels: map[string]string{"made": "here"}}
	if fmt.Sprint(resolved, resolved.Labels) != fmt.Sprint(want, want.Labels) {
		t.Errorf("resolved %v, want %v", resolved, want)
	}
	var reports []hangar.PullProgress
	got, err := s.Pull(t.Context(), tenant, ref, func(p hangar.PullProgress) { reports = append(reports, p) })
	if err != nil {
		t.Fatal(err)
	}
	if got.Ref.String() != want.String() || got.Config.StopSignal != "SIGQUIT" || !slices.Equal(got.Config.Cmd, []string{"/run"}) {
		t.Errorf("pulled %+v", got)
	}
	var total int64
	for _, l := range []v1.Layer{lower, upper, nothing, lower} {
		n, _ := l.Size()
		total += n
	}
	if last := reports[len(reports)-1]; last != (hangar.PullProgress{Phase: "unpacking", Done: total, Total: total}) {
		t.Errorf("last report %+v, want %d bytes", last, total)
	}
	// lower is on top, so it is left out below; the empty layer is no layer.
	if len(got.Layers) != 3 {
		t.Errorf("%d layers, want upper, its directories and lower: %q", len(got.Layers), got.Layers)
	}
	merged := overlay(t, got.Layers)
	if fi, err := os.Stat(filepath.Join(merged, "tmp")); err != nil || fi.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("/tmp: %v, %v", fi, err)
	}
	for _, f := range []string{"tmp/x", "etc/a", "etc/b", "etc/gone"} {
		if _, err := os.Stat(filepath.Join(merged, f)); err != nil {
			t.Error(err)
		}
	}

	// A pinned, held image needs no network, but only for its origin.
	before := u.all.Load()
	pinned := u.host + "/team/app:v1@" + digest(t, img)
	again := pull(t, s, pinned)
	if r, err := s.Resolve(t.Context(), tenant, pinned); err != nil || r.Digest != digest(t, img) || again.Ref.Tag != "v1" || again.Ref.Labels["made"] != "here" {
		t.Errorf("pinned: %+v, %+v, %v", again.Ref, r, err)
	}
	if u.all.Load() != before {
		t.Error("a pinned image that is held went to the network")
	}
	_, err = s.Pull(t.Context(), tenant, u.host+"/other/app@"+digest(t, img), nil)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "failed to get manifest "+u.host+"/other/app")
	// A tag that still resolves to the same image costs no blob.
	blobs := u.blobs.Load()
	pull(t, s, ref)
	if u.blobs.Load() != blobs {
		t.Error("an image that is held was transferred again")
	}
	if img, err := s.Get(digest(t, img)); err != nil || img.Size != got.Size || got.Size == 0 {
		t.Errorf("%+v, %v", img, err)
	}
	if list, err := s.List(); err != nil || len(list) != 1 || list[0].SizeBytes != got.Size || list[0].InUse {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := s.Get("sha256:" + strings.Repeat("0", 64)); !errors.Is(err, image.ErrNotFound) || hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("unknown image: %v", err)
	}
}

// overlay mounts layers, lowest first, as the root of a Machine would be.
func overlay(tb testing.TB, layers []string) string {
	tb.Helper()
	work := tb.TempDir()
	for _, d := range []string{"up", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(work, d), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	order := slices.Clone(layers)
	slices.Reverse(order)
	target := filepath.Join(work, "merged")
	options := "lowerdir=" + strings.Join(order, ":") + ",upperdir=" + work + "/up,workdir=" + work + "/work"
	if err := unix.Mount("overlay", target, "overlay", 0, options); err != nil {
		tb.Skipf("no overlayfs here: %v", err)
	}
	tb.Cleanup(func() {
		if err := unix.Unmount(target, 0); err != nil {
			tb.Error(err)
		}
	})
	return target
}

func TestLayersAreSharedAndSurviveARestart(t *testing.T) {
	u := serve(t)
	base := files(t, map[string]string{"base": strings.Repeat("b", 10000)})
	one := imageOf(t, base, files(t, map[string]string{"one": "1"}))
	two := imageOf(t, base, files(t, map[string]string{"two": "2"}))
	a, b := u.push(t, "one:v1", one), u.push(t, "two:v1", two)
	dir := t.TempDir()
	s := open(t, image.Options{Dir: dir})
	first, second := pull(t, s, a), pull(t, s, b)
	if first.Layers[0] != second.Layers[0] {
		t.Error("the base layer was unpacked twice")
	}
	if n, tmp := left(t, dir); n != 3 || tmp != 0 {
		t.Errorf("%d layers, %d half-made things", n, tmp)
	}
	if err := s.Remove(t.Context(), digest(t, one)); err != nil {
		t.Fatal(err)
	}
	if n, _ := left(t, dir); n != 2 {
		t.Errorf("%d layers are left, want those of the other image", n)
	}
	// The start removes partial files of a crash and keeps the rest.
	for _, p := range []string{"tmp/layer-x/fs/deep", "tmp/write-y"} {
		if err := os.MkdirAll(filepath.Join(dir, p), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "images", strings.Repeat("0", 64)+".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, image.Options{Dir: dir})
	if _, err := again.Get(digest(t, two)); err != nil {
		t.Error(err)
	}
	if list, err := again.List(); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, tmp := left(t, dir); tmp != 0 {
		t.Errorf("%d half-made things", tmp)
	}
	_, err := s.Pull(t.Context(), tenant, a, nil)
	wantError(t, err, hangar.CodeUnavailable, "shutting_down", "closed")
	// An image that lost a layer is not held.
	if err := os.RemoveAll(filepath.Dir(second.Layers[0])); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, image.Options{Dir: dir}).Get(digest(t, two)); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("image without its layer: %v", err)
	}
}

func TestConcurrentPullsShareTheWork(t *testing.T) {
	u := serve(t)
	img := imageOf(t, files(t, map[string]string{"a": strings.Repeat("a", 50000)}), files(t, map[string]string{"b": "1"}))
	ref := u.push(t, "app:v1", img)
	s := open(t, image.Options{})
	gate := make(chan struct{})
	arrived := make(chan struct{}, 100)
	layers, _ := img.Layers()
	u.on(func(_ http.ResponseWriter, r *http.Request) bool {
		for _, l := range layers {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, digest(t, l)) {
				arrived <- struct{}{}
				<-gate
			}
		}
		return false
	})
	// The first caller leaves while the transfer runs; the others get it.
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if _, err := s.Pull(ctx, tenant, ref, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("caller that left: %v", err)
		}
	})
	<-arrived
	resolving := u.all.Load()
	const others = 5
	for range others {
		group.Go(func() {
			var last hangar.PullProgress
			img, err := s.Pull(t.Context(), tenant, ref, func(p hangar.PullProgress) { last = p })
			if err != nil || len(img.Layers) != 2 {
				t.Errorf("%+v, %v", img, err)
			}
			if last.Done != last.Total {
				t.Errorf("last report %+v", last)
			}
		})
	}
	for u.all.Load() < resolving+2*others { // each asks for the manifest before it joins
		runtime.Gosched()
	}
	cancel()
	close(gate)
	group.Wait()
	if n := len(arrived); n > 3 {
		t.Errorf("layers were asked for %d times more than once each", n-1)
	}
	// When all callers leave, no work continues and nothing is left.
	if err := s.Remove(t.Context(), digest(t, img)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	u.on(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, digest(t, layers[0])) {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			cancel()
			<-r.Context().Done()
			return true
		}
		return false
	})
	if _, err := s.Pull(ctx, tenant, ref, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("caller that left: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

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

// rawLayer is a layer of arbitrary bytes.
func rawLayer(data []byte) v1.Layer { return static.NewLayer(data, types.DockerLayer) }

func gzipped(tb testing.TB, data []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func TestHostileImagesAreRefused(t *testing.T) {
	good := files(t, map[string]string{"a": "1"})
	var traversal bytes.Buffer
	w := tar.NewWriter(&traversal)
	if err := w.WriteHeader(&tar.Header{Name: "../../evil", Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	answer := func(suffix, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, suffix) || r.Method == http.MethodHead && !strings.Contains(suffix, "manifests") {
				return false
			}
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return true
			}
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	rc, err := good.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	flipped, err := io.ReadAll(rc)
	if err != nil {
		t.Fatal(err)
	}
	flipped[len(flipped)-1] ^= 1
	h := "sha256:" + strings.Repeat("a", 64)
	config := `"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + h + `","size":2}`
	tests := []struct {
		name      string
		image     v1.Image
		intercept func(http.ResponseWriter, *http.Request) bool
		pinned    bool
		says      string
	}{
		{name: "path traversal", image: imageOf(t, rawLayer(gzipped(t, traversal.Bytes()))), says: "leads out"},
		{name: "zip bomb", image: imageOf(t, rawLayer(gzipped(t, make([]byte, 40<<20)))), says: "too large"},
		{name: "large file", image: imageOf(t, files(t, map[string]string{"a": strings.Repeat("x", 2<<20)})), says: "larger"},
		{name: "large together", image: imageOf(t, files(t, map[string]string{"a": strings.Repeat("x", 700<<10)}), files(t, map[string]string{"b": strings.Repeat("x", 700<<10)})), says: "larger"},
		{name: "wrong diff id", image: imageOf(t, rawLayer(gzipped(t, make([]byte, 1024)))), says: "unpacks to"},
		{name: "many layers", image: imageOf(t, slices.Repeat([]v1.Layer{good}, 9)...), says: "9 layers"},
		{name: "layer that is another", image: imageOf(t, good), intercept: answer(digest(t, good), string(flipped)), says: "layer has the digest"},
		{name: "manifest that is another", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2}`), pinned: true, says: "not sha256"},
		{name: "large manifest", image: imageOf(t, good), intercept: answer("/manifests/", strings.Repeat(" ", 5000)), says: "manifest is larger"},
		{name: "schema 1", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":1,"name":"x"}`), says: "schema version 1"},
		{name: "not JSON", image: imageOf(t, good), intercept: answer("/manifests/", `<html>`), says: "damaged"},
		{name: "neither image nor index", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2}`), says: "neither"},
		{name: "digest with a path", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2,"config":{"digest":"sha256:../../../etc/passwd"}}`), says: "damaged"},
		{name: "large config", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2,"config":{"digest":"`+h+`","size":999999999}}`), says: "config is larger"},
		{name: "artifact", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2,"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":"`+h+`"}}`), says: "not an image"},
		{name: "index of other platforms", image: imageOf(t, good), intercept: answer("/manifests/", `{"schemaVersion":2,"manifests":[{"digest":"`+h+`","platform":{"os":"windows","architecture":"amd64"}},{"digest":"`+h+`","platform":{"os":"linux","architecture":"s390x"}}]}`), says: "only for: windows/amd64, linux/s390x"},
		{name: "layers that the config does not have", image: imageOf(t, good), intercept: func(w http.ResponseWriter, r *http.Request) bool {
			return answer("/manifests/", `{"schemaVersion":2,`+config+`,"layers":[{"digest":"`+h+`","size":1}]}`)(w, r) || answer("/blobs/", "{}")(w, r)
		}, says: "config has the digest"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u := serve(t)
			ref := u.push(t, "evil:v1", tt.image)
			if tt.pinned {
				ref += "@" + digest(t, tt.image)
			}
			if tt.intercept != nil {
				u.on(tt.intercept)
			}
			dir := t.TempDir()
			s := open(t, image.Options{Dir: dir, Limits: image.Limits{UnpackedBytes: 1 << 20, Files: 100, Layers: 8, ManifestBytes: 4096}})
			_, err := s.Pull(t.Context(), tenant, ref, nil)
			wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadImage, tt.says)
			if err := s.Close(); err != nil { // it waits for abandoned work
				t.Fatal(err)
			}
			if _, tmp := left(t, dir); tmp != 0 {
				t.Errorf("%d half-made things are left", tmp)
			}
			if list, _ := s.List(); len(list) != 0 {
				t.Errorf("it is held: %+v", list)
			}
		})
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

// access lets a caller with the password "token" do everything in some organizations.
type access map[string]hangar.OrgID

func (a access) Repository(r *http.Request, name string, action hangar.Action) (hangar.Repository, error) {
	if _, password, _ := r.BasicAuth(); password != "token" {
		return hangar.Repository{}, hangar.Unauthenticated()
	}
	if action == 0 {
		return hangar.Repository{}, nil
	}
	repository := hangar.RepositoryName(name)
	slug := repository.Target().Org
	id, ok := a[string(slug)]
	if slug != "" && !ok {
		return hangar.Repository{}, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonOrgNotFound, "no such organization")
	}
	return hangar.Repository{Org: id, Name: repository.Name()}, nil
}

func (a access) Orgs(*http.Request) ([]*hangar.Org, error) {
	var orgs []*hangar.Org
	for slug, id := range a {
		orgs = append(orgs, &hangar.Org{ID: id, Slug: hangar.OrgSlug(slug)})
	}
	return orgs, nil
}

// token is the login that access wants.
var token = remote.WithAuth(authn.FromConfig(authn.AuthConfig{Username: "x", Password: "token"}))

func TestBuiltInRegistry(t *testing.T) {
	dir := t.TempDir()
	s := open(t, image.Options{Dir: dir, Local: []string{"registry.hangar.localhost"}})
	server := httptest.NewServer(s.Registry(access{"personal": tenant.Org}))
	img := imageOf(t, files(t, map[string]string{"a": "1"}))
	push(t, strings.TrimPrefix(server.URL, "http://")+"/personal/app:v1", img, token)
	server.Close() // reading in process needs no server
	got := pull(t, s, "registry.hangar.localhost:4280/personal/app:v1")
	if got.Ref.Registry != "registry.hangar.localhost:4280" || got.Ref.Digest != digest(t, img) || len(got.Layers) != 1 {
		t.Errorf("pulled %+v", got)
	}
	_, err := s.Resolve(t.Context(), tenant, "registry.hangar.localhost/personal/none:v1")
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "not found")
	// The collector keeps pushed content, even without the unpacked copy.
	if err := s.Remove(t.Context(), digest(t, img)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(t.Context(), image.Policy{MaxAge: 1, UntaggedAge: 1}); err != nil {
		t.Fatal(err)
	}
	pull(t, s, "registry.hangar.localhost/personal/app:v1")
}

// TestShortNames looks for names without a registry in the repositories of the organization, then of the server, and
// only then at Docker Hub.
func TestShortNames(t *testing.T) {
	offline := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("offline") }}
	s := open(t, image.Options{Local: []string{"registry.hangar.localhost"}, Dialer: publicdial.New(publicdial.Options{Resolver: offline})})
	server := httptest.NewServer(s.Registry(access{"personal": tenant.Org, "other": "o-other"}))
	defer server.Close()
	at := strings.TrimPrefix(server.URL, "http://")
	own, shared, others := imageOf(t, files(t, map[string]string{"a": "own"})), imageOf(t, files(t, map[string]string{"a": "shared"})), imageOf(t, files(t, map[string]string{"a": "others"}))
	push(t, at+"/personal/app:latest", own, token)
	push(t, at+"/personal/team/app:latest", own, token)
	push(t, at+"/app:latest", shared, token)
	push(t, at+"/base:latest", shared, token)
	push(t, at+"/other/private:latest", others, token)
	for ref, want := range map[string]string{
		"app": "registry.hangar.localhost/personal/app", "app:latest": "registry.hangar.localhost/personal/app",
		"app@" + digest(t, own): "registry.hangar.localhost/personal/app", "app@" + digest(t, shared): "registry.hangar.localhost/app",
		"personal/app": "registry.hangar.localhost/personal/app", "personal/team/app": "registry.hangar.localhost/personal/team/app",
		"base": "registry.hangar.localhost/base",
	} {
		got := pull(t, s, ref)
		if source := got.Ref.Registry + "/" + got.Ref.Repository; source != want {
			t.Errorf("%s is pulled from %s, want %s", ref, source, want)
		}
		resolved, err := s.Resolve(t.Context(), tenant, ref)
		if source := resolved.Registry + "/" + resolved.Repository; err != nil || source != want {
			t.Errorf("%s is resolved to %s, want %s: %v", ref, source, want, err)
		}
	}
	// Docker Hub has no address here.
	for _, ref := range []string{"app:v2", "private", "other/private", "team/app", "docker.io/app", "index.docker.io/app", "docker.io/personal/app"} {
		resolved, err := s.Resolve(t.Context(), tenant, ref)
		if err == nil || resolved.Registry == "registry.hangar.localhost" {
			t.Errorf("%s is resolved to %s: %v", ref, resolved, err)
		}
	}
}

func TestGC(t *testing.T) {
	u := serve(t)
	dir := t.TempDir()
	var mu sync.Mutex
	used := map[string]bool{}
	s := open(t, image.Options{Dir: dir, InUse: func() map[string]bool {
		mu.Lock()
		defer mu.Unlock()
		return used
	}})
	var digests []string
	for i := range 3 {
		img := imageOf(t, files(t, map[string]string{"f": strings.Repeat(fmt.Sprint(i), 1000)}))
		digests = append(digests, digest(t, img))
		pull(t, s, u.push(t, fmt.Sprintf("app%d:v1", i), img))
	}
	used[digests[0]] = true
	wantError(t, s.Remove(t.Context(), digests[0]), hangar.CodeFailedPrecondition, "image_in_use", "used by a Machine")
	if list, err := s.List(); err != nil || !list[0].InUse || list[1].InUse {
		t.Errorf("%+v, %v", list, err)
	}
	if freed, err := s.GC(t.Context(), image.Policy{MaxAge: time.Hour, MinFreeBytes: 1 << 62}); err != nil || freed != 0 {
		t.Errorf("freed %d bytes of what was just used, %v", freed, err)
	}
	// A week later the second is used again.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-7 * 24 * time.Hour)
	for _, d := range digests {
		if err := os.Chtimes(filepath.Join(dir, "images", strings.TrimPrefix(d, "sha256:")+".json"), past, past); err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, image.Options{Dir: dir, InUse: func() map[string]bool { return used }})
	if _, err := s.Get(digests[1]); err != nil {
		t.Fatal(err)
	}
	freed, err := s.GC(t.Context(), image.Policy{MaxAge: time.Hour})
	if err != nil || freed != 1000 {
		t.Errorf("freed %d bytes, %v", freed, err)
	}
	if list, _ := s.List(); len(list) != 2 {
		t.Errorf("%+v", list)
	}
	for _, d := range digests[:2] {
		if img, err := s.Get(d); err != nil {
			t.Error(err)
		} else if _, err := os.Stat(filepath.Join(img.Layers[0], "f")); err != nil {
			t.Error(err)
		}
	}
	if n, tmp := left(t, dir); n != 2 || tmp != 0 {
		t.Errorf("%d layers, %d half-made things", n, tmp)
	}
}

// TestGCBesidePulls: an image that Pull returned and that is in use stays complete during any
// collection.
func TestGCBesidePulls(t *testing.T) {
	u := serve(t)
	base := files(t, map[string]string{"base": "1"})
	var refs, digests []string
	for i := range 4 {
		img := imageOf(t, base, files(t, map[string]string{"own": fmt.Sprint(i)}))
		refs, digests = append(refs, u.push(t, fmt.Sprintf("app%d:v1", i), img)), append(digests, digest(t, img))
	}
	var mu sync.Mutex
	used := map[string]bool{}
	s := open(t, image.Options{InUse: func() map[string]bool {
		mu.Lock()
		defer mu.Unlock()
		snapshot := map[string]bool{}
		for d := range used {
			snapshot[d] = true
		}
		return snapshot
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var collector, machines sync.WaitGroup
	collector.Go(func() {
		for ctx.Err() == nil {
			if _, err := s.GC(ctx, image.Policy{MaxAge: 1}); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range refs {
		machines.Go(func() {
			for range 5 {
				mu.Lock()
				used[digests[i]] = true
				mu.Unlock()
				img, err := s.Pull(t.Context(), tenant, refs[i], nil)
				if err != nil {
					t.Error(err)
					return
				}
				for _, l := range img.Layers {
					if entries, err := os.ReadDir(l); err != nil || len(entries) != 1 {
						t.Errorf("layer %s: %v, %v", l, entries, err)
					}
				}
				mu.Lock()
				delete(used, digests[i])
				mu.Unlock()
			}
		})
	}
	machines.Wait()
	cancel()
	collector.Wait()
}

func TestPlainHTTPStaysOnThisHost(t *testing.T) {
	s := open(t, image.Options{Log: slog.New(slog.DiscardHandler), Dialer: dialer(t, "0.0.0.0/8")})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// No server has 192.0.2.0/24 and 10/8 here: the point is that it is not contacted.
	for _, host := range []string{"0.0.0.0:1", "0.0.0.0"} {
		_, err := s.Resolve(ctx, tenant, host+"/app:v1")
		if hangar.CodeOf(err) != hangar.CodeUnavailable {
			t.Errorf("%s: %v", host, err)
		}
	}
}

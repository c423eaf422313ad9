package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
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

	"github.com/google/go-containerregistry/pkg/name"
	foreign "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
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
	// lower is in the top layer, so it is omitted below; the empty layer is ignored.
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

	// A pinned image that is held only needs the network to check its origin.
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
	// A tag that still resolves to the same image transfers no blob.
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

// TestLayerOfALargerImage: an image is not refused because another one with the same layer is too large.
func TestLayerOfALargerImage(t *testing.T) {
	u := serve(t)
	shared := files(t, map[string]string{"a": strings.Repeat("x", 700<<10)})
	large := u.push(t, "app:large", imageOf(t, files(t, map[string]string{"b": strings.Repeat("x", 700<<10)}), shared))
	small := u.push(t, "app:small", imageOf(t, files(t, map[string]string{"c": "1"}), shared))
	dir := t.TempDir()
	s := open(t, image.Options{Dir: dir, Limits: image.Limits{UnpackedBytes: 1 << 20}})
	gate := make(chan struct{})
	u.on(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, digest(t, shared)) {
			<-gate
		}
		return false
	})
	var group sync.WaitGroup
	begin := func(ref string, done func(error)) {
		before, _ := left(t, dir)
		group.Go(func() {
			_, err := s.Pull(t.Context(), tenant, ref, nil)
			done(err)
		})
		for layers := before; layers == before && t.Context().Err() == nil; layers, _ = left(t, dir) { // its other layer is there
			runtime.Gosched()
		}
	}
	begin(large, func(err error) { wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadImage, "larger") })
	begin(small, func(err error) {
		if err != nil {
			t.Errorf("the small image: %v", err)
		}
	})
	close(gate)
	group.Wait()
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

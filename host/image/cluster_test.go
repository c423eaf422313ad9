package image_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	foreign "github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/internal/pause"
)

// noise is a layer that does not compress.
func noise(tb testing.TB, size int) v1.Layer {
	tb.Helper()
	b := make([]byte, size)
	if _, err := rand.Read(b); err != nil {
		tb.Fatal(err)
	}
	return files(tb, map[string]string{"noise": string(b)})
}

// call makes a request of the registry of a host.
func (h *atHost) call(tb testing.TB, method, path string) (int, string, []byte) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, "http://"+h.clients+path, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	req.SetBasicAuth("x", "token")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, err.Error(), raw
	}
	return resp.StatusCode, string(raw), raw
}

func (h *atHost) want(tb testing.TB, status int, says, method, path string) {
	tb.Helper()
	if got, body, _ := h.call(tb, method, path); got != status || !strings.Contains(body, says) {
		tb.Errorf("%s %s at host %s answers %d %.300s, want %d %q", method, path, h.id, got, body, status, says)
	}
}

// TestPushedToAnother: an image that was pushed to one host runs on all hosts, and clients of each
// see the same.
func TestPushedToAnother(t *testing.T) {
	_, hosts := cluster(t, aa, bb, cc)
	a, b, c := hosts[aa], hosts[bb], hosts[cc]
	first, second := imageOf(t, noise(t, 1<<20), files(t, map[string]string{"a": "1"})), imageOf(t, files(t, map[string]string{"a": "2"}))
	push(t, a.clients+"/personal/app:v1", first, token)
	ref := builtIn + "/personal/app:v1"
	got := pull(t, b.Store, ref)
	if got.Ref.Digest != digest(t, first) || len(got.Layers) != 2 {
		t.Errorf("pulled %+v", got)
	}
	if read, err := os.ReadFile(filepath.Join(got.Layers[1], "a")); err != nil || string(read) != "1" {
		t.Errorf("the layer has %q %v", read, err)
	}
	reads := a.reads.Load()
	pull(t, b.Store, ref)
	if now := a.reads.Load(); now != reads {
		t.Errorf("an image that is held is read %d times again", now-reads)
	}
	// The last push wins, to whichever host.
	push(t, b.clients+"/personal/app:v1", second, token)
	for id, h := range hosts {
		found, err := h.Resolve(t.Context(), tenant, ref)
		if err != nil || found.Digest != digest(t, second) {
			t.Errorf("host %s resolves to %v %v", id, found, err)
		}
		h.want(t, http.StatusOK, `"repositories":["personal/app"]`, http.MethodGet, "/v2/_catalog")
		h.want(t, http.StatusMethodNotAllowed, "UNSUPPORTED", http.MethodDelete, "/v2/personal/app/blobs/"+digest(t, first))
		h.want(t, http.StatusOK, `"tags":["v1"]`, http.MethodGet, "/v2/personal/app/tags/list")
		h.want(t, http.StatusOK, "", http.MethodHead, "/v2/personal/app/manifests/"+digest(t, first))
	}
	// A client pulls from a host that has nothing.
	repo, err := name.ParseReference(c.clients + "/personal/app@" + digest(t, first))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	img, err := foreign.Image(repo, foreign.WithContext(t.Context()), foreign.WithTransport(transport), token)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		rc, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, rc); err != nil {
			t.Errorf("layer read through another host: %v", err)
		}
		_ = rc.Close()
	}
	for a.opened.Load()+b.opened.Load() != 0 { // they end after the client has the last byte
		if pause.For(t.Context(), time.Millisecond) != nil {
			t.Fatalf("%d reads stay open", a.opened.Load()+b.opened.Load())
		}
	}
}

// TestPushOfWhatAnotherHas: a client leaves out blobs that the repository has on another host. This
// host then gets everything that the manifest names, and keeps it when the other host is lost.
func TestPushOfWhatAnotherHas(t *testing.T) {
	_, hosts := cluster(t, aa, bb, cc)
	a, b, c := hosts[aa], hosts[bb], hosts[cc]
	base := noise(t, 1<<20)
	push(t, a.clients+"/personal/app:v1", imageOf(t, base), token)
	next := imageOf(t, base, files(t, map[string]string{"b": "2"}))
	push(t, b.clients+"/personal/app:v2", next, token)
	if _, err := os.Stat(filepath.Join(b.dir, "registry", "blobs", strings.TrimPrefix(digest(t, base), "sha256:"))); err != nil {
		t.Errorf("the layer that host a has is not fetched: %v", err)
	}
	_ = a.server.Close()
	if got := pull(t, c.Store, builtIn+"/personal/app:v2"); got.Ref.Digest != digest(t, next) {
		t.Errorf("pulled %v", got.Ref)
	}
	// Blobs that only it had are lost with it: the error names the image, and no address.
	_, err := c.Pull(t.Context(), tenant, builtIn+"/personal/app:v1", nil)
	wantError(t, err, hangar.CodeUnavailable, "registry_unreachable", builtIn+"/personal/app:v1: the server that has it cannot be reached")
	if strings.Contains(fmt.Sprint(err), "127.0.0.1") {
		t.Errorf("the error has an address: %v", err)
	}
	c.want(t, http.StatusServiceUnavailable, "v1 of personal/app: the server that has it cannot be reached", http.MethodGet, "/v2/personal/app/manifests/v1")
	// A push restores it.
	push(t, c.clients+"/personal/app:v1", imageOf(t, base), token)
	pull(t, c.Store, builtIn+"/personal/app:v1")
}

// TestDeletedOnAnother: a deletion reaches a host that could not be reached at the time.
func TestDeletedOnAnother(t *testing.T) {
	all, hosts := cluster(t, aa, bb)
	a, b := hosts[aa], hosts[bb]
	img := imageOf(t, noise(t, 64<<10))
	push(t, a.clients+"/personal/app:v1", img, token)
	_ = a.server.Close() // it is away
	b.want(t, http.StatusAccepted, "", http.MethodDelete, "/v2/personal/app/manifests/"+digest(t, img))
	for _, h := range hosts {
		h.want(t, http.StatusNotFound, "", http.MethodGet, "/v2/personal/app/manifests/v1")
		h.want(t, http.StatusNotFound, "", http.MethodGet, "/v2/personal/app/manifests/"+digest(t, img))
		h.want(t, http.StatusOK, `"repositories":[]`, http.MethodGet, "/v2/_catalog")
		_, err := h.Resolve(t.Context(), tenant, builtIn+"/personal/app:v1")
		wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "not found")
	}
	// While the catalog cannot be reached, nothing counts as deleted.
	link := filepath.Join(a.dir, "registry", "repositories", "orgs", string(tenant.Org), "app", "_", "manifests", strings.TrimPrefix(digest(t, img), "sha256:"))
	all.mu.Lock()
	all.away = true
	all.mu.Unlock()
	if _, err := a.GC(t.Context(), image.Policy{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(link); err != nil {
		t.Errorf("the manifest is collected without the catalog: %v", err)
	}
	all.mu.Lock()
	all.away = false
	all.mu.Unlock()
	if _, err := a.GC(t.Context(), image.Policy{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(link); !os.IsNotExist(err) {
		t.Errorf("the manifest stays on the host that was away: %v", err)
	}
}

// TestBlobOfOthersByAnotherHost: knowing a digest gives no access to a blob of another
// organization, whichever host has it.
func TestBlobOfOthersByAnotherHost(t *testing.T) {
	_, hosts := cluster(t, aa, bb)
	a, b := hosts[aa], hosts[bb]
	secret := noise(t, 64<<10)
	push(t, a.clients+"/other/app:v1", imageOf(t, secret), token)
	push(t, a.clients+"/personal/app:v1", imageOf(t, files(t, map[string]string{"a": "1"})), token)
	for _, h := range hosts {
		h.want(t, http.StatusNotFound, "BLOB_UNKNOWN", http.MethodGet, "/v2/personal/app/blobs/"+digest(t, secret))
		h.want(t, http.StatusNotFound, "", http.MethodHead, "/v2/personal/app/blobs/"+digest(t, secret))
	}
	reader, err := b.peers.Pushed(aa)
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range []hangar.PushedRead{
		{Repository: "orgs/" + string(tenant.Org) + "/app", Digest: digest(t, secret)},
		{Repository: "orgs/" + string(tenant.Org) + "/none", Digest: digest(t, secret)},
		{Repository: "server/app", Digest: digest(t, secret), Manifest: true},
	} {
		if _, err := reader.OpenPushed(t.Context(), in); hangar.CodeOf(err) != hangar.CodeNotFound {
			t.Errorf("%+v: %v", in, err)
		}
	}
	for _, in := range []hangar.PushedRead{
		{Repository: "orgs/../../etc", Digest: digest(t, secret)},
		{Repository: "orgs/orgother/app", Digest: "sha256:../../passwd"},
		{Repository: "orgs/orgother/app", Digest: digest(t, secret), Offset: -1},
	} {
		if _, err := reader.OpenPushed(t.Context(), in); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%+v: %v", in, err)
		}
	}
	// A manifest that names it is refused, even by a host that would have to fetch it.
	config := files(t, map[string]string{"c": "1"})
	stolen := manifestOf(t, secret, config)
	if code := b.put(t, "/v2/personal/app/manifests/stolen", types.OCIManifestSchema1, stolen); code != http.StatusBadRequest {
		t.Errorf("a manifest that names a blob of others is answered with %d", code)
	}
}

// manifestOf returns a manifest that names a layer, and another blob as its config.
func manifestOf(tb testing.TB, layer, config v1.Layer) []byte {
	tb.Helper()
	describe := func(l v1.Layer, mediaType string) map[string]any {
		return map[string]any{"mediaType": mediaType, "digest": digest(tb, l), "size": 1}
	}
	raw, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": describe(config, "application/vnd.oci.image.config.v1+json"),
		"layers": []any{describe(layer, "application/vnd.oci.image.layer.v1.tar+gzip")},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// put pushes a manifest of a media type.
func (h *atHost) put(tb testing.TB, path string, is types.MediaType, manifest []byte) int {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodPut, "http://"+h.clients+path, bytes.NewReader(manifest))
	if err != nil {
		tb.Fatal(err)
	}
	req.SetBasicAuth("x", "token")
	req.Header.Set("Content-Type", string(is))
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestHostsThatMisbehave: an interrupted transfer continues, at the same host or another. Content
// that does not match its digest is refused.
func TestHostsThatMisbehave(t *testing.T) {
	t.Parallel()
	type wrap = func(context.Context, hangar.PushedRead, hangar.PushedContent) hangar.PushedContent
	cut := func(after int64) wrap {
		return func(_ context.Context, in hangar.PushedRead, c hangar.PushedContent) hangar.PushedContent {
			if in.Manifest || c.Size() < after {
				return c
			}
			return changed{io.MultiReader(io.LimitReader(c, after), iotest.ErrReader(errBroken)), c}
		}
	}
	for _, test := range []struct {
		name string
		both bool // hosts do it
		wrap wrap
		says string // "": it is pulled
	}{
		{"wrong bytes", true, func(_ context.Context, in hangar.PushedRead, c hangar.PushedContent) hangar.PushedContent {
			if in.Manifest || c.Size() < 1<<20 {
				return c
			}
			return changed{io.MultiReader(strings.NewReader("x"), io.LimitReader(c, c.Size()-in.Offset-1)), c}
		}, "damaged"},
		{"ends within the blob", true, func(_ context.Context, in hangar.PushedRead, c hangar.PushedContent) hangar.PushedContent {
			return changed{io.LimitReader(c, c.Size()/2-in.Offset), c}
		}, "the server that has it cannot be reached"},
		{"breaks in pieces", true, cut(300 << 10), ""},
		{"stalls", false, func(ctx context.Context, in hangar.PushedRead, c hangar.PushedContent) hangar.PushedContent {
			if in.Manifest || c.Size() < 1<<20 {
				return c
			}
			return changed{io.MultiReader(io.LimitReader(c, 100<<10), until(ctx.Done())), c}
		}, ""},
		{"says nothing", true, func(ctx context.Context, in hangar.PushedRead, c hangar.PushedContent) hangar.PushedContent {
			return changed{until(ctx.Done()), c}
		}, "the server that has it cannot be reached"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, hosts := cluster(t, aa, bb, cc)
			img := imageOf(t, noise(t, 1<<20))
			push(t, hosts[aa].clients+"/personal/app:v1", img, token)
			push(t, hosts[bb].clients+"/personal/app:v2", img, token) // fetches it
			hosts[aa].onRead(test.wrap)
			if test.both {
				hosts[bb].onRead(test.wrap)
			}
			got, err := hosts[cc].Pull(t.Context(), tenant, builtIn+"/personal/app:v1", nil)
			if test.says == "" {
				if err != nil || got.Ref.Digest != digest(t, img) {
					t.Errorf("pulled %v %v", got, err)
				}
				return
			}
			wantError(t, err, hangar.CodeUnavailable, "registry_unreachable", test.says)
			if layers, tmp := left(t, hosts[cc].dir); layers+tmp > 0 {
				t.Errorf("%d layers and %d temporary files are left", layers, tmp)
			}
		})
	}
}

// until is a reader that blocks.
type until <-chan struct{}

func (u until) Read([]byte) (int, error) {
	<-u
	return 0, errBroken
}

// TestHostThatIsKilled: a transfer continues at another host, or reports what is unavailable.
func TestHostThatIsKilled(t *testing.T) {
	for _, others := range []bool{true, false} {
		t.Run(fmt.Sprintf("another has it: %v", others), func(t *testing.T) {
			_, hosts := cluster(t, aa, bb, cc)
			img := imageOf(t, noise(t, 4<<20))
			push(t, hosts[aa].clients+"/personal/app:v1", img, token)
			var killed atomic.Pointer[atHost]
			kill := func(h *atHost) {
				h.onRead(func(_ context.Context, in hangar.PushedRead, c hangar.PushedContent) hangar.PushedContent {
					if in.Manifest || c.Size() < 1<<20 || !killed.CompareAndSwap(nil, h) {
						return c
					}
					return changed{io.MultiReader(io.LimitReader(c, 1<<20), closing{h.server}), c}
				})
			}
			if others {
				push(t, hosts[bb].clients+"/personal/app:v2", img, token) // fetches it
				kill(hosts[bb])
			}
			kill(hosts[aa])
			got, err := hosts[cc].Pull(t.Context(), tenant, builtIn+"/personal/app:v1", nil)
			switch {
			case killed.Load() == nil:
				t.Error("no host was killed")
			case others && (err != nil || got.Ref.Digest != digest(t, img)):
				t.Errorf("pulled %v %v", got, err)
			case !others:
				wantError(t, err, hangar.CodeUnavailable, "registry_unreachable", "the server that has it cannot be reached")
			}
		})
	}
}

// closing ends a server in the middle of a response.
type closing struct{ server *http.Server }

func (c closing) Read([]byte) (int, error) {
	_ = c.server.Close()
	return 0, errBroken
}

// TestFloodOfReads: a tenant that reads as much as it can takes no reads from others.
func TestFloodOfReads(t *testing.T) {
	_, hosts := clusterWith(t, image.Limits{RateWindow: time.Hour}, aa, bb)
	a, b := hosts[aa], hosts[bb]
	big := noise(t, 1<<20)
	push(t, a.clients+"/other/app:v1", imageOf(t, big), token)
	img := imageOf(t, noise(t, 1<<20))
	push(t, a.clients+"/personal/app:v1", img, token)
	release := make(chan struct{})
	a.onRead(func(_ context.Context, in hangar.PushedRead, c hangar.PushedContent) hangar.PushedContent {
		if strings.HasPrefix(in.Repository, "orgs/orgother/") {
			return changed{io.MultiReader(io.LimitReader(c, 1<<10), until(release)), c}
		}
		return c
	})
	const flood = 48
	answers := make(chan int, flood)
	var clients sync.WaitGroup
	for range flood {
		clients.Go(func() {
			code, _, _ := b.call(t, http.MethodGet, "/v2/other/app/blobs/"+digest(t, big))
			answers <- code
		})
	}
	var codes []int
	for range flood - 32 { // reads beyond the bound are answered at once
		codes = append(codes, <-answers)
	}
	if i := slices.IndexFunc(codes, func(c int) bool { return c != http.StatusTooManyRequests }); i >= 0 {
		t.Errorf("the flood is answered with %d", codes[i])
	}
	if n := a.opened.Load(); n > 32 {
		t.Errorf("%d reads are under way", n)
	}
	if got := pull(t, b.Store, builtIn+"/personal/app:v1"); got.Ref.Digest != digest(t, img) {
		t.Errorf("pulled %v", got.Ref)
	}
	close(release)
	clients.Wait()
}

// TestDeletedWithinAPull: the blobs of a manifest stay for a host that has just read the manifest.
func TestDeletedWithinAPull(t *testing.T) {
	_, hosts := cluster(t, aa, bb)
	a, b := hosts[aa], hosts[bb]
	img := imageOf(t, noise(t, 1<<20))
	push(t, a.clients+"/personal/app:v1", img, token)
	blobs := filepath.Join(a.dir, "registry", "repositories", "orgs", string(tenant.Org), "app", "_", "blobs")
	age(t, blobs)
	var once sync.Once
	a.onRead(func(_ context.Context, in hangar.PushedRead, c hangar.PushedContent) hangar.PushedContent {
		if in.Manifest {
			once.Do(func() {
				b.want(t, http.StatusAccepted, "", http.MethodDelete, "/v2/personal/app/manifests/"+digest(t, img))
				if _, err := a.GC(t.Context(), image.Policy{}); err != nil {
					t.Error(err)
				}
			})
		}
		return c
	})
	pull(t, b.Store, builtIn+"/personal/app:v1")
	age(t, blobs)
	if _, err := a.GC(t.Context(), image.Policy{}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(blobs); err != nil || len(left) > 0 {
		t.Errorf("%d blobs stay for good: %v", len(left), err)
	}
}

// TestFirstPushWithinACollection: a repository that is new since a collection began keeps what was pushed.
func TestFirstPushWithinACollection(t *testing.T) {
	all, hosts := cluster(t, aa)
	a := hosts[aa]
	push(t, a.clients+"/personal/app:v1", imageOf(t, noise(t, 64<<10)), token)
	img := imageOf(t, noise(t, 64<<10))
	var begun atomic.Bool
	all.listed = func() {
		if begun.CompareAndSwap(false, true) {
			push(t, a.clients+"/personal/new:v1", img, token)
		}
	}
	if _, err := a.GC(t.Context(), image.Policy{}); err != nil {
		t.Fatal(err)
	}
	if got := pull(t, a.Store, builtIn+"/personal/new:v1"); got.Ref.Digest != digest(t, img) {
		t.Errorf("pulled %v", got.Ref)
	}
}

// TestIndexWithinACollection: an index that is accepted while a manifest that it names is collected, or
// deleted, is complete.
func TestIndexWithinACollection(t *testing.T) {
	policy := image.Policy{UntaggedAge: time.Hour}
	for name, run := range map[string]func(t *testing.T, all *shared, a *atHost, child string, push func()){
		"before its release": func(t *testing.T, all *shared, a *atHost, _ string, push func()) {
			var once atomic.Bool
			all.listed = func() {
				if once.CompareAndSwap(false, true) {
					push()
				}
			}
			if _, err := a.GC(t.Context(), policy); err != nil {
				t.Fatal(err)
			}
		},
		"after its release": func(t *testing.T, all *shared, a *atHost, _ string, push func()) {
			all.released = push
			if _, err := a.GC(t.Context(), policy); err != nil {
				t.Fatal(err)
			}
		},
		"after its deletion": func(t *testing.T, _ *shared, a *atHost, child string, push func()) {
			a.want(t, http.StatusAccepted, "", http.MethodDelete, "/v2/personal/app/manifests/"+child)
			push()
		},
	} {
		t.Run(name, func(t *testing.T) {
			all, hosts := cluster(t, aa)
			a := hosts[aa]
			img := imageOf(t, noise(t, 64<<10))
			push(t, a.clients+"/personal/app:v1", img, token)
			push(t, a.clients+"/personal/app:v1", imageOf(t, noise(t, 64<<10)), token)
			age(t, filepath.Join(a.dir, "registry", "repositories", "orgs", string(tenant.Org), "app", "_", "manifests"))
			index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})
			raw, err := index.RawManifest()
			if err != nil {
				t.Fatal(err)
			}
			accepted := false
			run(t, all, a, digest(t, img), func() {
				accepted = a.put(t, "/v2/personal/app/manifests/multi", types.OCIImageIndex, raw) == http.StatusCreated
			})
			for range 2 {
				status := http.StatusNotFound
				if accepted {
					status = http.StatusOK
				}
				a.want(t, status, "", http.MethodGet, "/v2/personal/app/manifests/multi")
				if accepted {
					pull(t, a.Store, builtIn+"/personal/app:multi")
				}
				if _, err := a.GC(t.Context(), policy); err != nil {
					t.Fatal(err)
				}
			}
			if want := name == "before its release"; accepted != want {
				t.Errorf("the index is accepted: %v, want %v", accepted, want)
			}
		})
	}
}

// TestPublish: a host publishes its content from before the catalog once, and does not publish
// deleted images again.
func TestPublish(t *testing.T) {
	dir := t.TempDir()
	img := imageOf(t, noise(t, 64<<10))
	alone := open(t, image.Options{Dir: dir, Local: []string{builtIn}})
	server := &atHost{Store: alone, dir: dir}
	server.listen(t)
	push(t, server.clients+"/personal/app:v1", img, token)
	all := newShared()
	s := open(t, image.Options{Dir: dir, Local: []string{builtIn}, Catalog: catalog{all, aa}, Host: aa})
	for range 2 {
		if err := s.Pushed().Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := pull(t, s, builtIn+"/personal/app:v1"); got.Ref.Digest != digest(t, img) {
		t.Errorf("pulled %v", got.Ref)
	}
	if err := (catalog{all, bb}).Delete(t.Context(), "orgs/"+string(tenant.Org)+"/app", digest(t, img)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(t.Context(), image.Policy{}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Resolve(t.Context(), tenant, builtIn+"/personal/app:v1")
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "not found")
}

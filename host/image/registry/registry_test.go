package registry_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a registry behind real HTTP. The user "a" may do everything in a/, and the user "b"
// everything in b/.
type server struct {
	*registry.Registry
	host string
	dir  string
}

func serve(tb testing.TB, opts registry.Options) server {
	tb.Helper()
	if opts.Dir == "" {
		opts.Dir = tb.TempDir()
	}
	opts.Log = slog.New(slog.DiscardHandler)
	r := registry.New(opts)
	if err := r.Open(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	s := httptest.NewServer(r.Handler(access{}))
	tb.Cleanup(s.Close)
	return server{r, strings.TrimPrefix(s.URL, "http://"), opts.Dir}
}

// access knows an organization of the same name for each user.
type access struct{}

func orgOf(user string) hangar.OrgID { return hangar.OrgID("id" + user) }

// kept is where a repository of a user is.
func kept(user, repository string) string {
	return hangar.Repository{Org: orgOf(user), Name: repository}.Path()
}

func (access) user(req *http.Request) (string, error) {
	user, password, ok := req.BasicAuth()
	if !ok || password != "secret" {
		return "", hangar.Unauthenticated()
	}
	return user, nil
}

func (a access) Repository(req *http.Request, repository string, action hangar.Action) (hangar.Repository, error) {
	user, err := a.user(req)
	if err != nil || action == 0 {
		return hangar.Repository{}, err
	}
	name := hangar.RepositoryName(repository)
	switch {
	case strings.HasPrefix(repository, user+"/"):
		return hangar.Repository{Org: orgOf(user), Name: name.Name()}, nil
	case user == "root" && name.Target().Org != "":
		return hangar.Repository{}, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonOrgNotFound, "no such organization")
	case user == "root" || name.Target().Org == "" && action == hangar.ActionRead:
		return hangar.Repository{Name: repository}, nil
	}
	return hangar.Repository{}, hangar.Errorf(hangar.CodeForbidden, "", "not yours")
}

func (a access) Orgs(req *http.Request) ([]*hangar.Org, error) {
	user, err := a.user(req)
	return []*hangar.Org{{ID: orgOf(user), Slug: hangar.OrgSlug(user)}}, err
}

func (s server) repo(tb testing.TB, path string) name.Repository {
	tb.Helper()
	repo, err := name.NewRepository(s.host + "/" + path)
	if err != nil {
		tb.Fatal(err)
	}
	return repo
}

func options(tb testing.TB, user string) []remote.Option {
	tb.Helper()
	transport := &http.Transport{}
	tb.Cleanup(transport.CloseIdleConnections)
	return []remote.Option{
		remote.WithContext(tb.Context()), remote.WithTransport(transport),
		remote.WithAuth(authn.FromConfig(authn.AuthConfig{Username: user, Password: "secret"})),
	}
}

// do sends one request as a user and returns the answer with its body read.
func (s server) do(tb testing.TB, user, method, path string, body []byte, headers ...string) (*http.Response, string) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, "http://"+s.host+path, bytes.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	if user != "" {
		req.SetBasicAuth(user, "secret")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	// The request does not ask to close the connection, because the server would then reset it
	// under a refused body.
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return resp, string(raw)
}

func (s server) status(tb testing.TB, want int, code, user, method, path string, body []byte, headers ...string) *http.Response {
	tb.Helper()
	resp, text := s.do(tb, user, method, path, body, headers...)
	if resp.StatusCode != want || !strings.Contains(text, code) {
		tb.Errorf("%s %s answers %d %.300s, want %d %s", method, path, resp.StatusCode, text, want, code)
	}
	return resp
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func randomImage(tb testing.TB, layers int64) v1.Image {
	tb.Helper()
	img, err := random.Image(4096, layers)
	if err != nil {
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

func TestPushedImagesComeBack(t *testing.T) {
	s := serve(t, registry.Options{})
	repo := s.repo(t, "a/team/app")
	o := options(t, "a")
	img := randomImage(t, 3)
	index, err := random.Index(1024, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		remote.Write(repo.Tag("v1"), img, o...), remote.Write(repo.Tag("v2"), img, o...),
		remote.WriteIndex(repo.Tag("multi"), index, o...),
		remote.Write(s.repo(t, "a/other").Tag("v1"), img, o...), // mounts what it can
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := remote.Image(repo.Tag("v1"), o...)
	if err != nil {
		t.Fatal(err)
	}
	if digest(t, got) != digest(t, img) {
		t.Errorf("pulled %s, pushed %s", digest(t, got), digest(t, img))
	}
	layers, _ := got.Layers()
	for _, l := range layers {
		rc, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(rc)
		if err != nil || digestOf(raw) != digest(t, l) {
			t.Errorf("layer %s: %v", digest(t, l), err)
		}
	}
	if tags, err := remote.List(repo, o...); err != nil || !slices.Equal(tags, []string{"multi", "v1", "v2"}) {
		t.Errorf("tags %q, %v", tags, err)
	}
	if names, err := remote.Catalog(t.Context(), repo.Registry, o...); err != nil || !slices.Equal(names, []string{"a/other", "a/team/app"}) {
		t.Errorf("catalog %q, %v", names, err)
	}
	if names, err := remote.Catalog(t.Context(), repo.Registry, options(t, "b")...); err != nil || len(names) != 0 {
		t.Errorf("catalog of a stranger %q, %v", names, err)
	}
	if blobs, _ := os.ReadDir(filepath.Join(s.dir, "blobs")); len(blobs) != 3+2+2*(2+2)+1 {
		t.Errorf("%d blobs are stored, want each once", len(blobs))
	}
	m, err := s.Manifest(t.Context(), kept("a", "team/app"), "v1", "test")
	if err != nil || m.Digest != digest(t, img) {
		t.Errorf("in process: %s, %v", m.Digest, err)
	}
}

func TestTagsAreListedInPages(t *testing.T) {
	s := serve(t, registry.Options{})
	img := randomImage(t, 1)
	o := options(t, "a")
	for _, tag := range []string{"c", "a", "b"} {
		if err := remote.Write(s.repo(t, "a/app").Tag(tag), img, o...); err != nil {
			t.Fatal(err)
		}
	}
	resp, body := s.do(t, "a", http.MethodGet, "/v2/a/app/tags/list?n=2", nil)
	if !strings.Contains(body, `["a","b"]`) || resp.Header.Get("Link") != `</v2/a/app/tags/list?last=b&n=2>; rel="next"` {
		t.Errorf("first page %s, %s", body, resp.Header.Get("Link"))
	}
	resp, body = s.do(t, "a", http.MethodGet, "/v2/a/app/tags/list?last=b&n=2", nil)
	if !strings.Contains(body, `["c"]`) || resp.Header.Get("Link") != "" {
		t.Errorf("last page %s, %s", body, resp.Header.Get("Link"))
	}
}

func TestStrangersGetNothing(t *testing.T) {
	s := serve(t, registry.Options{})
	img := randomImage(t, 1)
	if err := remote.Write(s.repo(t, "a/app").Tag("v1"), img, options(t, "a")...); err != nil {
		t.Fatal(err)
	}
	layers, _ := img.Layers()
	blob := digest(t, layers[0])
	resp := s.status(t, http.StatusUnauthorized, "UNAUTHORIZED", "", http.MethodGet, "/v2/", nil)
	if resp.Header.Get("Www-Authenticate") == "" {
		t.Error("no challenge: clients would not send their credentials")
	}
	s.status(t, http.StatusUnauthorized, "UNAUTHORIZED", "", http.MethodGet, "/v2/a/app/manifests/v1", nil)
	// Forbidden and missing manifests get the same answer.
	s.status(t, http.StatusNotFound, "MANIFEST_UNKNOWN", "b", http.MethodGet, "/v2/a/app/manifests/v1", nil)
	s.status(t, http.StatusNotFound, "MANIFEST_UNKNOWN", "b", http.MethodGet, "/v2/a/none/manifests/v1", nil)
	s.status(t, http.StatusNotFound, "BLOB_UNKNOWN", "b", http.MethodGet, "/v2/a/app/blobs/"+blob, nil)
	s.status(t, http.StatusNotFound, "NAME_UNKNOWN", "b", http.MethodGet, "/v2/a/app/tags/list", nil)
	for _, method := range []string{http.MethodPut, http.MethodDelete} {
		s.status(t, http.StatusForbidden, "DENIED", "b", method, "/v2/a/app/manifests/v1", nil)
	}
	s.status(t, http.StatusForbidden, "DENIED", "b", http.MethodPost, "/v2/a/app/blobs/uploads/", nil)
	// An existing blob is neither seen nor mounted through another user's repository.
	s.status(t, http.StatusNotFound, "", "b", http.MethodHead, "/v2/b/app/blobs/"+blob, nil)
	s.status(t, http.StatusAccepted, "", "b", http.MethodPost, "/v2/b/app/blobs/uploads/?from=a/app&mount="+blob, nil)
	s.status(t, http.StatusNotFound, "BLOB_UNKNOWN", "b", http.MethodGet, "/v2/b/app/blobs/"+blob, nil)
	// A manifest that names it gives no access either.
	raw, _ := img.RawManifest()
	s.status(t, http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", "b", http.MethodPut, "/v2/b/app/manifests/v1", raw,
		"Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
}

func TestUploadsInPieces(t *testing.T) {
	s := serve(t, registry.Options{})
	data := make([]byte, 3000)
	_, _ = rand.Read(data)
	start := func() string {
		return s.status(t, http.StatusAccepted, "", "a", http.MethodPost, "/v2/a/app/blobs/uploads/", nil).Header.Get("Location")
	}
	at := start()
	s.status(t, http.StatusAccepted, "", "a", http.MethodPatch, at, data[:1000], "Content-Range", "0-999")
	s.status(t, http.StatusRequestedRangeNotSatisfiable, "continues at byte 1000", "a", http.MethodPatch, at, data[2000:], "Content-Range", "2000-2999")
	if got := s.status(t, http.StatusNoContent, "", "a", http.MethodGet, at, nil).Header.Get("Range"); got != "0-999" {
		t.Errorf("status says %s", got)
	}
	// A restart of the server loses nothing of an upload.
	s2 := serve(t, registry.Options{Dir: s.dir})
	s2.status(t, http.StatusAccepted, "", "a", http.MethodPatch, at, data[1000:2000], "Content-Range", "1000-1999")
	s2.status(t, http.StatusCreated, "", "a", http.MethodPut, at+"?digest="+digestOf(data), data[2000:])
	if _, body := s2.do(t, "a", http.MethodGet, "/v2/a/app/blobs/"+digestOf(data), nil); body != string(data) {
		t.Error("the blob is not what was sent")
	}
	resp, body := s2.do(t, "a", http.MethodGet, "/v2/a/app/blobs/"+digestOf(data), nil, "Range", "bytes=10-19")
	if resp.StatusCode != http.StatusPartialContent || body != string(data[10:20]) {
		t.Errorf("range answers %d", resp.StatusCode)
	}
	s.status(t, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "a", http.MethodPatch, at, data)

	at = start()
	s.status(t, http.StatusBadRequest, "DIGEST_INVALID", "a", http.MethodPut, at+"?digest="+digestOf(nil), data)
	s.status(t, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "a", http.MethodGet, at, nil)
	at = start()
	s.status(t, http.StatusNoContent, "", "a", http.MethodDelete, at, nil)
	s.status(t, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "a", http.MethodPut, at+"?digest="+digestOf(data), data)
	// An upload belongs to one repository.
	at = start()
	s.status(t, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "a", http.MethodPatch, strings.Replace(at, "a/app", "a/other", 1), data)
	s.status(t, http.StatusCreated, "", "a", http.MethodPost, "/v2/a/app/blobs/uploads/?digest="+digestOf(data[:5]), data[:5])
}

func TestBadRequestsAreRefused(t *testing.T) {
	s := serve(t, registry.Options{ManifestBytes: 2000, BlobBytes: 1000})
	const oci = "application/vnd.oci.image.manifest.v1+json"
	put := func(body string, contentType ...string) (string, []byte, []string) {
		return "/v2/a/app/manifests/v1", []byte(body), append([]string{"Content-Type"}, append(contentType, oci)[0])
	}
	tests := []struct {
		name, method string
		status       int
		code         string
		path         string
		body         []byte
		headers      []string
	}{
		{"not JSON", http.MethodPut, 400, "MANIFEST_INVALID", "", []byte("x"), nil},
		{"schema 1", http.MethodPut, 400, "MANIFEST_INVALID", "", []byte(`{"schemaVersion":1,"config":{"digest":"` + digestOf(nil) + `"}}`), nil},
		{"unknown type", http.MethodPut, 400, "MANIFEST_INVALID", "", []byte(`{"schemaVersion":2}`), []string{"Content-Type", "text/plain"}},
		{"no config", http.MethodPut, 400, "MANIFEST_INVALID", "", []byte(`{"schemaVersion":2}`), nil},
		{"two types", http.MethodPut, 400, "MANIFEST_INVALID", "", []byte(`{"schemaVersion":2,"mediaType":"application/x"}`), nil},
		{"bad digest", http.MethodPut, 400, "MANIFEST_INVALID", "", []byte(`{"schemaVersion":2,"config":{"digest":"sha256:../../x"}}`), nil},
		{"missing blob", http.MethodPut, 400, "MANIFEST_BLOB_UNKNOWN", "", []byte(`{"schemaVersion":2,"config":{"digest":"` + digestOf(nil) + `"}}`), nil},
		{"too large", http.MethodPut, 413, "SIZE_INVALID", "", bytes.Repeat([]byte(" "), 2001), nil},
		{"bad tag", http.MethodPut, 400, "TAG_INVALID", "/v2/a/app/manifests/.tag", []byte(`{"schemaVersion":2,"config":{"digest":"` + digestOf(nil) + `"}}`), nil},
		{"other digest", http.MethodPut, 400, "DIGEST_INVALID", "/v2/a/app/manifests/" + digestOf(nil), []byte(`{"schemaVersion":2,"config":{"digest":"` + digestOf(nil) + `"}}`), nil},
		{"blob too large", http.MethodPost, 413, "SIZE_INVALID", "/v2/a/app/blobs/uploads/?digest=" + digestOf(nil), bytes.Repeat([]byte("x"), 1001), nil},
		{"name with dots", http.MethodGet, 400, "NAME_INVALID", "/v2/a/%2e%2e/%2e%2e/tags/list", nil, nil},
		{"name in capitals", http.MethodGet, 400, "NAME_INVALID", "/v2/a/APP/tags/list", nil, nil},
		{"name of the registry's own files", http.MethodGet, 400, "NAME_INVALID", "/v2/a/app/_/tags/list", nil, nil},
		{"long name", http.MethodGet, 400, "NAME_INVALID", "/v2/a/" + strings.Repeat("x", 300) + "/tags/list", nil, nil},
		{"unknown name", http.MethodGet, 404, "NAME_UNKNOWN", "/v2/a/none/tags/list", nil, nil},
		{"unknown manifest", http.MethodGet, 404, "NAME_UNKNOWN", "/v2/a/none/manifests/v1", nil, nil},
		{"blob by tag", http.MethodGet, 400, "DIGEST_INVALID", "/v2/a/app/blobs/v1", nil, nil},
		{"upload outside", http.MethodPatch, 404, "BLOB_UPLOAD_UNKNOWN", "/v2/a/app/blobs/uploads/%2e%2e", nil, nil},
		{"unknown resource", http.MethodGet, 404, "UNSUPPORTED", "/v2/a/app/things", nil, nil},
		{"bad method", http.MethodPatch, 405, "UNSUPPORTED", "/v2/a/app/tags/list", nil, nil},
		{"bad page", http.MethodGet, 400, "PAGINATION_NUMBER_INVALID", "/v2/_catalog?n=-1", nil, nil},
		{"bad referrer", http.MethodGet, 400, "DIGEST_INVALID", "/v2/a/app/referrers/v1", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path, _, headers := put("")
			if tt.path != "" {
				path = tt.path
			}
			if tt.headers != nil {
				headers = tt.headers
			}
			s.status(t, tt.status, tt.code, "a", tt.method, path, tt.body, headers...)
		})
	}
}

func TestDelete(t *testing.T) {
	s := serve(t, registry.Options{})
	repo := s.repo(t, "a/app")
	o := options(t, "a")
	img := randomImage(t, 1)
	for _, tag := range []string{"v1", "v2", "v3"} {
		if err := remote.Write(repo.Tag(tag), img, o...); err != nil {
			t.Fatal(err)
		}
	}
	if err := remote.Delete(repo.Tag("v3"), o...); err != nil {
		t.Fatal(err)
	}
	if tags, err := remote.List(repo, o...); err != nil || !slices.Equal(tags, []string{"v1", "v2"}) {
		t.Errorf("tags %q, %v", tags, err)
	}
	if err := remote.Delete(repo.Digest(digest(t, img)), o...); err != nil {
		t.Fatal(err)
	}
	if tags, err := remote.List(repo, o...); err != nil || len(tags) != 0 {
		t.Errorf("tags %q, %v", tags, err)
	}
	if _, err := s.Manifest(t.Context(), kept("a", "app"), digest(t, img), "test"); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("deleted manifest: %v", err)
	}
	s.status(t, http.StatusNotFound, "MANIFEST_UNKNOWN", "a", http.MethodDelete, "/v2/a/app/manifests/v9", nil)
}

func TestReferrers(t *testing.T) {
	s := serve(t, registry.Options{})
	repo := s.repo(t, "a/app")
	o := options(t, "a")
	img := randomImage(t, 1)
	if err := remote.Write(repo.Tag("v1"), img, o...); err != nil {
		t.Fatal(err)
	}
	desc, err := remote.Head(repo.Tag("v1"), o...)
	if err != nil {
		t.Fatal(err)
	}
	signature, ok := mutate.Subject(mutate.Annotations(randomImage(t, 1), map[string]string{"by": "me"}).(v1.Image), *desc).(v1.Image)
	if !ok {
		t.Fatal("no image")
	}
	if err := remote.Write(repo.Digest(digest(t, signature)), signature, o...); err != nil {
		t.Fatal(err)
	}
	index, err := remote.Referrers(repo.Digest(desc.Digest.String()), o...)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 1 || m.Manifests[0].Digest.String() != digest(t, signature) || m.Manifests[0].Annotations["by"] != "me" {
		t.Errorf("referrers %+v, %v", m, err)
	}
	// The collector keeps an untagged referrer of something that stays.
	age(t, s.dir)
	if _, err := s.GC(t.Context(), registry.Policy{UntaggedAge: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Manifest(t.Context(), kept("a", "app"), digest(t, signature), "test"); err != nil {
		t.Error(err)
	}
}

// age makes every file look a week old.
func age(tb testing.TB, dir string) {
	tb.Helper()
	past := time.Now().Add(-7 * 24 * time.Hour)
	err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(p, past, past)
	})
	if err != nil {
		tb.Fatal(err)
	}
}

func TestGC(t *testing.T) {
	s := serve(t, registry.Options{})
	repo := s.repo(t, "a/app")
	o := options(t, "a")
	tagged, replaced, claimed := randomImage(t, 2), randomImage(t, 2), randomImage(t, 2)
	index, err := random.Index(512, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		remote.Write(repo.Tag("v1"), replaced, o...), remote.Write(repo.Tag("v1"), claimed, o...),
		remote.Write(repo.Tag("v1"), tagged, o...), remote.WriteIndex(repo.Tag("multi"), index, o...),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	lone := []byte("a blob that no manifest names")
	s.status(t, http.StatusCreated, "", "a", http.MethodPost, "/v2/a/app/blobs/uploads/?digest="+digestOf(lone), lone)
	old := s.status(t, http.StatusAccepted, "", "a", http.MethodPost, "/v2/a/app/blobs/uploads/", nil).Header.Get("Location")
	s.status(t, http.StatusAccepted, "", "a", http.MethodPatch, old, []byte("half"))

	keep := func(d string) bool { return d == digest(t, claimed) }
	if freed, err := s.GC(t.Context(), registry.Policy{UntaggedAge: time.Hour, Keep: keep}); err != nil || freed != 0 {
		t.Fatalf("freed %d bytes of what is young, %v", freed, err)
	}
	age(t, s.dir)
	young := s.status(t, http.StatusAccepted, "", "a", http.MethodPost, "/v2/a/app/blobs/uploads/", nil).Header.Get("Location")
	freed, err := s.GC(t.Context(), registry.Policy{UntaggedAge: time.Hour, Keep: keep})
	if err != nil || freed == 0 {
		t.Fatalf("freed %d bytes, %v", freed, err)
	}
	for _, img := range []v1.Image{tagged, claimed} {
		got, err := remote.Image(repo.Digest(digest(t, img)), o...)
		if err != nil {
			t.Fatal(err)
		}
		if layers, err := got.Layers(); err != nil || len(layers) != 2 {
			t.Errorf("%d layers, %v", len(layers), err)
		}
		if _, err := remote.Get(repo.Digest(digest(t, img)), o...); err != nil {
			t.Error(err)
		}
	}
	inner, _ := index.IndexManifest()
	for _, m := range inner.Manifests {
		if _, err := s.Manifest(t.Context(), kept("a", "app"), m.Digest.String(), "test"); err != nil {
			t.Errorf("part of an index: %v", err)
		}
	}
	if _, err := s.Manifest(t.Context(), kept("a", "app"), digest(t, replaced), "test"); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("manifest that lost its tag: %v", err)
	}
	layers, _ := replaced.Layers()
	s.status(t, http.StatusNotFound, "BLOB_UNKNOWN", "a", http.MethodGet, "/v2/a/app/blobs/"+digest(t, layers[0]), nil)
	s.status(t, http.StatusNotFound, "BLOB_UNKNOWN", "a", http.MethodGet, "/v2/a/app/blobs/"+digestOf(lone), nil)
	s.status(t, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "a", http.MethodGet, old, nil)
	s.status(t, http.StatusNoContent, "", "a", http.MethodGet, young, nil)
	if blobs, _ := os.ReadDir(filepath.Join(s.dir, "blobs")); len(blobs) != 2*(2+2)+2*(1+2)+1 {
		t.Errorf("%d blobs are left", len(blobs))
	}
}

// TestGCOfUnreadManifest: while a manifest cannot be read, its repository keeps its blobs, and others are
// collected.
func TestGCOfUnreadManifest(t *testing.T) {
	s := serve(t, registry.Options{})
	unread, other := randomImage(t, 2), randomImage(t, 2)
	for path, img := range map[string]v1.Image{"a/app": unread, "b/app": other} {
		if err := remote.Write(s.repo(t, path).Tag("v1"), img, options(t, path[:1])...); err != nil {
			t.Fatal(err)
		}
	}
	s.status(t, http.StatusAccepted, "", "b", http.MethodDelete, "/v2/b/app/manifests/"+digest(t, other), nil)
	age(t, s.dir)
	manifest := filepath.Join(s.dir, "blobs", strings.TrimPrefix(digest(t, unread), "sha256:"))
	if err := errors.Join(os.Rename(manifest, manifest+".away"), os.Mkdir(manifest, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(t.Context(), registry.Policy{}); err == nil || !strings.Contains(err.Error(), kept("a", "app")) {
		t.Errorf("GC: %v", err)
	}
	layers, _ := unread.Layers()
	s.status(t, http.StatusOK, "", "a", http.MethodGet, "/v2/a/app/blobs/"+digest(t, layers[0]), nil)
	layers, _ = other.Layers()
	if _, err := os.Stat(filepath.Join(s.dir, "blobs", strings.TrimPrefix(digest(t, layers[0]), "sha256:"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("layer of a deleted image in another repository: %v", err)
	}
}

// TestConcurrentPushesAndCollections: acknowledged pushes survive concurrent work.
func TestConcurrentPushesAndCollections(t *testing.T) {
	s := serve(t, registry.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var collector, pushers sync.WaitGroup
	collector.Go(func() {
		for ctx.Err() == nil {
			if _, err := s.GC(ctx, registry.Policy{UntaggedAge: time.Hour}); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	shared := randomImage(t, 2)
	for i := range 6 {
		o := options(t, "a")
		pushers.Go(func() {
			repo := s.repo(t, fmt.Sprintf("a/app%d", i%3))
			for n := range 3 {
				tag := repo.Tag(fmt.Sprintf("t%d-%d", i, n))
				if err := remote.Write(tag, shared, o...); err != nil {
					t.Error(err)
					return
				}
				if m, err := s.Manifest(t.Context(), kept("a", fmt.Sprintf("app%d", i%3)), tag.TagStr(), "test"); err != nil || m.Digest != digest(t, shared) {
					t.Errorf("%s: %v", tag, err)
				}
			}
		})
	}
	pushers.Wait()
	cancel()
	collector.Wait()
}

// TestSkopeo copies with a client that shares no code with the server.
func TestSkopeo(t *testing.T) {
	skopeo, err := exec.LookPath("skopeo")
	if err != nil {
		t.Skip("skopeo is not installed")
	}
	s := serve(t, registry.Options{})
	work := t.TempDir()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for range 3 {
		l, err := random.Layer(4096, types.OCILayer)
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	p, err := layout.Write(filepath.Join(work, "in"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "x"})); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), skopeo, args...)
		cmd.Env = append(os.Environ(), "TMPDIR="+work, "XDG_RUNTIME_DIR="+work)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("skopeo %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	at := "docker://" + s.host + "/a/app:v1"
	run("--insecure-policy", "copy", "--dest-tls-verify=false", "--dest-creds", "a:secret", "oci:"+filepath.Join(work, "in")+":x", at)
	var inspected struct{ Digest string }
	if err := json.Unmarshal([]byte(run("inspect", "--tls-verify=false", "--creds", "a:secret", at)), &inspected); err != nil {
		t.Fatal(err)
	}
	m, err := s.Manifest(t.Context(), kept("a", "app"), "v1", "test")
	if err != nil || inspected.Digest != m.Digest {
		t.Errorf("skopeo sees %s, the registry has %s, %v", inspected.Digest, m.Digest, err)
	}
	run("--insecure-policy", "copy", "--src-tls-verify=false", "--src-creds", "a:secret", at, "dir:"+filepath.Join(work, "out"))
	raw, err := os.ReadFile(filepath.Join(work, "out", "manifest.json"))
	if err != nil || digestOf(raw) != m.Digest {
		t.Errorf("skopeo brought back another manifest, %v", err)
	}
	run("--insecure-policy", "copy", "--src-tls-verify=false", "--src-creds", "a:secret", "--dest-tls-verify=false", "--dest-creds", "a:secret",
		at, "docker://"+s.host+"/a/copy:v1")
	run("delete", "--tls-verify=false", "--creds", "a:secret", at)
	if _, err := s.Manifest(t.Context(), kept("a", "app"), "v1", "test"); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("deleted by skopeo: %v", err)
	}
}

// FuzzRequests: no path or manifest makes the registry fail or write outside.
func FuzzRequests(f *testing.F) {
	for _, p := range []string{"a/app/manifests/v1", "a/app/blobs/uploads/", "a/_/blobs/uploads/x", "../../x/tags/list", "_catalog"} {
		f.Add(http.MethodPut, p, []byte(`{"schemaVersion":2,"config":{"digest":"x"}}`))
		f.Add(http.MethodGet, p, []byte{})
		f.Add(http.MethodPost, p, []byte{})
	}
	outer := f.TempDir()
	r := registry.New(registry.Options{Dir: filepath.Join(outer, "r"), Log: slog.New(slog.DiscardHandler)})
	if err := r.Open(context.WithoutCancel(f.Context())); err != nil {
		f.Fatal(err)
	}
	h := r.Handler(access{})
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", bytes.NewReader(body))
		req.Method = method
		req.URL.Path = "/v2/" + path
		req.SetBasicAuth("a", "secret")
		req.Header.Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code >= 500 {
			t.Fatalf("%s %q answers %d %s", method, path, w.Code, w.Body)
		}
		if entries, _ := os.ReadDir(outer); len(entries) != 1 {
			t.Fatal("wrote outside of its directory")
		}
	})
}

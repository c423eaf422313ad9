package image_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

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
	// It goes on with unpacked images when pushed ones cannot be read.
	manifest := filepath.Join(dir, "registry", "blobs", strings.TrimPrefix(digest(t, img), "sha256:"))
	if err := errors.Join(os.Remove(manifest), os.Mkdir(manifest, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(t.Context(), image.Policy{MaxAge: 1}); err == nil {
		t.Error("GC reports no error")
	}
	if n, _ := left(t, dir); n != 0 {
		t.Errorf("%d layers of an image that expired", n)
	}
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

package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
)

// attacker and victim belong to two organizations.
var (
	attacker = image.Puller{Org: "orgattacker", Slug: "evil"}
	victim   = image.Puller{Org: "orgvictim", Slug: "acme"}
)

func raw(tb testing.TB, l v1.Layer) []byte {
	tb.Helper()
	rc, err := l.Compressed()
	if err != nil {
		tb.Fatal(err)
	}
	b, err := io.ReadAll(rc)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func isBlob(tb testing.TB, r *http.Request, l v1.Layer) bool {
	tb.Helper()
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, digest(tb, l))
}

// TestRegistryThatDrips: if the registry of one organization sends almost nothing, only that
// organization's pull fails. A pull of the same layer from another registry is not delayed.
func TestRegistryThatDrips(t *testing.T) {
	shared := files(t, map[string]string{"a": strings.Repeat("a", 1000)})
	slow, good := serve(t), serve(t)
	first, second := slow.push(t, "app:v1", imageOf(t, shared)), slow.push(t, "app:v2", imageOf(t, shared, files(t, map[string]string{"b": "1"})))
	theirs := good.push(t, "app:v1", imageOf(t, shared))
	s := open(t, image.Options{Limits: image.Limits{RateWindow: 3 * time.Second, RetryPause: 1, OrgPulls: 1}})
	dripping := make(chan struct{}, 100)
	slow.on(func(w http.ResponseWriter, r *http.Request) bool {
		if !isBlob(t, r, shared) {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(raw(t, shared))))
		_, _ = w.Write(raw(t, shared)[:1])
		w.(http.Flusher).Flush()
		dripping <- struct{}{}
		<-r.Context().Done()
		return true
	})
	var group sync.WaitGroup
	for _, ref := range []string{first, second} {
		group.Go(func() {
			_, err := s.Pull(t.Context(), attacker, ref, nil)
			wantError(t, err, hangar.CodeUnavailable, "registry_unreachable", "registry "+slow.host+" sends too slowly")
		})
	}
	<-dripping
	if _, err := s.Pull(t.Context(), victim, theirs, nil); err != nil {
		t.Errorf("the pull of another organization: %v", err)
	}
	group.Wait()
}

// TestRegistryThatNeverEnds: an endless response ends at the deadline, even at full speed.
func TestRegistryThatNeverEnds(t *testing.T) {
	l := files(t, map[string]string{"a": strings.Repeat("a", 1000)})
	u := serve(t)
	ref := u.push(t, "app:v1", imageOf(t, l))
	s := open(t, image.Options{Limits: image.Limits{MinRate: 1, PullTime: 3 * time.Second}})
	u.on(func(w http.ResponseWriter, r *http.Request) bool {
		if !isBlob(t, r, l) {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(raw(t, l))))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	})
	_, err := s.Pull(t.Context(), attacker, ref, nil)
	wantError(t, err, hangar.CodeUnavailable, "registry_unreachable", "took longer than 3s")
	u.on(func(w http.ResponseWriter, r *http.Request) bool { // the same for manifests
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	})
	s = open(t, image.Options{Limits: image.Limits{MinRate: 1, ResolveTime: 200 * time.Millisecond}})
	_, err = s.Resolve(t.Context(), attacker, ref)
	wantError(t, err, hangar.CodeUnavailable, "registry_unreachable", "registry "+u.host+" does not answer in time")
}

// TestRegistryThatLies: junk in place of a blob fails its own pull, while another organization gets
// the layer, and neither error reveals the other's registry.
func TestRegistryThatLies(t *testing.T) {
	shared := files(t, map[string]string{"a": strings.Repeat("a", 1000)})
	lying, good := serve(t), serve(t)
	bad, theirs := lying.push(t, "app:v1", imageOf(t, shared)), good.push(t, "app:v1", imageOf(t, shared))
	s := open(t, image.Options{})
	asked, gate := make(chan struct{}, 100), make(chan struct{})
	hold := func(answer []byte) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !isBlob(t, r, shared) {
				return false
			}
			asked <- struct{}{}
			<-gate
			_, _ = w.Write(answer)
			return true
		}
	}
	lying.on(hold(bytes.Repeat([]byte{'x'}, len(raw(t, shared)))))
	good.on(hold(raw(t, shared)))
	var group sync.WaitGroup
	group.Go(func() {
		_, err := s.Pull(t.Context(), attacker, bad, nil)
		wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadImage, "failed to pull image "+bad)
		if strings.Contains(err.Error(), good.host) {
			t.Errorf("the error names the registry of another organization: %v", err)
		}
	})
	group.Go(func() {
		if _, err := s.Pull(t.Context(), victim, theirs, nil); err != nil {
			t.Errorf("the pull of another organization: %v", err)
		}
	})
	<-asked
	<-asked // both are in flight at the same time
	close(gate)
	group.Wait()
}

// claims serves a manifest and a config, and blobs only if they are given.
func claims(t *testing.T, manifest, config []byte, mediaType string, blobs map[string][]byte) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch base := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]; {
		case r.URL.Path == "/v2/":
		case strings.Contains(r.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", mediaType)
			_, _ = w.Write(manifest)
		case base == sum(config):
			_, _ = w.Write(config)
		case blobs[base] != nil:
			_, _ = w.Write(blobs[base])
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://") + "/claim:v1"
}

// TestLayersOfOthers: an organization that only knows the digests of another's unpacked layers does
// not get them, whatever its manifests and configs claim.
func TestLayersOfOthers(t *testing.T) {
	secret := files(t, map[string]string{"secret": strings.Repeat("the victim's", 100)})
	img := imageOf(t, secret)
	private := serve(t)
	ref := private.push(t, "private:v1", img)
	dir := t.TempDir()
	s := open(t, image.Options{Dir: dir, Limits: image.Limits{RetryPause: 1}})
	if _, err := s.Pull(t.Context(), victim, ref, nil); err != nil {
		t.Fatal(err)
	}
	manifest, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	junk := raw(t, files(t, map[string]string{"junk": "junk"}))
	forged := fmt.Appendf(nil, `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":%q,"size":%d}]}`,
		sum(config), len(config), sum(junk), len(junk))
	const oci = "application/vnd.oci.image.manifest.v1+json"
	for name, tt := range map[string]struct {
		manifest []byte
		blobs    map[string][]byte
		reason   string
		says     string
	}{
		"a config that names the layer over a junk blob":   {forged, map[string][]byte{sum(junk): junk}, hangar.ReasonBadImage, "unpacks to"},
		"the manifest of the image, without its blobs":     {manifest, nil, hangar.ReasonImageNotFound, "not found"},
		"the manifest of the image, with junk for a blob":  {manifest, map[string][]byte{digest(t, secret): bytes.Repeat([]byte{1}, len(raw(t, secret)))}, hangar.ReasonBadImage, "has the digest"},
		"the manifest of the image, with a part of a blob": {manifest, map[string][]byte{digest(t, secret): raw(t, secret)[:20]}, "registry_unreachable", "ended after"},
	} {
		t.Run(name, func(t *testing.T) {
			at := claims(t, tt.manifest, config, oci, tt.blobs)
			for _, ref := range []string{at, at + "@" + sum(tt.manifest)} {
				// The digest of a reference is no secret, but the attacker's Machine gets nothing
				// by it.
				if named, err := s.Resolve(t.Context(), attacker, ref); err != nil || named.Digest != sum(tt.manifest) {
					t.Errorf("resolved to %+v, %v", named, err)
				}
				_, err := s.Pull(t.Context(), attacker, ref, nil)
				if hangar.ReasonOf(err) != tt.reason || !strings.Contains(fmt.Sprint(err), tt.says) {
					t.Errorf("%s: %v (%s), want %s, %q", ref, err, hangar.ReasonOf(err), tt.reason, tt.says)
				}
				if strings.Contains(fmt.Sprint(err), private.host) {
					t.Errorf("the error names the registry of another organization: %v", err)
				}
			}
		})
	}
	// A pinned reference to the victim's repository is resolved by that registry, not from memory.
	private.on(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	_, err = s.Pull(t.Context(), attacker, ref+"@"+digest(t, img), nil)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "access denied")
	if _, err := s.Pull(t.Context(), victim, ref+"@"+digest(t, img), nil); err != nil {
		t.Errorf("the victim: %v", err)
	}
	// An organization that has the blob shares the layer.
	at := claims(t, manifest, config, oci, map[string][]byte{digest(t, secret): raw(t, secret)})
	got, err := s.Pull(t.Context(), image.Puller{Org: "orgfriend", Slug: "friend"}, at, nil)
	if err != nil || len(got.Layers) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if layers, tmp := left(t, dir); layers != 1 || tmp != 0 {
		t.Errorf("%d layers, %d half-made things", layers, tmp)
	}
}

// TestAddressesThatAreNotPublic: references, token realms and redirects of a tenant reach nothing
// on the server, in private networks or at metadata services, and errors reveal nothing.
func TestAddressesThatAreNotPublic(t *testing.T) {
	const secret = "SECRET-of-an-inner-service"
	var reached atomic.Int64
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reached.Add(1)
		_, _ = io.WriteString(w, secret)
	}))
	t.Cleanup(inner.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(inner.URL, "http://"), ":")
	var realm, location atomic.Pointer[string]
	outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case realm.Load() != nil:
			w.Header().Set("Www-Authenticate", `Bearer realm="`+*realm.Load()+`",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path != "/v2/" && location.Load() != nil:
			w.Header().Set("Location", *location.Load())
			w.WriteHeader(http.StatusTemporaryRedirect)
		}
	}))
	t.Cleanup(outer.Close)
	host := strings.TrimPrefix(outer.URL, "http://")
	s := open(t, image.Options{Dialer: dialer(t, host)})
	check := func(ref, rule string) {
		t.Helper()
		_, err := s.Resolve(t.Context(), attacker, ref)
		if err == nil || rule != "" && (hangar.CodeOf(err) != hangar.CodeInvalid || hangar.ReasonOf(err) != hangar.ReasonRegistryNotAllowed || !strings.Contains(err.Error(), rule)) {
			t.Errorf("%s: %v (%s), want it refused for %q", ref, err, hangar.ReasonOf(err), rule)
		}
		for _, word := range []string{secret, "fdaa:0", "169.254", port} {
			if strings.Contains(fmt.Sprint(err), word) && !strings.Contains(ref, word) {
				t.Errorf("%s: the error reveals %s: %v", ref, word, err)
			}
		}
	}
	for ref, rule := range map[string]string{
		"localhost:" + port + "/x": "a loopback address", "127.0.0.1:" + port + "/x": "a loopback address", "registry.localhost:" + port + "/x": "a loopback address",
		"[::1]:" + port + "/x": "a loopback address", "[::ffff:127.0.0.1]:" + port + "/x": "a loopback address", "0.0.0.0:" + port + "/x": "an unspecified address",
		"169.254.169.254/latest": "a metadata service", "[fd00:ec2::254]/latest": "a metadata service", "10.0.0.1:5000/x": "a private address",
		"[fdaa:0:1:a7b::3]:8080/x": "a private address", "100.64.0.1/x": "carrier's NAT", "[64:ff9b::7f00:1]:" + port + "/x": "a loopback address",
	} {
		check(ref, rule)
	}
	for _, to := range []string{inner.URL + "/token", "http://localhost:" + port + "/token", "http://x.localhost:" + port, "https://169.254.169.254/", "https://[fdaa:0:1:a7b::3]:8080/"} {
		realm.Store(&to)
		check(host+"/realm", "")
	}
	realm.Store(nil)
	for to, rule := range map[string]string{
		inner.URL + "/v2/": "a loopback address", "http://localhost:" + port: "a loopback address", "https://169.254.169.254/latest": "a metadata service",
		"https://[fdaa:0:1:a7b::3]:8080/": "a private address", "https://192.168.0.1/": "a private address",
		"http://10.0.0.1/": "", // not even asked: it is not TLS
	} {
		location.Store(&to)
		check(host+"/redirect", rule)
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("the inner service was asked %d times", n)
	}
}

// TestForeignLayersAreNotFetched: the server ignores the URLs that a manifest may name for a layer.
func TestForeignLayersAreNotFetched(t *testing.T) {
	var reached atomic.Int64
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(inner.Close)
	img := imageOf(t, files(t, map[string]string{"a": "1"}))
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, _ := img.Layers()
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"config":{"digest":%q,"size":%d},"layers":[{"mediaType":"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip","digest":%q,"size":%d,"urls":[%q]}]}`,
		sum(config), len(config), digest(t, layers[0]), len(raw(t, layers[0])), inner.URL+"/layer")
	_, err = open(t, image.Options{}).Pull(t.Context(), attacker, claims(t, manifest, config, "", nil), nil)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "not found")
	if reached.Load() != 0 {
		t.Error("the URL was asked")
	}
}

// TestErrorsHoldNothingForeign: errors contain no part of a registry's or token service's response.
func TestErrorsHoldNothingForeign(t *testing.T) {
	const secret = "SECRET-body"
	var answer atomic.Pointer[http.HandlerFunc]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) }))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	s := open(t, image.Options{})
	try := func(name string, h http.HandlerFunc) {
		t.Helper()
		answer.Store(&h)
		_, err := s.Pull(t.Context(), attacker, host+"/app:v1", nil)
		if err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", name, err)
		}
	}
	body := fmt.Sprintf(`{"errors":[{"code":%q,"message":%q,"detail":%q}]}`, secret, secret, secret)
	for _, status := range []int{400, 401, 403, 404, 418, 429, 500, 503} {
		for _, path := range []string{"/v2/", "/v2/app/"} {
			try(fmt.Sprint(status, " of ", path), func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, path) {
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(status)
					_, _ = io.WriteString(w, body)
				}
			})
		}
	}
	for _, token := range []string{secret, `{"x":"` + secret + `"}`, `{"token":"` + secret + `"}`} {
		for _, status := range []int{200, 401, 500} {
			try(fmt.Sprint("token service: ", status, token), func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/token" {
					w.WriteHeader(status)
					_, _ = io.WriteString(w, token)
					return
				}
				w.Header().Set("Www-Authenticate", `Bearer realm="`+server.URL+`/token"`)
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = io.WriteString(w, body)
			})
		}
	}
	for _, text := range []string{secret, `"` + secret + `"`, `{"schemaVersion":"` + secret + `"}`, `{"schemaVersion":2,"config":{"digest":"` + secret + `"}}`} {
		try("manifest: "+text, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	}
	try("challenge", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Www-Authenticate", `Bearer x="`+secret+`"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	try("redirect", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "gopher://"+secret+"/%zz")
		w.WriteHeader(http.StatusFound)
	})
	try("header", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			w.Header().Set("X", strings.Repeat(secret, 20000))
		}
	})
}

// TestAdministratorsRegistry: an administrator may name a registry on the server; no tenant of
// another organization gets its images.
func TestAdministratorsRegistry(t *testing.T) {
	u := serve(t)
	img := imageOf(t, files(t, map[string]string{"a": "1"}))
	ref := u.push(t, "app:v1", img)
	s := open(t, image.Options{Dialer: dialer(t)})
	trusted := victim
	trusted.AnyRegistry = true
	if _, err := s.Pull(t.Context(), trusted, ref, nil); err != nil {
		t.Fatal(err)
	}
	before := u.all.Load()
	for _, name := range []string{ref, ref + "@" + digest(t, img)} {
		_, err := s.Pull(t.Context(), attacker, name, nil)
		wantError(t, err, hangar.CodeInvalid, hangar.ReasonRegistryNotAllowed, "leads to a loopback address")
	}
	if n := u.all.Load(); n != before {
		t.Errorf("the registry was asked %d times for a tenant", n-before)
	}
}

// TestOrganizationThatIsRemoved: the images that were pushed and pulled for an organization are
// removed with it. The next organization with its slug finds nothing, even if the daemon was killed
// in between.
func TestOrganizationThatIsRemoved(t *testing.T) {
	dir := t.TempDir()
	const registryName = "registry.hangar.localhost"
	opts := image.Options{Dir: dir, Local: []string{registryName}}
	s := open(t, opts)
	orgs := access{"acme": victim.Org}
	server := httptest.NewServer(s.Registry(orgs))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://")
	img := imageOf(t, files(t, map[string]string{"secret": "of the first"}))
	push(t, at+"/acme/app:v1", img, token)
	ref := registryName + "/acme/app:v1"
	if _, err := s.Pull(t.Context(), victim, ref, nil); err != nil {
		t.Fatal(err)
	}
	usage, err := s.Usage(t.Context(), victim.Org)
	if err != nil || usage.Stored == 0 || usage.Unpacked < int64(len("of the first")) || usage.Uploads != 0 {
		t.Errorf("usage %+v, %v", usage, err)
	}
	if other, err := s.Usage(t.Context(), attacker.Org); err != nil || other != (hangar.ImageUsage{}) {
		t.Errorf("usage of another %+v, %v", other, err)
	}
	// Before the removal, others see nothing of it by any name.
	for _, who := range []image.Puller{attacker, {Org: attacker.Org, Slug: victim.Slug}, {Slug: victim.Slug}} {
		for _, name := range []string{ref, ref + "@" + digest(t, img), registryName + "/acme/app@" + digest(t, img)} {
			_, err := s.Pull(t.Context(), who, name, nil)
			wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "not found")
		}
	}
	if err := s.RemoveOrg(t.Context(), victim.Org); err != nil {
		t.Fatal(err)
	}
	// A request that was admitted before the removal writes nothing any more.
	if status := post(t, server.URL+"/v2/acme/late/blobs/uploads/"); status != http.StatusNotFound {
		t.Errorf("a push for an organization that is removed answers %d", status)
	}
	delete(orgs, "acme")
	if status := post(t, server.URL+"/v2/acme/app/blobs/uploads/"); status != http.StatusNotFound {
		t.Errorf("a push for no organization answers %d", status)
	}
	orgs["acme"] = "orgsuccessor"
	successor := image.Puller{Org: "orgsuccessor", Slug: "acme"}
	check := func(s *image.Store) {
		t.Helper()
		for _, who := range []image.Puller{successor, victim} {
			for _, name := range []string{ref, ref + "@" + digest(t, img)} {
				_, err := s.Pull(t.Context(), who, name, nil)
				wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "not found")
			}
		}
		if list, err := s.List(); err != nil || len(list) != 0 {
			t.Errorf("images %+v, %v", list, err)
		}
		if layers, tmp := left(t, dir); layers != 0 || tmp != 0 {
			t.Errorf("%d layers, %d half-made things", layers, tmp)
		}
		if blobs, err := os.ReadDir(filepath.Join(dir, "registry", "blobs")); err != nil || len(blobs) != 0 {
			t.Errorf("%d blobs, %v", len(blobs), err)
		}
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, opts)
	if err := s.RemoveOrg(t.Context(), victim.Org); err != nil {
		t.Errorf("a second time: %v", err)
	}
	check(s)
	// The successor has a registry of its own.
	server.Config.Handler = s.Registry(orgs)
	push(t, at+"/acme/app:v1", imageOf(t, files(t, map[string]string{"mine": "1"})), token)
	if got, err := s.Pull(t.Context(), successor, ref, nil); err != nil || got.Ref.Digest == digest(t, img) {
		t.Errorf("%+v, %v", got, err)
	}
}

func post(t *testing.T, url string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("x", "token")
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// bomb is a small layer that unpacks to a large one: of zeros, or of a hole in a sparse file.
func bomb(t *testing.T, size int64) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "zeros", Mode: 0o644, Size: size, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(w, zeros{}, size); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return rawLayer(gzipped(t, b.Bytes()))
}

// sparse is a layer with a file of the old GNU format that is one hole.
func sparse(t *testing.T, size int64) v1.Layer {
	t.Helper()
	block := make([]byte, 512)
	copy(block, "hole")
	copy(block[100:], "0000644\x00")
	copy(block[108:], "0000000\x00")
	copy(block[116:], "0000000\x00")
	copy(block[124:], "00000000000\x00") // bytes in the stream
	copy(block[136:], "00000000000\x00")
	copy(block[148:], "        ")
	block[156] = tar.TypeGNUSparse
	copy(block[257:], "ustar  \x00")
	copy(block[386:], fmt.Sprintf("%011o\x00%011o\x00", size, 0)) // one piece of no bytes at the end
	copy(block[483:], fmt.Sprintf("%011o\x00", size))
	check := 0
	for _, c := range block {
		check += int(c)
	}
	copy(block[148:], fmt.Sprintf("%06o\x00 ", check))
	return rawLayer(gzipped(t, append(block, make([]byte, 1024)...)))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestLayerBombs: a few kilobytes never expand to many megabytes, in one layer or in several, and
// leave nothing behind.
func TestLayerBombs(t *testing.T) {
	limits := image.Limits{UnpackedBytes: 64 << 20, Files: 1000, Ratio: 100, RatioSlack: 1 << 20}
	many := map[string]string{}
	for i := range 1200 {
		many[fmt.Sprint("f", i)] = ""
	}
	half := func(n string) v1.Layer {
		content := map[string]string{}
		for i := range 600 {
			content[fmt.Sprint(n, i)] = ""
		}
		return files(t, content)
	}
	for name, tt := range map[string]struct {
		img  v1.Image
		says string
	}{
		"zeros":          {imageOf(t, bomb(t, 32<<20)), "more than 100 times its size"},
		"hole":           {imageOf(t, sparse(t, 32<<20)), "more than 100 times its size"},
		"large hole":     {imageOf(t, sparse(t, 1<<32)), "larger than 67108864 bytes"},
		"files":          {imageOf(t, files(t, many)), "more than 1000 files"},
		"files together": {imageOf(t, half("a"), half("b")), "more than 1000 files, or its image"},
	} {
		t.Run(name, func(t *testing.T) {
			u := serve(t)
			ref := u.push(t, "bomb:v1", tt.img)
			dir := t.TempDir()
			s := open(t, image.Options{Dir: dir, Limits: limits})
			_, err := s.Pull(t.Context(), attacker, ref, nil)
			wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadImage, tt.says)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if layers, tmp := left(t, dir); layers > 1 || tmp != 0 {
				t.Errorf("%d layers, %d half-made things", layers, tmp)
			}
		})
	}
}

// TestIndexesInIndexes: a chain of indexes is followed a few steps.
func TestIndexesInIndexes(t *testing.T) {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "/manifests/") || r.Method == http.MethodHead {
			return
		}
		var n int
		if _, err := fmt.Sscanf(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:], "v%d", &n); err != nil {
			n = 1
		}
		asked.Add(1)
		_, _ = w.Write(chain(20 - int(asked.Load())))
	}))
	t.Cleanup(s.Close)
	_, err := open(t, image.Options{}).Resolve(t.Context(), attacker, strings.TrimPrefix(s.URL, "http://")+"/app:v1")
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadImage, "more than 3 indexes")
	if n := asked.Load(); n > 5 {
		t.Errorf("%d indexes were asked for", n)
	}
}

// chain is an index of an index, n times.
func chain(n int) []byte {
	index := []byte(`{"schemaVersion":2,"manifests":[]}`)
	for range n {
		index = fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"digest":%q,"size":%d}]}`, sum(index), len(index))
	}
	return index
}

// TestFullDisk: a pull without room reports that and leaves nothing partial; once there is room, it
// succeeds.
func TestFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	random := make([]byte, 3<<20)
	for i := range random {
		random[i] = byte(i * 7 >> 3)
	}
	u := serve(t)
	small := u.push(t, "small:v1", imageOf(t, files(t, map[string]string{"a": string(random)})))
	large := u.push(t, "large:v1", imageOf(t, files(t, map[string]string{"b": string(random) + string(random)})))
	s := open(t, image.Options{Dir: dir, Limits: image.Limits{Ratio: 1000}})
	_, err := s.Pull(t.Context(), attacker, large, nil)
	wantError(t, err, hangar.CodeUnavailable, hangar.ReasonDiskFull, "the disk of the server is full")
	if layers, tmp := left(t, dir); layers != 0 || tmp != 0 {
		t.Errorf("%d layers, %d half-made things", layers, tmp)
	}
	if _, err := s.Pull(t.Context(), victim, small, nil); err != nil {
		t.Errorf("what has room: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func sum(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// TestLargeConfigs: a config that the host would keep in memory is bounded, and counts as used by its
// organization.
func TestLargeConfigs(t *testing.T) {
	u := serve(t)
	s := open(t, image.Options{})
	withLabel := func(size int) string {
		img, err := mutate.Config(imageOf(t, files(t, map[string]string{"a": "1"})), v1.Config{Labels: map[string]string{"l": strings.Repeat("l", size)}})
		if err != nil {
			t.Fatal(err)
		}
		return u.push(t, "app:v1", img)
	}
	_, err := s.Pull(t.Context(), attacker, withLabel(1<<20), nil)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadImage, "config is larger than 1048576 bytes")
	if _, err := s.Pull(t.Context(), attacker, withLabel(1<<19), nil); err != nil {
		t.Fatal(err)
	}
	if usage, err := s.Usage(t.Context(), attacker.Org); err != nil || usage.Unpacked < 1<<19 {
		t.Errorf("usage %+v, %v", usage, err)
	}
}

// TestImagesStayWithinTheQuota: an organization at its quota cannot pull more. Its images stay
// usable, and others are not affected.
func TestImagesStayWithinTheQuota(t *testing.T) {
	u := serve(t)
	first := u.push(t, "app:v1", imageOf(t, files(t, map[string]string{"a": strings.Repeat("a", 1000)})))
	second := u.push(t, "app:v2", imageOf(t, files(t, map[string]string{"b": "1"})))
	s := open(t, image.Options{
		Limits: image.Limits{UsageAge: 1},
		Quota: func(_ context.Context, org hangar.OrgID, used int64) error {
			if used < 1000 {
				return nil
			}
			return hangar.QuotaExceeded(hangar.OrgSlug(org), hangar.QuotaImageMB, 1, used, 1)
		},
	})
	if _, err := s.Pull(t.Context(), attacker, first, nil); err != nil {
		t.Fatal(err)
	}
	_, err := s.Pull(t.Context(), attacker, second, nil)
	wantError(t, err, hangar.CodeExhausted, hangar.ReasonQuota, "image_mb")
	if img, err := s.Pull(t.Context(), attacker, first, nil); err != nil || img.Size < 1000 {
		t.Errorf("what it has: %+v, %v", img, err)
	}
	if _, err := s.Pull(t.Context(), victim, second, nil); err != nil {
		t.Errorf("another organization: %v", err)
	}
}

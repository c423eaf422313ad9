package binary_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	third "github.com/coreos/go-oidc/v3/oidc"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/contract"
	"github.com/hangar-platform/hangar/test/daemon"
)

// elsewhereDomain is below a top-level domain that no authority knows, so that the server's own
// signs.
const elsewhereDomain = "platform.test"

// imageBytes is how large a layer is that goes through the edge.
const imageBytes = 64 << 20

func elsewhereNames() []string {
	return []string{"api." + elsewhereDomain, "registry." + elsewhereDomain, "oidc." + elsewhereDomain, "auth." + elsewhereDomain, "shop." + elsewhereDomain}
}

// TestPlatformFromElsewhere uses the platform from another computer by its public names, with
// programs that are not ours.
func TestPlatformFromElsewhere(t *testing.T) {
	e := newElsewhere(t, elsewhereNames()...)
	d := daemon.Start(t, daemon.Options{Driver: "fake", Args: e.onItsLink(elsewhereDomain)})
	e.trust(t, authority(d))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	t.Cleanup(cancel)
	api, token := "https://api."+elsewhereDomain, d.Token()

	t.Run("curl", func(t *testing.T) { curlFromElsewhere(t, e, api, token) })
	t.Run("CLI", func(t *testing.T) {
		if _, err := e.run(t, daemon.Binary(t), "--url", api, "--token", token, "apps", "create", "shop"); err != nil {
			t.Fatal(err)
		}
		if out, err := e.run(t, daemon.Binary(t), "--url", api, "--token", token, "apps", "list", "--json"); err != nil || !strings.Contains(out, `"shop"`) {
			t.Errorf("%s, %v", out, err)
		}
		if out, err := e.run(t, daemon.Binary(t), "--url", api, "--token", token, "apps", "create", "registry"); err == nil || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("an app gets a name of the platform: %s, %v", out, err)
		}
	})
	t.Run("docker", func(t *testing.T) { dockerFromElsewhere(t, e, token) })
	t.Run("skopeo", func(t *testing.T) { skopeoFromElsewhere(t, e, token) })
	t.Run("identity", func(t *testing.T) {
		c := client.New(api, token, client.WithHTTPClient(e.client(t, true)))
		// The image is found here: nothing else could resolve the registry's name.
		m, err := c.CreateMachine(ctx, "shop", hangar.MachineCreate{Name: "web", Config: hangar.MachineConfig{Image: "registry." + elsewhereDomain + "/personal/recorded:v1"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.WaitMachine(ctx, m.Ref(), hangar.MachineWait{Timeout: time.Minute}); err != nil {
			t.Fatal(err)
		}
		identity, err := c.IssueIdentityToken(ctx, m.Ref(), hangar.IdentityTokenRequest{Audience: "sts.example.com"})
		if err != nil {
			t.Fatal(err)
		}
		verifier := third.ClientContext(ctx, e.client(t, true))
		verified, err := verifyBy(verifier, "https://oidc."+elsewhereDomain+"/personal", "sts.example.com", identity)
		if err != nil || verified.Subject != "personal:shop:web" {
			t.Errorf("the verifier says %+v, %v", verified, err)
		}
	})
}

// curlFromElsewhere asks in all ways that curl knows.
func curlFromElsewhere(t *testing.T, e *elsewhere, api, token string) {
	t.Helper()
	const status = "%{http_version} %{http_code} %{redirect_url}"
	plain := strings.Replace(api, "https:", "http:", 1)
	for _, c := range []struct {
		name string
		args []string
		want string // begins what curl prints at the end; "error": it fails
	}{
		{"HTTP/1.1", []string{"--http1.1", api + "/healthz"}, "1.1 200"},
		{"HTTP/2", []string{"--http2", api + "/healthz"}, "2 200"},
		{"the document", []string{api + "/v1/openapi.json"}, "2 200"},
		{"no token", []string{api + "/v1/apps?org_slug=personal"}, "2 401"},
		{"a token", []string{"-H", "Authorization: Bearer " + token, api + "/v1/apps?org_slug=personal"}, "2 200"},
		{"metrics", []string{"-H", "Authorization: Bearer " + token, api + "/metrics"}, "2 200"},
		{"metrics without a token", []string{api + "/metrics"}, "2 401"},
		{"plain HTTP", []string{plain + "/v1/apps?org_slug=personal"}, "1.1 301 " + api + "/v1/apps?org_slug=personal"},
		{"plain HTTP with a token", []string{"-H", "Authorization: Bearer " + token, plain + "/v1/apps"}, "1.1 403"},
		{"plain HTTP with a body", []string{"-d", "{}", plain + "/v1/apps"}, "1.1 403"},
		{"another Host", []string{"-H", "Host: shop." + elsewhereDomain, api + "/healthz"}, "2 421"},
		{"another name of the platform", []string{"-H", "Host: registry." + elsewhereDomain, api + "/v2/"}, "2 421"},
		{"the API by the registry's name", []string{"https://registry." + elsewhereDomain + "/v1/apps"}, "2 404"},
		{"the API by the issuer's name", []string{"https://oidc." + elsewhereDomain + "/v1/apps"}, "2 404"},
		{"an issuer", []string{"https://oidc." + elsewhereDomain + "/personal/.well-known/openid-configuration"}, "2 200"},
		{"the API by the name of sign-in", []string{"https://auth." + elsewhereDomain + "/v1/apps"}, "2 404"},
		{"sign-in", []string{"https://auth." + elsewhereDomain + "/.well-known/oauth-authorization-server"}, "2 200"},
		{"a name without an owner", []string{"--resolve", "ui." + elsewhereDomain + ":443:" + e.host.String(), "https://ui." + elsewhereDomain + "/"}, "error"},
		{"no name, which is for WireGuard in WebSockets alone", []string{"-k", "https://" + e.host.String() + "/healthz"}, "1.1 404"},
	} {
		out, err := e.run(t, "curl", append([]string{"-s", "-o", "/dev/null", "-w", status}, c.args...)...)
		if (err != nil) != (c.want == "error") || err == nil && !strings.HasPrefix(out, c.want) {
			t.Errorf("%s: %s, %v, want %s", c.name, out, err, c.want)
		}
	}
}

// dockerFromElsewhere sends what docker push and docker pull (27.5) send, in their order.
func dockerFromElsewhere(t *testing.T, e *elsewhere, token string) {
	t.Helper()
	c := e.client(t, true)
	base := "https://registry." + elsewhereDomain
	config, layer := []byte(`{"architecture":"amd64","os":"linux","config":{"Cmd":["/serve"]},"rootfs":{"type":"layers","diff_ids":["sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"]}}`), make([]byte, 1024)
	digest := func(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
		"config": map[string]any{"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config), "digest": digest(config)},
		"layers": []any{map[string]any{"mediaType": "application/vnd.docker.image.rootfs.diff.tar", "size": len(layer), "digest": digest(layer)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	login := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+token))
	say := func(method, url, authorization string, body []byte, want int, header ...string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("User-Agent", "docker/27.5.1")
		if authorization != "" {
			r.Header.Set("Authorization", authorization)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		if method == http.MethodPatch {
			r.ContentLength = -1 // chunked, as docker does
		}
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != want {
			t.Fatalf("%s %s: %d %s, %v, want %d", method, url, res.StatusCode, answer, err, want)
		}
		res.Body = io.NopCloser(bytes.NewReader(answer))
		return res
	}
	// Where an upload continues: docker follows the address as it is, with its token.
	location := func(res *http.Response) string {
		t.Helper()
		at, err := res.Location()
		if err != nil || !strings.HasPrefix(at.String(), base+"/v2/personal/recorded/blobs/") {
			t.Fatalf("the upload continues at %v, %v", at, err)
		}
		return at.String()
	}
	challenge := say(http.MethodGet, base+"/v2/", "", nil, http.StatusUnauthorized)
	if how := challenge.Header.Get("Www-Authenticate"); !strings.HasPrefix(how, "Basic ") || challenge.Header.Get("Docker-Distribution-Api-Version") != "registry/2.0" {
		t.Errorf("docker is asked for %q, %v", how, challenge.Header)
	}
	say(http.MethodGet, base+"/v2/", login, nil, http.StatusOK) // docker login
	for _, blob := range [][]byte{layer, config} {
		say(http.MethodHead, base+"/v2/personal/recorded/blobs/"+digest(blob), login, nil, http.StatusNotFound)
		at := location(say(http.MethodPost, base+"/v2/personal/recorded/blobs/uploads/", login, nil, http.StatusAccepted))
		at = location(say(http.MethodPatch, at, login, blob, http.StatusAccepted))
		say(http.MethodPut, at+"?digest="+digest(blob), login, nil, http.StatusCreated)
		say(http.MethodHead, base+"/v2/personal/recorded/blobs/"+digest(blob), login, nil, http.StatusOK)
	}
	const kind = "application/vnd.docker.distribution.manifest.v2+json"
	put := say(http.MethodPut, base+"/v2/personal/recorded/manifests/v1", login, manifest, http.StatusCreated, "Content-Type", kind)
	if put.Header.Get("Docker-Content-Digest") != digest(manifest) {
		t.Errorf("the manifest is %s", put.Header.Get("Docker-Content-Digest"))
	}
	say(http.MethodHead, base+"/v2/personal/recorded/manifests/v1", login, nil, http.StatusOK, "Accept", kind)
	got := say(http.MethodGet, base+"/v2/personal/recorded/manifests/"+digest(manifest), login, nil, http.StatusOK, "Accept", kind)
	if body, err := io.ReadAll(got.Body); err != nil || !bytes.Equal(body, manifest) || got.Header.Get("Content-Type") != kind {
		t.Errorf("the manifest is %s, %v", body, err)
	}
	got = say(http.MethodGet, base+"/v2/personal/recorded/blobs/"+digest(layer), login, nil, http.StatusOK)
	if body, err := io.ReadAll(got.Body); err != nil || !bytes.Equal(body, layer) {
		t.Errorf("the layer has %d bytes, %v", len(body), err)
	}
	say(http.MethodGet, base+"/v2/personal/recorded/manifests/v1", "", nil, http.StatusUnauthorized)
}

// skopeoFromElsewhere pushes an image and pulls it again.
func skopeoFromElsewhere(t *testing.T, e *elsewhere, token string) {
	t.Helper()
	image, err := random.Image(imageBytes, 2)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, err := layout.Write(filepath.Join(dir, "oci"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(image); err != nil {
		t.Fatal(err)
	}
	want, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	reference := "docker://registry." + elsewhereDomain + "/personal/large:v1"
	quiet := []string{"--insecure-policy", "copy", "--quiet", "--preserve-digests"}
	if out, err := e.run(t, "skopeo", append(quiet, "oci:"+string(path), reference)...); err == nil {
		t.Errorf("pushed without a token: %s", out)
	}
	if _, err := e.run(t, "skopeo", append(quiet, "--dest-creds", "me:"+token, "oci:"+string(path), reference)...); err != nil {
		t.Fatal(err)
	}
	out, err := e.run(t, "skopeo", "inspect", "--format", "{{.Digest}}", "--creds", "me:"+token, reference)
	if err != nil || strings.TrimSpace(out) != want.String() {
		t.Errorf("it is %s, want %s, %v", out, want, err)
	}
	back := filepath.Join(dir, "back")
	if _, err := e.run(t, "skopeo", append(quiet, "--src-creds", "me:"+token, reference, "oci:"+back)...); err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(back)
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := index.IndexManifest()
	if err != nil || len(pulled.Manifests) != 1 || pulled.Manifests[0].Digest != want {
		t.Errorf("pulled %+v, %v", pulled, err)
	}
}

// TestPlatformNamesOutliveRestarts asks again and again while the daemon is restarted: every
// request is answered, and a stream ends with a word.
func TestPlatformNamesOutliveRestarts(t *testing.T) {
	e := newElsewhere(t, elsewhereNames()...)
	d := daemon.Start(t, daemon.Options{Args: e.onItsLink(elsewhereDomain)}) // only real Machines have a keeper
	e.trust(t, authority(d))
	d.Run("apps", "create", "shop")
	api := "https://api." + elsewhereDomain
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	follow, err := http.NewRequestWithContext(ctx, http.MethodGet, api+"/v1/apps/shop/logs?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	follow.Header.Set("Authorization", "Bearer "+d.Token())
	stream, err := e.client(t, false).Do(follow)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if _, err := stream.Body.Read(make([]byte, 1)); err != nil { // it has begun
		t.Fatal(err)
	}
	stop, failed := make(chan struct{}), make(chan error, 1)
	asked := 0
	go func() {
		defer close(failed)
		c := e.client(t, false)
		c.Transport.(*http.Transport).DisableKeepAlives = true // what is sent on an idle connection may be lost with it
		for {
			select {
			case <-stop:
				return
			default:
			}
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, api+"/healthz", nil)
			if err != nil {
				failed <- err
				return
			}
			res, err := c.Do(r)
			if err != nil {
				failed <- err
				return
			}
			_ = res.Body.Close()
			if asked++; res.StatusCode != http.StatusOK {
				failed <- fmt.Errorf("answered %d", res.StatusCode)
				return
			}
		}
	}()
	d.Term()
	d.Up()
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("request %d: %v", asked, err)
	}
	if asked == 0 {
		t.Error("nothing was asked meanwhile")
	}
	if rest, err := io.ReadAll(stream.Body); err != nil || !strings.Contains(string(rest), string(hangar.CodeUnavailable)) {
		t.Errorf("a stream ends with %q, %v", rest, err)
	}
}

// TestDaemonThroughTheEdge runs suites over the public name of the API, to show where the edge's
// servers differ from net/http's.
func TestDaemonThroughTheEdge(t *testing.T) {
	e := newElsewhere(t, elsewhereNames()...)
	d := daemon.Start(t, daemon.Options{Driver: "fake", Args: append(e.onItsLink(elsewhereDomain), "--volume-overcommit", "100")})
	e.trust(t, authority(d))
	image := d.Push(daemon.Busybox(t, "sh", "sleep", "echo", "cat"), "busybox:1", "--cmd", "sleep", "--cmd", "100000")
	for _, h2 := range []bool{false, true} {
		t.Run(map[bool]string{false: "HTTP/1.1", true: "HTTP/2"}[h2], func(t *testing.T) {
			h := contract.Over(t, "https://api."+elsewhereDomain, d.Token(), contract.Harness{
				Suspend: true,
				Context: func(tb testing.TB) context.Context {
					tb.Helper()
					ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 2*time.Minute)
					tb.Cleanup(cancel)
					return ctx
				},
				Image: image, Exit: func(code int) []string { return []string{"sh", "-c", fmt.Sprintf("exit %d", code)} },
				Sleep: []string{"sleep", "1000"}, Echo: []string{"cat"},
			}, client.WithHTTPClient(e.client(t, h2)))
			t.Run("apps", func(t *testing.T) { contract.AppService(t, h) })
			t.Run("machines", func(t *testing.T) { contract.MachineService(t, h) })
			t.Run("secrets", func(t *testing.T) { contract.SecretService(t, h) })
		})
	}
}

// TestAPIWithTLS: beyond this server the API speaks TLS, and on it plain HTTP as ever.
func TestAPIWithTLS(t *testing.T) {
	e := newElsewhere(t, elsewhereNames()...)
	at := net.JoinHostPort(e.host.String(), "4280")
	d := daemon.Start(t, daemon.Options{Driver: "fake", API: at, Args: append(e.onItsLink(elsewhereDomain), "--api-tls")})
	e.trust(t, authority(d))
	d.Run("apps", "create", "shop")
	for _, h2 := range []bool{false, true} {
		res, err := e.client(t, h2).Get("https://api." + elsewhereDomain + ":4280/healthz")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK || (res.ProtoMajor == 2) != h2 {
			t.Errorf("answered %s by %s", res.Status, res.Proto)
		}
	}
	if out, err := e.run(t, "curl", "-s", "https://"+at+"/healthz"); err != nil || !strings.Contains(out, `"ok"`) {
		t.Errorf("by its address: %s, %v", out, err)
	}
	if out, err := e.run(t, "curl", "-s", "http://"+at+"/healthz"); err == nil && !strings.Contains(out, "HTTPS server") {
		t.Errorf("without TLS: %s", out)
	}
	if !slices.Contains(strings.Fields(d.Run("apps", "list", "--quiet")), "shop") {
		t.Error("commands on the server do not find the API")
	}
}

// TestSlowClientsOfTheAPI: a computer that opens connections to --api and says nothing, or not
// all, is cut off beyond what one may have. Another one is answered.
func TestSlowClientsOfTheAPI(t *testing.T) {
	const most, attempts = 512, 700
	slow, other := newElsewhere(t, elsewhereNames()...), newElsewhere(t)
	at := net.JoinHostPort(slow.host.String(), "4280")
	d := daemon.Start(t, daemon.Options{Driver: "fake", API: at, Args: append(slow.onItsLink(elsewhereDomain), "--api-tls")})
	other.reach(t, slow.host)
	other.trust(t, authority(d))
	served := func() error {
		out, err := other.run(t, "curl", "-s", "--max-time", "60", "https://"+at+"/healthz")
		if err == nil && !strings.Contains(out, `"ok"`) {
			err = fmt.Errorf("answered %s", out)
		}
		return err
	}
	if err := served(); err != nil {
		t.Fatal(err)
	}
	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	if err := slow.within(func() error {
		for i := range attempts {
			c, err := net.DialTimeout("tcp", at, time.Minute)
			if err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			held = append(held, c)
			if i%2 == 0 {
				_, _ = c.Write([]byte{0x16, 3, 1}) // TLS begins so
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := served(); err != nil {
		t.Errorf("beside a slow client, another one: %v", err)
	}
	if !slices.Contains(strings.Fields(d.Run("apps", "create", "shop")), "shop") {
		t.Error("commands on the server do not find the API")
	}
	// Those that are too many are closed at once, the others when their time is over.
	closed, soon := 0, time.Now().Add(5*time.Second)
	for _, c := range held[most:] {
		_ = c.SetReadDeadline(soon)
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	if closed != attempts-most {
		t.Errorf("of %d connections, %d were closed", attempts, closed)
	}
}

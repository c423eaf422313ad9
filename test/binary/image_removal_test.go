package binary_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
)

// TestKilledOrgRemovals kills the daemon while it removes an organization. The next one finishes
// that, frees the room of its images, and the next owner of the slug finds nothing.
func TestKilledOrgRemovals(t *testing.T) {
	d := daemon.Start(t, daemon.Options{Driver: "fake", Args: []string{"--acme", "off"}})
	files := daemon.Busybox(t, "sleep")
	ctx := t.Context()
	const org = hangar.OrgSlug("acme")
	for round := range 4 {
		c := d.Client()
		if _, err := c.CreateOrg(ctx, hangar.OrgCreate{Slug: org}); err != nil {
			t.Fatal(err)
		}
		var ref string
		for i := range 3 {
			ref = d.Push(files, fmt.Sprintf("sleep%d:1", i), "--org", string(org), "--cmd", "sleep", "--cmd", fmt.Sprint(100000+i))
		}
		var answered sync.WaitGroup
		answered.Go(func() { _ = c.DeleteOrg(ctx, org) }) // it is cut off
		kill := make(chan struct{})
		time.AfterFunc(time.Duration(round*round)*2*time.Millisecond, func() { close(kill) })
		<-kill
		d.Kill()
		answered.Wait()
		d.Up()
		c = d.Client()
		// The mark may not have been written yet: then nothing has begun.
		if err := c.DeleteOrg(ctx, org); err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
			t.Fatalf("round %d: %v", round, err)
		}
		blobs, err := os.ReadDir(filepath.Join(d.Dir(), "images", "registry", "blobs"))
		if err != nil || len(blobs) != 0 {
			t.Errorf("round %d: %d blobs are left, %v", round, len(blobs), err)
		}
		if list, err := c.Images(ctx); err != nil || len(list) != 0 {
			t.Errorf("round %d: images %v, %v", round, list, err)
		}
		if _, err := c.CreateOrg(ctx, hangar.OrgCreate{Slug: org}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.CreateApp(ctx, hangar.AppCreate{Name: "shop", Org: org}); err != nil {
			t.Fatal(err)
		}
		_, err = c.CreateMachine(ctx, "shop", hangar.MachineCreate{Config: hangar.MachineConfig{Image: ref}})
		if hangar.ReasonOf(err) != hangar.ReasonImageNotFound {
			t.Errorf("round %d: an image of the organization before: %v", round, err)
		}
		if err := c.DestroyApp(ctx, "shop", true); err != nil {
			t.Fatal(err)
		}
		if err := c.DeleteOrg(ctx, org); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHostRegistryCredentials: what docker login has left on the server reaches a registry for a
// tenant where the operator has said so, and nowhere else.
func TestHostRegistryCredentials(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want bool
	}{
		{"by default", nil, false},
		{"switched off", []string{"--host-registry-credentials=false"}, false},
		{"switched on", []string{"--host-registry-credentials"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var mu sync.Mutex
			var sent []string
			registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				sent = append(sent, r.Header.Get("Authorization"))
				mu.Unlock()
				w.Header().Set("Www-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
			}))
			defer registry.Close()
			at := strings.TrimPrefix(registry.URL, "http://")
			login := base64.StdEncoding.EncodeToString([]byte("root:of-the-server"))
			config, err := json.Marshal(map[string]any{"auths": map[string]any{at: map[string]string{"auth": login}}})
			if err != nil {
				t.Fatal(err)
			}
			home := t.TempDir()
			if err := os.Mkdir(filepath.Join(home, ".docker"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(home, ".docker", "config.json"), config, 0o600); err != nil {
				t.Fatal(err)
			}
			d := daemon.Start(t, daemon.Options{
				Driver: "fake", Args: append([]string{"--acme", "off", "--allow-registry", at}, test.args...),
				Env: []string{"HOME=" + home, "DOCKER_CONFIG=" + filepath.Join(home, ".docker")},
			})
			admin := d.Client()
			m := &moved{T: t, ctx: t.Context(), admin: admin, url: d.URL()}
			m.org("acme")
			tenant := (&owner{moved: m, org: "acme"}).client(hangar.TokenCreate{Kind: hangar.TokenOrg, Org: "acme"})
			if _, err := tenant.CreateApp(t.Context(), hangar.AppCreate{Name: "shop", Org: "acme"}); err != nil {
				t.Fatal(err)
			}
			for _, image := range []string{at + "/private:v1", at + "/private@sha256:" + strings.Repeat("a", 64)} {
				_, err := tenant.CreateMachine(t.Context(), "shop", hangar.MachineCreate{Config: hangar.MachineConfig{Image: image}})
				if hangar.ReasonOf(err) != hangar.ReasonImageNotFound {
					t.Errorf("%s: %v", image, err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			got := false
			for _, authorization := range sent {
				got = got || strings.Contains(authorization, login)
				if !test.want && authorization != "" {
					t.Errorf("the registry is sent %q", authorization)
				}
			}
			if len(sent) == 0 || got != test.want {
				t.Errorf("the registry was sent %q", sent)
			}
		})
	}
}

package proxy_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar/edge/proxy"
)

// TestBodiesOfOneOrganization: one organization keeps as many bodies as it can. Its own requests
// are then served, but not replayed, while those of another organization are.
func TestBodiesOfOneOrganization(t *testing.T) {
	for name, limits := range map[string]proxy.Limits{
		"in files":  {KeepBody: 100, SpoolBody: 1000, SpoolBodies: 8000},
		"in memory": {KeepBody: 1000, KeepBodies: 4 * 4000},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *proxy.Options) {
				limits.RetryFor, limits.SpoolDir = o.Limits.RetryFor, t.TempDir()
				o.Limits = limits
			})
			has, release := make(chan int, 16), make(chan struct{})
			w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Hold") == "" {
					replaying("a1")(rw, r)
					return
				}
				body, _ := io.ReadAll(r.Body)
				has <- len(body)
				<-release
			}), nil)
			w.machine("a2", "second", w.backend(replaying("a2")), nil)
			w.machine("f1", "foreign", w.backend(replaying("f1")), nil)
			w.machine("f2", "foreign", w.backend(replaying("f2")), nil)
			send := func(app string, size int, headers ...string) result {
				return w.do(w.client(), w.request(http.MethodPost, "http://"+app+".apps.test/x", strings.NewReader(strings.Repeat("x", size)), headers...))
			}
			again := func(app, to string) result { return send(app, 1000, "X-Replay", to) }
			var held sync.WaitGroup
			const hold = 16
			for range hold {
				held.Go(func() {
					if got := send("app", 1000, "X-Hold", "1"); got.StatusCode != http.StatusOK {
						t.Errorf("a request without a replay is answered %d %s", got.StatusCode, got.body)
					}
				})
			}
			for range hold {
				if n := <-has; n != 1000 {
					t.Errorf("a machine gets %d bytes of 1000", n)
				}
			}
			if got := again("app", "app=second"); got.StatusCode != http.StatusServiceUnavailable || got.Header.Get("Platform-Error-Code") != "PA01" {
				t.Errorf("beyond its room, an organization gets %d %s", got.StatusCode, got.body)
			}
			if got := again("foreign", "elsewhere=true"); got.StatusCode != http.StatusOK || !strings.Contains(got.body, "body="+strings.Repeat("x", 1000)) {
				t.Errorf("meanwhile, another one gets %d %s", got.StatusCode, got.body)
			}
			close(release)
			held.Wait()
			if got := again("app", "app=second"); got.StatusCode != http.StatusOK {
				t.Errorf("afterwards, it gets %d %s", got.StatusCode, got.body)
			}
		})
	}
}

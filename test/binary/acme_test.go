package binary_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/acmetest"
	"github.com/hangar-platform/hangar/test/daemon"
)

// until tries again and again for two minutes.
func until(t *testing.T, try func() error) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); ; <-tick.C {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestPlatformCertificatesByACME has a real ACME server issue the certificates of the platform's
// names to a whole daemon. Another computer, which trusts that authority alone, verifies them.
func TestPlatformCertificatesByACME(t *testing.T) {
	const domain = "platform.example.com"
	names := []string{"api." + domain, "registry." + domain, "oidc." + domain}
	e := newElsewhere(t, names...)
	authority := acmetest.Start(t, acmetest.Options{HTTPPort: 80, TLSPort: 443, Life: 90 * 24 * time.Hour, Resolve: func(string) netip.Addr { return e.host }})
	e.trust(t, authority.Roots)
	d := daemon.Start(t, daemon.Options{Driver: "fake", Args: append(e.onItsLink(domain), "--acme", authority.Directory(), "--acme-root", authority.CertFile)})
	for name, path := range map[string]string{names[0]: "/healthz", names[1]: "/v2/", names[2]: "/personal/.well-known/openid-configuration"} {
		until(t, func() error {
			out, err := e.run(t, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code} %{ssl_verify_result}", "https://"+name+path)
			if want := map[bool]string{true: "401 0", false: "200 0"}[path == "/v2/"]; err == nil && out != want {
				err = fmt.Errorf("https://%s%s: %s, want %s", name, path, out, want)
			}
			return err
		})
	}
	if out, err := e.run(t, daemon.Binary(t), "--url", "https://"+names[0], "--token", d.Token(), "apps", "create", "shop"); err != nil {
		t.Errorf("the command line: %s, %v", out, err)
	}
	if out, err := e.run(t, "skopeo", "login", "--authfile", filepath.Join(t.TempDir(), "auth.json"), "-u", "me", "-p", d.Token(), names[1]); err != nil || !strings.Contains(out, "Succeeded") {
		t.Errorf("skopeo: %s, %v", out, err)
	}
}

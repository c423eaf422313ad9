package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ociimage"
)

// putAndGet keeps a value on the shelf that the environment tells of, and prints what it finds there.
const putAndGet = `
import os, sys, urllib.request
def ask(method, body=None):
    r = urllib.request.Request(os.environ["SHELF_URL"] + "/color", data=body, method=method, headers={"Authorization": "Bearer " + os.environ["SHELF_TOKEN"]})
    return urllib.request.urlopen(r, timeout=30).read().decode()
if len(sys.argv) > 1:
    ask("PUT", sys.argv[1].encode())
print(os.environ["SHELF_URL"], ask("GET"))
`

// TestExampleProvider runs examples/provider as an App: it makes extensions for two organizations, whose
// Machines reach their shelves at addresses of their own networks, and it gets the events of its own
// Machines.
func TestExampleProvider(t *testing.T) {
	p := start(t)
	const vendor, shelf = hangar.AppName("shelves"), hangar.ProviderName("shelf")
	if _, err := p.c.CreateOrg(t.Context(), hangar.OrgCreate{Slug: "vendor", Name: "Vendor"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.CreateApp(t.Context(), hangar.AppCreate{Name: vendor, Org: "vendor"}); err != nil {
		t.Fatal(err)
	}
	m := p.vendor(t, vendor)
	made, err := p.c.CreateProvider(t.Context(), hangar.ProviderCreate{Name: shelf, ProviderSettings: hangar.ProviderSettings{
		BaseURL: "http://" + m.addr(8080), AllowPrivate: true, PlatformApp: vendor, RedirectURIs: []string{"http://" + m.addr(8080) + "/callback"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]hangar.Sensitive{
		"BASE_URL": hangar.NewSensitive("http://" + m.addr(8080)), "APP_NAME": hangar.NewSensitive(string(vendor)), "REQUEST_SECRET": made.RequestSecret,
	}
	if _, err := p.c.SetSecrets(t.Context(), vendor, secrets); err != nil {
		t.Fatal(err)
	}
	p.d.Run("secrets", "deploy", string(vendor))
	m.start(t)
	m.serves(t, 8080, "/healthz")

	recipe := python().recipe
	image := p.push(t, build(t, recipe), "python-shelf:1")
	urls := map[string]bool{}
	for _, customer := range []struct {
		app   hangar.AppName
		value string
	}{{"blue-app", "blue"}, {"red-app", "red"}} {
		if _, err := p.c.CreateApp(t.Context(), hangar.AppCreate{Name: customer.app, Org: hangar.OrgPersonal, Network: string(customer.app)}); err != nil {
			t.Fatal(err)
		}
		e, err := p.c.CreateExtension(t.Context(), customer.app, hangar.ExtensionCreate{Provider: shelf})
		if err != nil {
			t.Fatal(err)
		}
		if e.Status != hangar.ExtensionReady || e.PlatformApp != vendor || !e.IP.IsValid() {
			t.Fatalf("the extension is %+v", e)
		}
		user := p.runIn(t, customer.app, hangar.MachineConfig{Image: image, Guest: &hangar.Guest{MemoryMB: 512}, Init: hangar.Init{Exec: []string{"sleep", "100000"}}})
		want := fmt.Sprintf("http://%s %s\n", netip.AddrPortFrom(e.IP, 80), customer.value)
		until(t, "the shelf", func() error { // the address is told to the edge while it is asked for
			out, code, err := user.tryExec(t.Context(), "python3", "-c", putAndGet, customer.value)
			if err == nil && (code != 0 || out != want) {
				err = fmt.Errorf("exit code %d, printed %q, want %q", code, out, want)
			}
			return err
		})
		urls[want] = true
	}
	if len(urls) != 2 {
		t.Errorf("the customers have one address: %v", urls)
	}
	until(t, "events of the provider's own Machine", func() error {
		page, err := p.c.Logs(t.Context(), vendor, hangar.LogQuery{})
		if err != nil {
			return err
		}
		for _, entry := range page.Entries {
			if strings.Contains(entry.Message, "machine event") && strings.Contains(entry.Message, string(m.ref.ID)) {
				return nil
			}
		}
		return errors.New("its log has none")
	})
	for _, name := range []hangar.AppName{"blue-app", "red-app"} {
		if err := p.c.DestroyApp(t.Context(), name, true); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the ends of the extensions", func() error {
		left, err := p.c.OrgExtensions(t.Context(), hangar.OrgPersonal)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d are left: %s %s", len(left), left[0].Status, left[0].Error)
		}
		return err
	})
}

// vendor creates the provider's Machine, which starts when it knows its secrets.
func (p *platform) vendor(t *testing.T, vendor hangar.AppName) *machine {
	t.Helper()
	t.Setenv("CGO_ENABLED", "0")
	binary := filepath.Join(t.TempDir(), "provider")
	local(t, "go", "build", "-o", binary, "../../examples/provider")
	img, err := ociimage.FromBinary(binary, ociimage.Config{TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	image := p.pushTo(t, img, p.d.Addr()+"/vendor/provider:1")
	got, err := p.c.CreateMachine(t.Context(), vendor, hangar.MachineCreate{Name: "provider", Config: vendorConfig(image), SkipLaunch: true})
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{p: p, ref: got.Ref(), ip: got.PrivateIP.String()}
	m.wait(t, hangar.MachineStopped)
	return m
}

// vendorConfig serves shelves on port 80 of the addresses of extensions, with the PROXY protocol.
func vendorConfig(image string) hangar.MachineConfig {
	return hangar.MachineConfig{
		Image: image, Env: map[string]string{"DATA": "/"},
		Services: []hangar.Service{{
			InternalPort: 8081, Protocol: "tcp", Ports: []hangar.ServicePort{{Port: 80, Handlers: []string{"proxy_proto"}, ProxyProto: &hangar.ProxyProtoOptions{Version: "v2"}}},
		}},
	}
}

// runIn runs a Machine in an App.
func (p *platform) runIn(t *testing.T, app hangar.AppName, config hangar.MachineConfig) *machine {
	t.Helper()
	got, err := p.c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{p: p, ref: got.Ref(), ip: got.PrivateIP.String()}
	m.wait(t, hangar.MachineStarted)
	return m
}

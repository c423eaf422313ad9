package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ociimage"
	"github.com/hangar-platform/hangar/test/daemon"
)

// putAndGet keeps a value on the shelf that the environment names, and prints what it finds there.
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
		until(t, "the shelf", func() error { // the edge learns the address meanwhile
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

// browser is a client that keeps cookies, and fills in forms as a person does.
type browser struct {
	*http.Client
	t  *testing.T
	at *url.URL // of the page
	is string   // the page
}

// open follows a link.
func (b *browser) open(link string) {
	b.t.Helper()
	b.do(http.MethodGet, link, nil)
}

var (
	filledInput = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">|<input type="radio"[^>]* name="([^"]*)" value="([^"]*)"[^>]* checked>`)
	formAction  = regexp.MustCompile(`<form[^>]* action="([^"]*)"`)
)

// submit sends the first form of the page with some fields.
func (b *browser) submit(fields map[string]string) {
	b.t.Helper()
	values := url.Values{}
	form, _, _ := strings.Cut(b.is, "</form>")
	for _, input := range filledInput.FindAllStringSubmatch(form, -1) {
		values.Set(html.UnescapeString(input[1]+input[3]), html.UnescapeString(input[2]+input[4]))
	}
	for name, value := range fields {
		values.Set(name, value)
	}
	to := b.at
	if action := formAction.FindStringSubmatch(form); action != nil {
		var err error
		if to, err = b.at.Parse(html.UnescapeString(action[1])); err != nil {
			b.t.Fatal(err)
		}
	}
	b.do(http.MethodPost, to.String(), strings.NewReader(values.Encode()))
}

func (b *browser) do(method, to string, body io.Reader) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, to, body)
	if err != nil {
		b.t.Fatal(err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", b.at.Scheme+"://"+b.at.Host)
	}
	res, err := b.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	b.at, b.is = res.Request.URL, string(page)
	if res.StatusCode != http.StatusOK {
		b.t.Fatalf("%s %s is answered %s %s", method, to, res.Status, page)
	}
}

// TestSingleSignOn: a user opens an extension, signs in at the platform, consents, and comes to
// the page of the example provider, whose webhook reports to the platform what the user has done
// there.
func TestSingleSignOn(t *testing.T) {
	if testing.Short() {
		t.Skip("end-to-end tests are left out of short runs")
	}
	const shelf, web = hangar.ProviderName("shelf"), hangar.AppName("web")
	d := daemon.Start(t, daemon.Options{Driver: "fake"})
	c := d.Client()
	front := httptest.NewUnstartedServer(nil) // as a proxy before the provider
	t.Cleanup(front.Close)
	base := "http://" + front.Listener.Addr().String()
	made, err := c.CreateProvider(t.Context(), hangar.ProviderCreate{Name: shelf, ProviderSettings: hangar.ProviderSettings{
		BaseURL: base, AllowPrivate: true, RedirectURIs: []string{base + "/callback"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	front.Config.Handler = runProvider(t, map[string]string{
		"BASE_URL": base, "DATA": t.TempDir(), "SHELF_PORT": "0", "REQUEST_SECRET": made.RequestSecret.Reveal(), "AUTH_URL": d.URL(),
		"WEBHOOK_URL": d.URL() + "/hooks/extensions/" + string(shelf), "WEBHOOK_SECRET": made.WebhookSecret.Reveal(),
		"CLIENT_ID": made.ClientID, "CLIENT_SECRET": made.ClientSecret.Reveal(),
	})
	front.Start()
	const email, password = "ann@example.com", "correct horse battery"
	invited, err := c.InviteUser(t.Context(), hangar.UserInvite{Email: email, Org: hangar.OrgPersonal, Role: hangar.RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.UseCode(t.Context(), hangar.CodeUse{Code: hangar.NewSensitive(invited.Code), Name: "Ann", Password: hangar.NewSensitive(password)}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateApp(t.Context(), hangar.AppCreate{Name: web, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateExtension(t.Context(), web, hangar.ExtensionCreate{Provider: shelf, Name: "books"}); err != nil {
		t.Fatal(err)
	}
	extension := func(right func(e *hangar.Extension) bool) {
		t.Helper()
		until(t, "what the platform knows of the extension", func() error {
			e, err := c.Extension(t.Context(), web, "books")
			if err == nil && !right(e) {
				err = fmt.Errorf("it is %+v", e)
			}
			return err
		})
	}
	extension(func(e *hangar.Extension) bool { return e.Status == hangar.ExtensionReady })
	link, err := c.ExtensionLink(t.Context(), web, "books")
	if err != nil {
		t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{Client: &http.Client{Jar: jar}, t: t}
	b.open(link.URL)
	b.submit(map[string]string{"email": email, "password": password})
	if !strings.Contains(b.is, "shelf") || !strings.Contains(b.is, "(admin)") {
		t.Fatalf("the page of consent is %s", b.is)
	}
	b.submit(map[string]string{"decision": "allow"})
	if !strings.HasPrefix(b.at.String(), base+"/dashboard/") || !strings.Contains(b.is, "Signed in as Ann, admin.") {
		t.Fatalf("%s is %s", b.at, b.is)
	}
	b.submit(map[string]string{"do": "change", "plan": "large"})
	extension(func(e *hangar.Extension) bool { return e.Plan == "large" })
}

// runProvider runs the example with an environment, and returns a proxy to it.
func runProvider(t *testing.T, env map[string]string) http.Handler {
	t.Helper()
	t.Setenv("CGO_ENABLED", "0")
	binary := filepath.Join(t.TempDir(), "provider")
	local(t, "go", "build", "-o", binary, "../../examples/provider")
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Env = append(os.Environ(), "PORT=0")
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var listens []string
	for listens == nil && lines.Scan() {
		listens = regexp.MustCompile(`platform=\S*:(\d+)`).FindStringSubmatch(lines.Text())
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, out)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-read
		_ = cmd.Wait()
	})
	if listens == nil {
		t.Fatal("the provider does not listen")
	}
	return httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:" + listens[1]})
}

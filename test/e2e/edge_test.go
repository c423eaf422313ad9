package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/hangar-platform/hangar"
)

// address gives the App an address of its own.
func (p *platform) address(t *testing.T, kind hangar.AddressKind) netip.Addr {
	t.Helper()
	a, err := p.c.AllocateAddress(t.Context(), app, hangar.AddressCreate{Kind: kind})
	if err != nil {
		t.Fatal(err)
	}
	return a.IP
}

// authority is the file of the certificate that signs those of the platform's own names.
func (p *platform) authority() string {
	return filepath.Join(p.d.Dir(), "edge", "certificates", "ca.pem")
}

// curl asks the edge under the name of the App.
func (p *platform) curl(t *testing.T, url string, more ...string) string {
	t.Helper()
	httpAddr, httpsAddr := p.d.Edge()
	args := []string{"curl", "--silent", "--show-error", "--fail", "--max-time", "30", "--cacert", p.authority()}
	for port, addr := range map[string]string{"80": httpAddr, "443": httpsAddr} {
		args = append(args, "--connect-to", edgeHost+":"+port+":"+addr)
	}
	return local(t, append(append(args, more...), url)...)
}

// TestEdgeServesNginx: requests as a browser or curl would send them to a web server.
func TestEdgeServesNginx(t *testing.T) {
	p := start(t)
	p.publish(t)
	yes := true
	prog := nginx()
	m := p.run(t, "nginx", hangar.MachineConfig{
		Image: p.push(t, build(t, prog.recipe), "nginx:1"),
		Services: []hangar.Service{{
			Protocol: "tcp", InternalPort: 80, Autostart: &yes,
			Ports: []hangar.ServicePort{
				{Port: 80, Handlers: []string{"http"}, ForceHTTPS: true},
				{Port: 443, Handlers: []string{"tls", "http"}, HTTP: &hangar.HTTPOptions{Compress: &yes}},
			},
			Checks: []hangar.Check{{Type: "http", Path: "/numbers.txt"}},
		}},
	})
	whole := m.serves(t, 80, "/numbers.txt")
	page := "https://" + edgeHost + "/numbers.txt"
	for _, version := range []string{"--http1.1", "--http2"} {
		if body := p.curl(t, page, version); body != whole {
			t.Errorf("%s: %d bytes of %d", version, len(body), len(whole))
		}
		head := p.curl(t, page, version, "--head")
		for _, want := range []string{"200", "via: ", "fly-request-id: ", "platform-request-id: ", "content-length: " + strconv.Itoa(len(whole))} {
			if !strings.Contains(strings.ToLower(head), want) {
				t.Errorf("%s: no %q in\n%s", version, want, head)
			}
		}
		if body := p.curl(t, page, version, "--compressed"); body != whole {
			t.Errorf("%s, compressed: %d bytes of %d", version, len(body), len(whole))
		}
		if body := p.curl(t, page, version, "--range", "100-199"); body != whole[100:200] {
			t.Errorf("%s: a range came as %q", version, body)
		}
	}
	if head := p.curl(t, "http://"+edgeHost+"/numbers.txt?a=b", "--head"); !strings.Contains(head, "301") || !strings.Contains(head, edgeHost) || !strings.Contains(head, "/numbers.txt?a=b") {
		t.Errorf("plain HTTP was answered with\n%s", head)
	}
	t.Run("woken", func(t *testing.T) {
		m.stop(t)
		if body := p.curl(t, page); body != whole {
			t.Errorf("%d bytes of %d", len(body), len(whole))
		}
	})
	t.Run("browser", func(t *testing.T) { p.browse(t, page) })
}

// browse loads a page with a real browser, where there is one.
func (p *platform) browse(t *testing.T, page string) {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("no browser: apt-get install chromium")
	}
	_, httpsAddr := p.d.Edge()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir="+t.TempDir(),
		"--ignore-certificate-errors", "--host-resolver-rules=MAP "+edgeHost+":443 "+httpsAddr, "--dump-dom", page)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || !bytes.Contains(out, []byte("\n50000\n")) {
		t.Errorf("%v: %d bytes\n%s", err, len(out), said.String())
	}
}

// TestEdgeTellsTheClient: nginx believes who the client is from the PROXY protocol.
func TestEdgeTellsTheClient(t *testing.T) {
	p := start(t)
	const site = `
cat >/etc/nginx/sites-available/default <<'END'
server {
	listen 80 proxy_protocol;
	location / { return 200 "$proxy_protocol_addr\n"; }
}
END
`
	recipe := nginx().recipe
	recipe.Setup = site
	p.run(t, "nginx", hangar.MachineConfig{
		Image: p.push(t, build(t, recipe), "nginx:1"),
		Services: []hangar.Service{{Protocol: "tcp", InternalPort: 80, Ports: []hangar.ServicePort{
			{Port: 8001, Handlers: []string{"proxy_proto"}},
			{Port: 8002, Handlers: []string{"proxy_proto"}, ProxyProto: &hangar.ProxyProtoOptions{Version: "v2"}},
		}}},
	})
	at := p.address(t, hangar.AddressV4)
	const client = "127.0.0.99"
	ask := func(port string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "curl", "--silent", "--show-error", "--max-time", "30", "--interface", client,
			"http://"+net.JoinHostPort(at.String(), port)+"/").CombinedOutput()
		return string(out), err
	}
	until(t, "nginx listens", func() error { _, err := ask("8001"); return err })
	for _, port := range []string{"8001", "8002"} {
		if got, err := ask(port); err != nil || got != client+"\n" {
			t.Errorf("port %s: the client is %q (%v)", port, got, err)
		}
	}
}

// TestEdgeEndsTLS: TLS in front of a program that knows none, looked at by openssl.
func TestEdgeEndsTLS(t *testing.T) {
	p := start(t)
	p.publish(t)
	no := false
	m := p.run(t, "keeper", hangar.MachineConfig{
		Image: p.push(t, keeperImage(t), "keeper:1"),
		Services: []hangar.Service{{Protocol: "tcp", InternalPort: 7000, Ports: []hangar.ServicePort{
			{Port: 443, Handlers: []string{"tls"}, TLS: &hangar.TLSOptions{Versions: []string{"TLSv1.3"}, DefaultSelfSigned: &no}},
		}}},
	})
	m.serves(t, 8080, "/state")
	_, address := p.d.Edge()
	// It ends with its input, and waits for no answer.
	const client = `{ echo line; sleep 1; } | exec openssl s_client -quiet -no_ign_eof -verify_return_error "$@"`
	openssl := func(more ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		args := append([]string{"-c", client, "sh", "-connect", address, "-servername", edgeHost, "-CAfile", p.authority(), "-verify_hostname", edgeHost}, more...)
		out, err := exec.CommandContext(ctx, "sh", args...).CombinedOutput()
		return string(out), err
	}
	if out, err := openssl(); err != nil || !strings.Contains(out, "1 line") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := openssl("-tls1_2"); err == nil {
		t.Errorf("TLS 1.2 was accepted, which the service does not allow\n%s", out)
	}
	pool := x509.NewCertPool()
	raw, err := os.ReadFile(p.authority())
	if err != nil || !pool.AppendCertsFromPEM(raw) {
		t.Fatal(err)
	}
	if c, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pool, ServerName: "nobody.hangar.localhost"}); err == nil {
		_ = c.Close()
		t.Error("a name that no app has was served")
	}
}

// TestEdgeSpeaksPostgreSQL: psql asks for TLS in the way of PostgreSQL and verifies whom it
// speaks to; the server knows nothing of it.
func TestEdgeSpeaksPostgreSQL(t *testing.T) {
	p := start(t)
	prog := postgres()
	img, err := mutate.Config(build(t, prog.recipe), v1.Config{
		Cmd: prog.recipe.Config.Cmd, Env: prog.recipe.Config.Env, User: "postgres", StopSignal: "SIGINT",
	})
	if err != nil {
		t.Fatal(err)
	}
	m := p.run(t, "database", hangar.MachineConfig{
		Image: p.push(t, img, "postgres:1"), Guest: &hangar.Guest{MemoryMB: 512},
		Services: []hangar.Service{{Protocol: "tcp", InternalPort: 5432, Ports: []hangar.ServicePort{{Port: 5432, Handlers: []string{"pg_tls"}}}}},
	})
	m.answersQueries(t)
	at := p.address(t, hangar.AddressV4)
	query := func(mode string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "psql", "--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--command", "SELECT 6*7", fmt.Sprintf(
			"host=%s hostaddr=%s port=5432 user=postgres dbname=postgres sslmode=%s sslrootcert=%s", edgeHost, at, mode, p.authority()))
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	if out, err := query("verify-full"); err != nil || out != "42" {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := query("disable"); err == nil {
		t.Errorf("a connection without TLS was accepted: %s", out)
	}
}

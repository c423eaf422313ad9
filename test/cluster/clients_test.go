package cluster

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/e2e/debian"
	"github.com/hangar-platform/hangar/test/e2e/software"
)

// clients is a platform of which one server has all Machines, and another all clients.
type clients struct {
	*cluster

	near, far *server
	authority string // file of the authority of near
	machines  map[hangar.AppName]*hangar.Machine
	own       map[hangar.AppName]string // addresses that Apps have to themselves
}

// Apps, each with a Machine of the same name.
const (
	store hangar.AppName = "store" // nginx
	cache hangar.AppName = "cache" // Redis
	live  hangar.AppName = "live"  // Node.js
	data  hangar.AppName = "data"  // PostgreSQL
	zone  hangar.AppName = "zone"  // Unbound
)

// TestClients: real clients use real programs in Machines through a server that does not have these Machines, by its
// edge, API, registry, tunnels and WireGuard.
func TestClients(t *testing.T) {
	short := os.Getenv("CLUSTER_SHORT") != ""
	bytes := 100 << 20
	if short {
		bytes = 16 << 20
	}
	w := startClients(t)
	w.runs(store, software.NginxStore(), "80:80/tcp:http", "443:80/tcp:tls+http", "8081:81/tcp:proxy_proto")
	w.runs(cache, software.Redis(), "6379:6379/tcp", "6380:6379/tcp:tls")
	w.part(t, "files", func(t *testing.T) { w.files(t, bytes) })
	w.part(t, "addresses", w.tellsTheClient)
	w.part(t, "Redis", w.redis)
	w.part(t, "commands", w.commands)
	w.part(t, "asleep", w.asleep)
	w.part(t, "idle", w.idle)
	w.part(t, "WireGuard", w.wireGuard)
	if short {
		return
	}
	w.runs(live, software.Node(), "443:8080/tcp:tls+http")
	w.part(t, "events", w.events)
	w.part(t, "WebSocket", w.webSocket)
	w.runs(data, software.PostgreSQL(), "5432:5432/tcp:pg_tls")
	w.part(t, "PostgreSQL", w.postgres)
	w.runs(zone, software.Unbound(), "53:53/udp", "53:53/tcp")
	w.part(t, "DNS", w.dns)
}

// startClients starts a platform whose first server alone gets Machines. Addresses that Apps have to themselves lead from
// this machine to the last, which of two servers and of more than three does not hold the state.
func startClients(t *testing.T) *clients {
	t.Helper()
	c := newCluster(t)
	pool := c.net + ".128/28"
	c.flags = "--http3 --ipv4-pool " + pool
	c.up(fromEnv(t, "CLUSTER_SERVERS", 3))
	w := &clients{cluster: c, near: c.servers[len(c.servers)-1], far: c.servers[0], machines: map[hangar.AppName]*hangar.Machine{}, own: map[hangar.AppName]string{}}
	for _, s := range c.servers {
		if s != w.far {
			w.near.run("host", "cordon", string(s.id()))
		}
	}
	for _, route := range []*exec.Cmd{
		exec.CommandContext(t.Context(), "ip", "route", "add", pool, "via", w.near.address()),
		w.near.inside(t.Context(), "ip", "route", "add", "local", pool, "dev", "lo"),
	} {
		if out, err := route.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	w.authority = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(w.authority, []byte(w.near.run("certs", "ca")), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// part runs a subtest, which ends alone when the cluster fails it.
func (w *clients) part(t *testing.T, name string, f func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		outer := w.T
		defer func() { w.T = outer }()
		w.T = t
		f(t)
	})
}

// runs pushes the image of a program to the near server, as an OCI layout, and runs it with an address of its own.
func (w *clients) runs(app hangar.AppName, recipe debian.Recipe, ports ...string) {
	w.Helper()
	img, err := software.Builder(w).Build(w.Context(), recipe)
	if err != nil {
		w.Fatal(err)
	}
	dir := filepath.Join(w.TempDir(), "layout")
	index, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = index.AppendImage(img)
	}
	if err != nil {
		w.Fatal(err)
	}
	var image string
	if app == store {
		// By a client that shares no code with the registry.
		image = "registry." + domain + "/personal/store:1"
		at := "docker://" + w.near.address() + ":4280/personal/store:1"
		if out, err := w.local("skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false", "--dest-creds", "anybody:"+w.near.token(), "oci:"+dir, at); err != nil {
			w.Fatalf("%v\n%s", err, out)
		}
	} else {
		words := strings.Fields(w.near.run("image", "push", dir, string(app)+":1"))
		image = words[len(words)-1]
	}
	w.near.run("apps", "create", string(app))
	for _, kind := range []hangar.AddressKind{hangar.AddressSharedV4, hangar.AddressV4} {
		address, err := w.near.client().AllocateAddress(w.Context(), app, hangar.AddressCreate{Kind: kind})
		if err != nil {
			w.Fatal(err)
		}
		w.own[app] = address.IP.String()
	}
	args := []string{"machine", "run", string(app), image, "--name", string(app), "--memory", "512", "--autostop", "off"}
	for _, port := range ports {
		args = append(args, "--port", port)
	}
	// It bounds the pull and the start itself, for which a busy machine needs longer than for other commands.
	if out, err := w.hangar(w.T, args...).CombinedOutput(); err != nil {
		w.Fatalf("%v\n%s", err, out)
	}
	w.machines[app] = w.shown(app)
	if m := w.machines[app]; m.Host != w.far.id() {
		w.Fatalf("the Machine of %s is on host %s, and not on %s", app, m.Host, w.far)
	}
}

// shown is the Machine of an App as the near server shows it.
func (w *clients) shown(app hangar.AppName) *hangar.Machine {
	w.Helper()
	var m hangar.Machine
	if err := json.Unmarshal([]byte(w.near.run("machine", "status", string(app), string(app), "--json")), &m); err != nil {
		w.Fatal(err)
	}
	return &m
}

// local runs a program of this machine, and returns what it prints.
func (w *clients) local(command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		w.Fatalf("%v; `.ci/deps cluster` installs it", err)
	}
	if err != nil {
		err = fmt.Errorf("%q: %w\n%s", command, err, out)
	}
	return string(out), err
}

// mustLocal is local for a program that must not fail.
func (w *clients) mustLocal(t *testing.T, command ...string) string {
	t.Helper()
	out, err := w.local(command...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// curl are the arguments of curl for a page of an App.
func (w *clients) curl(app hangar.AppName, path string, more ...string) []string {
	host := string(app) + "." + domain
	args := []string{"curl", "--silent", "--show-error", "--fail", "--cacert", w.authority, "--resolve", host + ":443:" + w.near.address()}
	return append(append(args, more...), "https://"+host+path)
}

// files puts files of many bytes into nginx and gets them again.
func (w *clients) files(t *testing.T, bytes int) {
	dir := t.TempDir()
	sent := filepath.Join(dir, "sent")
	want := randomFile(t, sent, bytes)
	w.await("nginx serves", func() error { _, err := w.local(w.curl(store, "/kept/")...); return err })
	for _, version := range []string{"--http1.1", "--http2"} {
		path := "/kept/by" + version
		w.mustLocal(t, w.curl(store, path, version, "--upload-file", sent)...)
		if got := w.near.run("machine", "exec", string(store), string(store), "--", "sha256sum", "/var/www/html"+path); !strings.HasPrefix(got, want) {
			t.Errorf("%s: the file has come as %s, not %s", version, got, want)
		}
		back := filepath.Join(dir, "back")
		out := w.mustLocal(t, w.curl(store, path, version, "--output", back, "--write-out", "%{http_version} %{response_code}")...)
		if got := sumOf(t, back); got != want {
			t.Errorf("%s: the file has come back as %s, not %s (%s)", version, got, want, out)
		}
		if protocol := strings.TrimPrefix(version, "--http"); !strings.HasPrefix(out, strings.TrimSuffix(protocol, ".0")+" 200") {
			t.Errorf("%s was answered by HTTP %s", version, out)
		}
	}
	w.part(t, "HTTP3", func(t *testing.T) {
		c := &http.Client{Transport: w.http3(t)}
		at := "https://" + string(store) + "." + domain + "/kept/by-http3"
		f, err := os.Open(sent)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		put, err := http.NewRequestWithContext(t.Context(), http.MethodPut, at, f)
		if err != nil {
			t.Fatal(err)
		}
		put.ContentLength = int64(bytes)
		res, err := c.Do(put)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusCreated {
			t.Fatalf("the upload is answered with %s", res.Status)
		}
		get, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if res, err = c.Do(get); err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		sum := sha256.New()
		if n, err := io.Copy(sum, res.Body); err != nil || hex.EncodeToString(sum.Sum(nil)) != want || res.ProtoMajor != 3 {
			t.Errorf("by %s, %d bytes of %d came back, %v", res.Proto, n, bytes, err)
		}
	})
}

// http3 calls the edge of the near server by HTTP/3.
func (w *clients) http3(t *testing.T) *http3.Transport {
	t.Helper()
	roots := x509.NewCertPool()
	if raw, err := os.ReadFile(w.authority); err != nil || !roots.AppendCertsFromPEM(raw) {
		t.Fatalf("the authority of the near server: %v", err)
	}
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
		Dial: func(ctx context.Context, _ string, tc *tls.Config, qc *quic.Config) (*quic.Conn, error) {
			return quic.DialAddrEarly(ctx, net.JoinHostPort(w.near.address(), "443"), tc, qc)
		},
	}
	t.Cleanup(func() { _ = transport.Close() })
	return transport
}

// randomFile makes a file of random bytes, and returns its checksum.
func randomFile(t *testing.T, path string, bytes int) string {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, sum), rand.Reader, int64(bytes)); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// sumOf is the checksum of a file.
func sumOf(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// tellsTheClient: nginx on the far server learns by the PROXY protocol who calls the near one, and by TCP alone.
func (w *clients) tellsTheClient(t *testing.T) {
	if got := w.mustLocal(t, "curl", "--silent", "--show-error", "http://"+w.own[store]+":8081/"); got != w.net+".1\n" {
		t.Errorf("the client is %q", got)
	}
}

// redis uses a program by raw TCP and by TLS, with many requests before the first answer.
func (w *clients) redis(t *testing.T) {
	raw := []string{"redis-cli", "-h", w.own[cache]}
	secure := []string{"redis-cli", "-h", w.near.address(), "-p", "6380", "--tls", "--sni", string(cache) + "." + domain, "--cacert", w.authority}
	w.await("Redis serves", func() error { _, err := w.local(append(raw, "PING")...); return err })
	for i, cli := range [][]string{raw, secure} {
		key, value := fmt.Sprint("key", i), strings.Repeat("value", 1000)
		if out := w.mustLocal(t, append(cli, "SET", key, value)...); out != "OK\n" {
			t.Errorf("SET is answered with %q", out)
		}
		if out := w.mustLocal(t, append(cli, "GET", key)...); out != value+"\n" {
			t.Errorf("GET is answered with %q", out)
		}
	}
	var pipe bytes.Buffer
	for i := range 50_000 {
		fmt.Fprintf(&pipe, "SET piped:%d %d\r\n", i, i)
	}
	cmd := exec.CommandContext(t.Context(), raw[0], append(raw[1:], "--pipe")...)
	cmd.Stdin = &pipe
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "errors: 0, replies: 50000") {
		t.Errorf("50,000 requests at once: %v\n%s", err, out)
	}
	if out := w.mustLocal(t, append(raw, "GET", "piped:49999")...); out != "49999\n" {
		t.Errorf("the last is %q", out)
	}
	out := w.mustLocal(t, "redis-benchmark", "-h", w.own[cache], "-n", "20000", "-c", "20", "-P", "16", "-q", "-t", "set,get,lpush,zadd")
	if strings.Contains(strings.ToLower(out), "error") || !strings.Contains(out, "ZADD: ") {
		t.Error(out)
	}
}

// events: each piece of an answer comes before the next one is sent.
func (w *clients) events(t *testing.T) {
	w.await("Node.js serves", func() error { _, err := w.local(w.curl(live, "/")...); return err })
	for _, version := range []string{"--http1.1", "--http2"} {
		args := w.curl(live, "/events", version, "--no-buffer")
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Stderr = os.Stderr
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(stdout)
		for _, text := range []string{"begins", "1", "2", "3", "ends"} {
			if text != "begins" {
				w.mustLocal(t, w.curl(live, "/next", "--data", text)...)
			}
			for lines.Scan() && lines.Text() == "" {
			}
			if got := lines.Text(); got != "data: "+text {
				t.Fatalf("%s: the event is %q, not %s: %v", version, got, text, lines.Err())
			}
		}
		for lines.Scan() {
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// webSocket has a message echoed in several ways.
func (w *clients) webSocket(t *testing.T) {
	out := w.mustLocal(t, "/usr/bin/python3", "testdata/echo.py", "wss://"+string(live)+"."+domain+"/echo", w.near.address(), w.authority)
	if out != "echoed\n" {
		t.Errorf("the client says %q", out)
	}
}

// postgres loads many rows into a database and reads them again, with TLS that is verified.
func (w *clients) postgres(t *testing.T) {
	psql := func(stdin io.Reader, mode, query string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "psql", "--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set", "ON_ERROR_STOP=1", "--command", query, fmt.Sprintf(
			"host=%s.%s hostaddr=%s port=5432 user=postgres dbname=postgres sslmode=%s sslrootcert=%s", data, domain, w.own[data], mode, w.authority))
		cmd.Stdin = stdin
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	const whole = "verify-full"
	w.await("PostgreSQL serves", func() error {
		out, err := psql(nil, whole, "SELECT 6*7")
		if err == nil && out != "42\n" {
			err = errors.New(out)
		}
		return err
	})
	if out, err := psql(nil, "disable", "SELECT 1"); err == nil {
		t.Errorf("a connection without TLS is accepted: %s", out)
	}
	must := func(stdin io.Reader, query string) string {
		t.Helper()
		out, err := psql(stdin, whole, query)
		if err != nil {
			t.Fatalf("%s: %v\n%s", query, err, out)
		}
		return out
	}
	const rows = 200_000
	var table bytes.Buffer
	for i := range rows {
		fmt.Fprintf(&table, "%d\t%x\n", i, sha256.Sum256(fmt.Append(nil, i)))
	}
	must(nil, "CREATE TABLE loaded (n int PRIMARY KEY, sum text)")
	must(bytes.NewReader(table.Bytes()), "COPY loaded FROM STDIN")
	if out := must(nil, "SELECT count(*), sum(n), bool_and(sum = encode(sha256(n::text::bytea), 'hex')) FROM loaded"); out != "200000|19999900000|t\n" {
		t.Errorf("the table has %s", out)
	}
	if out := must(nil, "COPY (SELECT * FROM loaded ORDER BY n) TO STDOUT"); out != table.String() {
		t.Errorf("%d bytes of %d come back, or others", len(out), table.Len())
	}
}

// dns asks a name server by UDP and by TCP, from many ports at once.
func (w *clients) dns(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(w.own[zone], "53"))
		}}
		ask := func() error {
			found, err := resolver.LookupNetIP(t.Context(), "ip4", "answer.test.")
			if err == nil && (len(found) != 1 || found[0].String() != "192.0.2.7") {
				err = fmt.Errorf("the answer is %v", found)
			}
			return err
		}
		w.await("Unbound answers by "+network, ask)
		var clients sync.WaitGroup
		for range 50 {
			clients.Go(func() {
				if err := ask(); err != nil {
					t.Errorf("%s: %v", network, err)
				}
			})
		}
		clients.Wait()
	}
}

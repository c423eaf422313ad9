package compat_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestHostileClients is rude to a daemon in many ways at once, while a polite client continues, and
// then checks for leaks: open files, memory, goroutines, and the daemon's output.
func TestHostileClients(t *testing.T) {
	w := newWorld(t, "fake")
	h := hostile{world: w, id: w.run(t, launch{Config: &machineConfig{Image: w.image}}).ID}
	h.hangUp(t)
	files, memory := h.openFiles(t), h.memory(t, "VmRSS")

	stop := h.polite(t)
	t.Run("attacks", func(t *testing.T) {
		t.Run("types", h.wrongTypes)
		t.Run("parameters", h.badParameters)
		t.Run("documents", h.badDocuments)
		t.Run("large bodies", h.largeBodies)
		t.Run("paths", h.badPaths)
		t.Run("protocol", h.brokenProtocol)
		t.Run("pipelining", h.pipelining)
		t.Run("half closed", h.halfClosed)
		t.Run("slow headers", h.slowHeaders)
		t.Run("slow bodies", h.slowBodies)
		t.Run("many idle", h.manyIdle)
		t.Run("lost clients", h.lostClients)
		t.Run("websocket", h.websocketAbuse)
		t.Run("flooded stdin", h.floodedStdin)
	})
	stop()

	h.hangUp(t)
	peak := h.memory(t, "VmHWM")
	t.Logf("memory of the daemon: %d MB before, up to %d MB under attack, %d MB after", memory>>20, peak>>20, h.memory(t, "VmRSS")>>20)
	if peak > memory+256<<20 {
		t.Errorf("the daemon took up to %d MB under attack, %d MB before", peak>>20, memory>>20)
	}
	// Some attacks are well-formed stops and signals; what counts is that the machine still obeys.
	must(t, "stop after the attacks", w.stop(t.Context(), w.app, h.id, "SIGKILL", time.Second))
	w.reach(t, h.id, "stopped")
	_, err := w.start(t.Context(), w.app, h.id)
	must(t, "start after the attacks", err)
	w.reach(t, h.id, "started")
	h.hangUp(t)
	h.closesFiles(t, files)
	h.nothingLeft(t, w.daemon.Quit())
}

// hostile is who attacks a world in which one Machine runs.
type hostile struct {
	world
	id string
}

// another attacks a Machine of its own, which no other attack stops.
func (h hostile) another(t *testing.T) hostile {
	t.Helper()
	h.id = h.run(t, launch{Config: &machineConfig{Image: h.image}}).ID
	t.Cleanup(func() {
		must(t, "destroy", h.destroy(context.Background(), h.app, h.id, true))
		must(t, "wait for the end", h.wait(context.Background(), h.app, h.id, url.Values{"state": {"destroyed"}}))
	})
	return h
}

// patience bounds what an attack waits for; the daemon is quicker with all of it.
const patience = 90 * time.Second

// openFiles lists the open files of the daemon.
func (h hostile) openFiles(t *testing.T) []string {
	t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(h.daemon.PID()), "fd")
	entries, err := os.ReadDir(dir)
	must(t, "list open files", err)
	var files []string
	for _, e := range entries {
		if link, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil { // it may have been closed
			files = append(files, link)
		}
	}
	slices.Sort(files)
	return files
}

// closesFiles waits until the daemon has no more open files than before: it opens some for
// a moment at any time.
func (h hostile) closesFiles(t *testing.T, before []string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(50 * time.Millisecond) {
		now := h.openFiles(t)
		if len(now) <= len(before) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("the daemon has %d open files, %d before:\n%s\nbefore:\n%s", len(now), len(before), strings.Join(now, "\n"), strings.Join(before, "\n"))
			return
		}
	}
}

// memory returns a line of the daemon's status in /proc, in bytes.
func (h hostile) memory(t *testing.T, name string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(h.daemon.PID()), "status"))
	must(t, "read status", err)
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.Atoi(strings.Fields(value)[0])
			must(t, "read "+name, err)
			return n << 10
		}
	}
	t.Fatalf("no %s", name)
	return 0
}

// hangUp ends the connections of the client and waits until the daemon has none.
func (h hostile) hangUp(t *testing.T) {
	t.Helper()
	h.http.CloseIdleConnections()
	for deadline := time.Now().Add(patience); h.connections(t) > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("the daemon still has %d connections", h.connections(t))
		}
		<-time.After(50 * time.Millisecond)
	}
	// The goroutine of a connection ends just after its socket.
	<-time.After(2 * time.Second)
}

// connections counts the sockets at the daemon's end that it has not closed.
func (h hostile) connections(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/net/tcp")
	must(t, "list connections", err)
	address, err := netip.ParseAddrPort(h.daemon.Addr())
	must(t, "parse the address", err)
	const established, closeWait = "01", "08" // the others are listeners, or closed by the daemon
	n := 0
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", address.Port())) && slices.Contains([]string{established, closeWait}, fields[3]) {
			n++
		}
	}
	return n
}

// nothingLeft looks through all that the daemon printed, stacks included.
func (h hostile) nothingLeft(t *testing.T, output string) {
	t.Helper()
	before, stacks, ok := strings.Cut(output, "SIGQUIT: quit")
	if !ok || !strings.Contains(stacks, "goroutine ") {
		t.Fatal("the daemon printed no stacks")
	}
	for _, bad := range []string{"panic", "fatal error", "DATA RACE", "superfluous"} {
		if i := strings.Index(before, bad); i >= 0 {
			t.Errorf("the daemon printed %s", before[max(0, i-200):min(len(before), i+2000)])
		}
	}
	for stack := range strings.SplitSeq(stacks, "\n\n") {
		if strings.Contains(stack, "hangar/api.Serve") {
			continue // it accepts connections, and ends with the daemon
		}
		for _, owner := range []string{"net/http.(*conn).serve", "hangar/api.", "coder/websocket", "hangar/internal/wsmux"} {
			if strings.Contains(stack, owner) {
				t.Errorf("a goroutine is left:\n%s", stack)
				break
			}
		}
	}
}

// polite keeps asking for the Machine until the returned function is called. It must
// never be refused.
func (h hostile) polite(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := newClient(t, h.daemon, h.daemon.Token())
	var asking sync.WaitGroup
	asking.Go(func() {
		for ctx.Err() == nil {
			if _, err := c.get(ctx, h.app, h.id); err != nil && ctx.Err() == nil {
				t.Errorf("a polite client is refused: %v", err)
			}
			<-time.After(5 * time.Millisecond)
		}
	})
	return func() {
		cancel()
		asking.Wait()
		c.http.CloseIdleConnections()
	}
}

// dial opens a connection that goes with the test.
func (h hostile) dial(t *testing.T) *net.TCPConn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", h.daemon.Addr())
	must(t, "dial", err)
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// request is the head of a request with a token, without its empty line.
func (h hostile) request(method, path string, headers ...string) string {
	lines := append([]string{method + " " + path + " HTTP/1.1", "Host: x", "Authorization: " + h.authorization}, headers...)
	return strings.Join(lines, "\r\n") + "\r\n"
}

// answer reads the answer to text, if there is one. Writing continues meanwhile, because a server
// may answer before it has read everything.
func (h hostile) answer(t *testing.T, text io.Reader) (status int, body string) {
	t.Helper()
	conn := h.dial(t)
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.Copy(conn, text)
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		status = res.StatusCode
		raw, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		_ = res.Body.Close()
		body = string(raw)
	}
	_ = conn.Close()
	<-written
	return status, body
}

// send posts a body and returns the answer.
func (h hostile) send(t *testing.T, method, path string, body []byte) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, h.base+path, bytes.NewReader(body))
	must(t, "make a request", err)
	r.Header.Set("Authorization", h.authorization)
	res, err := h.http.Do(r)
	must(t, method+" "+path, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	must(t, "read the answer", err)
	return res.StatusCode, string(raw)
}

// refuses checks that an answer is a 4xx with an error that says words.
func refuses(t *testing.T, what string, status int, text string, words ...string) {
	t.Helper()
	var body struct {
		Error string `json:"error"`
	}
	if status < 400 || status > 499 || json.Unmarshal([]byte(text), &body) != nil || body.Error == "" {
		t.Errorf("%s is answered %d %q, want a 4xx with an error", what, status, text)
	}
	for _, word := range words {
		if !strings.Contains(body.Error, word) {
			t.Errorf("%s is answered %q, which does not name %q", what, body.Error, word)
		}
	}
}

// spoil calls try with copies of a document in each of which one property has a
// value of another type. It names the property by its path.
func spoil(doc any, path []string, put func(any) any, try func(path []string, spoilt any)) {
	for _, other := range []any{json.Number("-1"), json.Number("1.5"), json.Number("1e999"), "\x00spoilt", true, []any{}, []any{[]any{nil}}, map[string]any{"x": 1}} {
		if fmt.Sprintf("%T", other) != fmt.Sprintf("%T", doc) {
			try(path, put(other))
		}
	}
	switch v := doc.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			spoil(v[k], append(slices.Clone(path), k), func(x any) any {
				c := maps.Clone(v)
				c[k] = x
				return put(c)
			}, try)
		}
	case []any:
		for i := range v {
			spoil(v[i], path, func(x any) any {
				c := slices.Clone(v)
				c[i] = x
				return put(c)
			}, try)
		}
	}
}

func (h hostile) wrongTypes(t *testing.T) {
	t.Parallel()
	wish := `{"region":"loc","skip_launch":true,"skip_service_registration":false,"config":{
		"image":"` + h.image + `","env":{"A":"1"},"init":{"exec":["/bin/sh"],"cmd":["x"],"tty":false},
		"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"metadata":{"a":"b"},"auto_destroy":false,
		"restart":{"policy":"no","max_retries":1},"stop_config":{"timeout":"5s","signal":"SIGTERM"},
		"services":[{"protocol":"tcp","internal_port":80,"autostop":"off","autostart":true,"force_instance_key":"x","min_machines_running":0,
			"ports":[{"port":80,"handlers":["http"],"force_https":false,
			"tls_options":{"alpn":["h2"],"versions":["TLSv1.2"],"default_self_signed":false},"proxy_proto_options":{"version":"v2"},
			"http_options":{"compress":true,"h2_backend":false,"idle_timeout":60,"headers_read_timeout":10,"response":{"pristine":false}}}],"concurrency":{"type":"requests","soft_limit":1,"hard_limit":2},
			"checks":[{"type":"tcp","interval":"15s","timeout":"2s","grace_period":"1s"}]}],
		"checks":{"alive":{"type":"http","port":80,"path":"/","method":"GET","headers":[{"name":"A","values":["b"]}]}},
		"files":[{"guest_path":"/x","raw_value":"eA==","mode":420}],"metrics":{"port":9091,"path":"/metrics","https":false},
		"dns":{"skip_registration":false,"nameservers":["1.1.1.1"],"options":[{"name":"ndots","value":"1"}],"hostname":"x"},"statics":[{"guest_path":"/a","url_prefix":"/a"}]}}`
	for _, request := range []struct{ path, body string }{
		{"/v1/apps", `{"app_name":"spoilt","name":"spoilt","org_slug":"personal","network":"default"}`},
		{machines(h.app), wish},
		{machines(h.app), `{"name":"spoilt","current_version":"","lease_ttl":0,"lsvd":false,"config":{}}`},
		{machines(h.app, h.id, "stop"), `{"signal":"SIGWINCH","timeout":"300s"}`},
		{machines(h.app, h.id, "exec"), `{"cmd":"true","command":["true"],"stdin":"","timeout":1}`},
		{machines(h.app, h.id, "signal"), `{"signal":"SIGWINCH"}`},
	} {
		path := request.path
		decoder := json.NewDecoder(strings.NewReader(request.body))
		decoder.UseNumber()
		var doc any
		must(t, "decode", decoder.Decode(&doc))
		spoil(doc, nil, func(x any) any { return x }, func(at []string, spoilt any) {
			raw, err := json.Marshal(spoilt)
			if err != nil {
				raw = fmt.Appendf(nil, "%v", spoilt) // 1e999 is no number to the encoder
			}
			status, text := h.send(t, http.MethodPost, path, raw)
			what := fmt.Sprintf("POST %s with another %s: %s", path, strings.Join(at, "."), raw)
			if status < 300 && len(at) > 0 && mayBeAnything(at, path) {
				// What is accepted must not break the clients that list it.
				if err := json.Unmarshal([]byte(text), new(machine)); err != nil && path == machines(h.app) {
					t.Errorf("%s is accepted, but clients fail to read it: %v", what, err)
				}
				return
			}
			refuses(t, what, status, text)
			if word := named(at); word != "" && !strings.Contains(text, word) {
				t.Errorf("%s is answered %q, which does not name %q", what, text, word)
			}
		})
	}
}

// mayBeAnything lists the properties of which another type than the usual is fine,
// or that a request may leave out.
func mayBeAnything(at []string, path string) bool {
	switch last := at[len(at)-1]; {
	case strings.HasSuffix(path, "/stop"), strings.HasSuffix(path, "/exec") && last != "command" && last != "cmd":
		return true // the timeout as a number, nothing in the place of a default
	default:
		return slices.Contains([]string{"timeout", "interval", "grace_period", "signal", "autostop", "cmd", "command", "app_name", "name"}, last)
	}
}

// named is the word of a path that an error must hold.
func named(at []string) string {
	switch {
	case len(at) == 0:
		return ""
	case len(at) > 1 && slices.Contains([]string{"env", "metadata", "checks"}, at[len(at)-2]):
		return at[len(at)-2] // the keys of a map are not properties
	default:
		return at[len(at)-1]
	}
}

func (h hostile) badParameters(t *testing.T) {
	t.Parallel()
	const huge = 40 << 10
	for _, p := range []struct{ method, path, name string }{
		{"GET", machines(h.app), "state"},
		{"GET", machines(h.app), "include_deleted"},
		{"GET", machines(h.app), "summary"},
		{"GET", machines(h.app, h.id, "wait"), "state"},
		{"GET", machines(h.app, h.id, "wait"), "timeout"},
		{"GET", machines(h.app, h.id, "events"), "limit"},
		{"GET", machines(h.app, h.id, "events"), "follow"},
		{"POST", machines(h.app, h.id, "restart"), "force_stop"},
		{"POST", machines(h.app, h.id, "restart"), "timeout"},
		{"POST", machines(h.app, h.id, "restart"), "signal"},
		{"DELETE", machines(h.app, h.id), "kill"},
		{"DELETE", machines(h.app, h.id), "force"},
		{"DELETE", "/v1/apps/" + h.app, "force"},
		{"GET", "/api/v1/apps/" + h.app + "/logs", "limit"},
		{"GET", "/api/v1/apps/" + h.app + "/logs", "instance"},
		{"GET", "/api/v1/apps/" + h.app + "/logs", "next_token"},
	} {
		for _, value := range []string{"nonsense", "-1", "99999999999999999999", "\x00", "\xff\xfe", "../../etc/passwd", strings.Repeat("a", huge)} {
			query := url.Values{p.name: {value}}.Encode()
			status, text := h.send(t, p.method, p.path+"?"+query, nil)
			refuses(t, fmt.Sprintf("%s %s?%.60s", p.method, p.path, query), status, text, p.name)
		}
	}
	for _, query := range []string{"%zz", "a;b", "metadata.=x", "metadata.a=1&metadata.a=2"} {
		status, text := h.send(t, "GET", machines(h.app)+"?"+query, nil)
		refuses(t, "the query "+query, status, text)
	}
	// Past the client, which has no parameters but those of the document.
	status, text := h.answer(t, strings.NewReader(h.request("GET", machines(h.app)+"?"+strings.Repeat("x=1&", 5000))+"\r\n"))
	if status != http.StatusOK || !strings.Contains(text, h.id) {
		t.Errorf("a query of unknown parameters is answered %d %.200s", status, text)
	}
	status, _ = h.answer(t, strings.NewReader(h.request("GET", machines(h.app)+"?x="+strings.Repeat("a", 200<<10))+"\r\n"))
	if status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a query of 200 KiB is answered %d", status)
	}
}

func (h hostile) badDocuments(t *testing.T) {
	t.Parallel()
	deep := func(open, end string, n int) string { return strings.Repeat(open, n) + "1" + strings.Repeat(end, n) }
	for name, body := range map[string]string{
		"nothing":          "",
		"blanks":           " \r\n\t",
		"half an object":   `{"config":`,
		"two values":       `{"config":{"image":"x"}}{}`,
		"a comment":        `{/**/}`,
		"single quotes":    `{'config':{}}`,
		"a byte order":     "\xef\xbb\xbf{}",
		"UTF-16":           "\xff\xfe{\x00}\x00",
		"broken UTF-8":     "{\"config\":{\"image\":\"" + h.image + "\",\"env\":{\"A\":\"\xff\xfe\"}}}",
		"a surrogate half": "{\"config\":{\"image\":\"\\ud800\"}}",
		"a NUL":            "{\"config\":{\"image\":\"x\\u0000\"}}",
		"deep arrays":      `{"config":{"image":"x","a":` + deep("[", "]", 100_000) + `}}`,
		"deep objects":     `{"config":{"image":"x","a":` + deep(`{"a":`, "}", 9_000) + `}}`,
		"a large number":   `{"config":{"image":"x","guest":{"cpus":` + strings.Repeat("9", 100_000) + `}}}`,
		"many variables":   `{"config":{"image":"x","env":{"A":"` + strings.Repeat("a", 512<<10) + `"}}}`,
		"NaN":              `{"config":{"image":"x","guest":{"cpus":NaN}}}`,
		"a form":           "config=x&image=y",
	} {
		for _, path := range []string{machines(h.app), machines(h.app, h.id)} {
			status, text := h.send(t, http.MethodPost, path, []byte(body))
			refuses(t, name+" to "+path, status, text)
		}
	}
}

// zeroes is an endless text of zeroes.
type zeroes struct{}

// Read implements io.Reader.
func (zeroes) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func (h hostile) largeBodies(t *testing.T) {
	t.Parallel()
	const size = 10 << 20
	var sending sync.WaitGroup
	for _, path := range []string{"/v1/apps", machines(h.app), machines(h.app, h.id), machines(h.app, h.id, "exec"), machines(h.app, h.id, "stop")} {
		for range 4 {
			sending.Go(func() {
				sized := io.MultiReader(strings.NewReader(h.request("POST", path, "Content-Length: "+strconv.Itoa(size))+"\r\n"), io.LimitReader(zeroes{}, size))
				if status, text := h.answer(t, sized); status != http.StatusRequestEntityTooLarge {
					t.Errorf("10 MiB to %s are answered %d %s", path, status, text)
				}
			})
			sending.Go(func() {
				chunk := fmt.Sprintf("%x\r\n%s\r\n", 64<<10, strings.Repeat("0", 64<<10))
				chunked := io.MultiReader(strings.NewReader(h.request("POST", path, "Transfer-Encoding: chunked")+"\r\n"), strings.NewReader(strings.Repeat(chunk, size/(64<<10))))
				if status, text := h.answer(t, chunked); status != http.StatusRequestEntityTooLarge {
					t.Errorf("10 MiB in chunks to %s are answered %d %s", path, status, text)
				}
			})
		}
	}
	sending.Wait()
}

func (h hostile) badPaths(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"/v1/apps/..%2f..%2f..%2fetc%2fpasswd", "/v1/apps/%2e%2e", "/v1/apps/%00", "/v1/apps/%ff", "/v1/apps/" + strings.Repeat("a", 20_000),
		"/v1/apps/" + h.app + "/machines/..%2f..%2fadmin.token", "/v1/apps/" + h.app + "/machines/%2e%2e%2f%2e%2e", "/v1/apps/" + h.app + "/machines/" + strings.ToUpper(h.id),
		"/v1/apps/" + h.app + "/machines/" + h.id + "%00", "/v1/apps/" + h.app + "/machines/" + h.id + "/metadata/..%2f..%2fx",
		"/v1/apps/" + h.app + "/machines/" + h.id + "/nothing", "/v1/images/sha256:..%2f..%2fx", "/v2/..%2f..%2fetc/manifests/passwd", "/v2/a/blobs/..%2f..%2fx",
		"/v1/../../../etc/passwd", "//etc/passwd", "/v1/apps/../../admin.token", "/%2e%2e/%2e%2e/etc/passwd", "/admin.token", "/debug/pprof/", "/debug/vars",
	} {
		status, text := h.answer(t, strings.NewReader(h.request("GET", path, "Connection: close")+"\r\n"))
		if status < 300 || status > 499 || strings.Contains(text, "root:") || strings.Contains(text, h.daemon.Token()) {
			t.Errorf("GET %.80s is answered %d %.200s", path, status, text)
		}
	}
	for _, method := range []string{"PUT", "PATCH", "TRACE", "OPTIONS", "BREW"} {
		status, text := h.send(t, method, "/v1/apps", nil)
		refuses(t, method, status, text, "method")
	}
}

const (
	text    = 1
	binData = 2
	closing = 8
	ping    = 9
)

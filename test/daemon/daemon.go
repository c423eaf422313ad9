// Package daemon runs the real hangar binary for tests: it builds it, starts it with a data
// directory of the test's own, kills it in any way that the test wants, and removes all it made.
//
// The binary is what `make build` leaves in bin/hangar, or the file that
// HANGAR_TEST_BIN names; so what is tested is what is shipped. A Daemon belongs to
// one test at a time; its methods are not for concurrent use, but Client is.
//
// It is not a mock of the platform and knows nothing of what is tested.
package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/api/openapi/openapitest"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/internal/freeport"
)

// Options say how a daemon is run.
type Options struct {
	Driver string   // "gvisor" or "fake"; empty: gvisor
	API    string   // address of the API, of this host; empty: a free one of the loopback
	Args   []string // more arguments of `hangar up`
	Env    []string // more environment, "NAME=value"
}

const (
	// readyWithin bounds how long a daemon may take to serve.
	readyWithin = 3 * time.Minute
	// goneWithin bounds how long the kernel may take to free what a daemon had.
	goneWithin = time.Minute
	// endsWithin bounds how long a daemon may take to end, on a server that is busy with other things.
	endsWithin = 2 * time.Minute
)

// Daemon is a running hangar with a data directory.
type Daemon struct {
	tb   testing.TB
	o    Options
	dir  string
	addr string // host:port of the API, the same over restarts
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	log  string        // file of its output

	document *openapitest.Document // nil until it is needed
}

// Binary returns the path of the hangar binary under test.
func Binary(tb testing.TB) string {
	tb.Helper()
	path := os.Getenv("HANGAR_TEST_BIN")
	if path == "" {
		path = filepath.Join(root(tb), "bin", "hangar")
	}
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("no hangar binary: %v; run `make build` first or set HANGAR_TEST_BIN", err)
	}
	return path
}

// root finds the directory of go.mod.
func root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	tb.Fatal("not inside the module")
	return ""
}

// Start runs a daemon on a new data directory and waits until it serves. The test
// ends with `hangar down`, which must leave nothing.
func Start(tb testing.TB, o Options) *Daemon {
	tb.Helper()
	if o.Driver == "" {
		o.Driver = "gvisor"
	}
	if o.Driver == "gvisor" && os.Geteuid() != 0 {
		tb.Skip("needs root: running Machines makes namespaces, mounts and cgroups")
	}
	// Short, because sockets live below it.
	dir, err := os.MkdirTemp("", "hgr") //nolint:usetesting // a TempDir is named after the test and too long
	if err != nil {
		tb.Fatal(err)
	}
	if o.API == "" {
		o.API = freeAddr(tb)
	}
	d := &Daemon{tb: tb, o: o, dir: dir, addr: o.API, log: filepath.Join(tb.TempDir(), "daemon.log")}
	tb.Cleanup(d.down)
	d.Up()
	return d
}

// freeAddr picks a loopback address without a listener.
func freeAddr(tb testing.TB) string {
	tb.Helper()
	address, err := freeport.Address(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return address
}

// Dir returns the data directory.
func (d *Daemon) Dir() string { return d.dir }

// Addr returns the address of the API, host:port.
func (d *Daemon) Addr() string { return d.addr }

// Edge returns where Apps are served under their names, host:port, without and with TLS.
// Over restarts it is the same.
func (d *Daemon) Edge() (httpAddr, httpsAddr string) {
	d.tb.Helper()
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(d.dir, name))
		if err != nil {
			d.tb.Fatal(err)
		}
		return strings.TrimSpace(string(raw))
	}
	return read("http.addr"), read("https.addr")
}

// URL returns the base URL of the API.
func (d *Daemon) URL() string { return "http://" + d.addr }

// PID returns the process id of the daemon.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Up starts the daemon, which must not run, and waits until it serves. It returns
// how long that took.
func (d *Daemon) Up() time.Duration {
	d.tb.Helper()
	began := time.Now()
	d.launch()
	for time.Since(began) < readyWithin {
		if res, err := http.Get(d.URL() + "/healthz"); err == nil {
			_ = res.Body.Close()
			return time.Since(began)
		}
		select {
		case <-d.done:
			d.tb.Fatalf("the daemon ended at once:\n%s", d.Output())
		case <-time.After(2 * time.Millisecond):
		}
	}
	d.tb.Fatalf("the daemon does not serve after %s:\n%s", readyWithin, d.Output())
	return 0
}

// launch starts the process of the daemon.
func (d *Daemon) launch() {
	d.tb.Helper()
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.tb.Fatal(err)
	}
	defer out.Close()
	args := append([]string{"up", "--dir", d.dir, "--api", d.addr, "--http", "127.0.0.1:0", "--https", "127.0.0.1:0", "--wireguard", ":0", "--driver", d.o.Driver}, d.o.Args...)
	d.cmd = exec.Command(Binary(d.tb), args...)
	d.cmd.Env = append(append(os.Environ(), "HANGAR_CONFIG=/dev/null"), d.o.Env...)
	d.cmd.Stdout, d.cmd.Stderr = out, out
	if err := d.cmd.Start(); err != nil {
		d.tb.Fatal(err)
	}
	d.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(d.cmd, d.done)
}

// UpAndKill starts the daemon and kills it after a while, whether or not it serves
// by then.
func (d *Daemon) UpAndKill(after time.Duration) {
	d.tb.Helper()
	d.launch()
	select {
	case <-d.done:
		d.tb.Fatalf("the daemon ended at once:\n%s", d.Output())
	case <-time.After(after):
		d.Kill()
	}
}

// Kill ends the daemon with SIGKILL.
func (d *Daemon) Kill() { d.end(syscall.SIGKILL) }

// Term ends the daemon with SIGTERM, which leaves its Machines running.
func (d *Daemon) Term() { d.end(syscall.SIGTERM) }

// Quit ends the daemon with SIGQUIT, on which it prints the stack of every
// goroutine, and returns all that it ever printed.
func (d *Daemon) Quit() string {
	d.tb.Helper()
	d.end(syscall.SIGQUIT)
	b, err := os.ReadFile(d.log)
	if err != nil {
		d.tb.Fatal(err)
	}
	return string(b)
}

func (d *Daemon) end(sig syscall.Signal) {
	d.tb.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		d.tb.Fatal(err)
	}
	select {
	case <-d.done:
		return
	case <-time.After(endsWithin):
	}
	// Where it hangs is the last that it prints.
	_ = d.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-d.done:
	case <-time.After(goneWithin):
	}
	d.tb.Fatalf("the daemon does not end on %s:\n%s", sig, d.Output())
}

// Output returns the tail of what the daemon printed.
func (d *Daemon) Output() string {
	b, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	const most = 64 << 10
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return string(b)
}

// Token returns the admin token.
func (d *Daemon) Token() string {
	d.tb.Helper()
	b, err := os.ReadFile(filepath.Join(d.dir, "admin.token"))
	if err != nil {
		d.tb.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// Client returns a client with the admin token whose answers are checked; see
// Transport.
func (d *Daemon) Client() *client.Client {
	d.tb.Helper()
	c := client.New(d.URL(), d.Token(), client.WithHTTPClient(&http.Client{Transport: d.Transport()}))
	d.tb.Cleanup(c.Close)
	return c
}

// Transport returns a transport for clients of the daemon. An answer that is not as
// the daemon's own OpenAPI document says fails the test. The daemon must run.
func (d *Daemon) Transport() http.RoundTripper {
	d.tb.Helper()
	if d.document == nil {
		res, err := http.Get(d.URL() + "/v1/openapi.json")
		if err != nil {
			d.tb.Fatal(err)
		}
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		if err != nil {
			d.tb.Fatal(err)
		}
		if d.document, err = openapitest.Read(raw, "/v2/"); err != nil {
			d.tb.Fatalf("the OpenAPI document: %v", err)
		}
	}
	return d.document.Transport(d.tb, &http.Transport{MaxIdleConnsPerHost: 16})
}

// Run runs the hangar command against this daemon and returns its standard output.
// A command that fails fails the test.
func (d *Daemon) Run(args ...string) string {
	d.tb.Helper()
	out, err := d.Try(args...)
	if err != nil {
		d.tb.Fatalf("hangar %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// Try is Run for a command that may fail.
func (d *Daemon) Try(args ...string) (string, error) {
	d.tb.Helper()
	ctx, cancel := context.WithTimeout(d.tb.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(d.tb), args...)
	cmd.Env = append(os.Environ(), "HANGAR_DIR="+d.dir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w\n%s", err, stderr.String())
	}
	return stdout.String(), nil
}

// Push packs a directory, a binary or a tar archive with `hangar image push` and
// returns the reference to use.
func (d *Daemon) Push(path, name string, flags ...string) string {
	d.tb.Helper()
	words := strings.Fields(d.Run(append([]string{"image", "push", path, name}, flags...)...))
	if len(words) == 0 {
		d.tb.Fatal("image push printed no reference")
	}
	return words[len(words)-1]
}

// down removes everything and fails the test if anything is left.
func (d *Daemon) down() {
	if d.tb.Failed() {
		before, _, _ := strings.Cut(d.Output(), "SIGQUIT: quit") // the stacks would hide what else failed
		d.tb.Logf("output of the daemon:\n%s", before)
	}
	out, err := exec.Command(Binary(d.tb), "down", "--dir", d.dir, "--yes").CombinedOutput()
	if err != nil {
		d.tb.Errorf("hangar down: %v\n%s", err, out)
	}
	if d.done != nil {
		<-d.done
	}
	// A mount that another process has copied meanwhile, with a namespace of its own, keeps its
	// device for as long as that lasts.
	left := Leftovers(d.dir)
	for began := time.Now(); len(left) > 0 && time.Since(began) < goneWithin; left = Leftovers(d.dir) {
		time.Sleep(50 * time.Millisecond)
	}
	for _, thing := range left {
		d.tb.Errorf("hangar down left %s", thing)
	}
}

// Leftovers lists what is still on the host of a data directory: the directory,
// mounts, loop devices and processes that name it.
func Leftovers(dir string) []string {
	var left []string
	if _, err := os.Stat(dir); err == nil {
		left = append(left, "directory "+dir)
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range loops {
		b, _ := os.ReadFile(path)
		if strings.Contains(string(b), dir) {
			left = append(left, "loop device "+path+" of "+strings.TrimSpace(string(b)))
		}
	}
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		b, _ := os.ReadFile(path)
		if line := strings.ReplaceAll(string(b), "\x00", " "); strings.Contains(line, dir) && !strings.Contains(line, " down ") {
			left = append(left, "process "+line)
		}
	}
	run := "hangar-" + Instance(dir)
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range backing {
		b, _ := os.ReadFile(path)
		if strings.Contains(string(b), run) || strings.Contains(string(b), dir) {
			left = append(left, "loop device "+path)
		}
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, run) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	return left
}

// Instance is by what a daemon calls all that it makes outside of its data directory: a digest of
// that.
func Instance(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:3])
}

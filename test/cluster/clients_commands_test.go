package cluster

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/wireguard/peertest"
	"github.com/hangar-platform/hangar/test/daemon"
	"github.com/hangar-platform/hangar/test/e2e/graphql"
)

// running is a program that has not ended.
type running struct {
	cmd    *exec.Cmd
	lines  *bufio.Scanner // of its standard output
	stderr bytes.Buffer
}

// hangar is a hangar command of the near server.
func (w *clients) hangar(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := w.near.inside(t.Context(), daemon.Binary(t), args...)
	cmd.Env = append(os.Environ(), "HANGAR_CONFIG=/dev/null", "HANGAR_DIR="+w.near.dir())
	return cmd
}

// begin starts a program. It is killed with the test, unless that has seen its end.
func begin(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{cmd: cmd}
	r.cmd.Stderr = &r.stderr
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.cmd.ProcessState == nil {
			_ = r.cmd.Process.Kill()
			_ = r.cmd.Wait()
		}
	})
	overdue := time.AfterFunc(patience, func() { _ = r.cmd.Process.Kill() })
	t.Cleanup(func() { overdue.Stop() })
	r.lines = bufio.NewScanner(stdout)
	return r
}

// shows returns the next line that has a text.
func (r *running) shows(t *testing.T, text string) string {
	t.Helper()
	for r.lines.Scan() {
		if strings.Contains(r.lines.Text(), text) {
			return r.lines.Text()
		}
	}
	t.Fatalf("%q ends before it shows %q: %v\n%s", r.cmd.Args, text, r.lines.Err(), r.stderr.String())
	return ""
}

// ends waits for the end of the command, which must have succeeded.
func (r *running) ends(t *testing.T) {
	t.Helper()
	for r.lines.Scan() {
	}
	if err := r.cmd.Wait(); err != nil {
		t.Errorf("%q: %v\n%s", r.cmd.Args, err, r.stderr.String())
	}
}

// commands does with the Machine of another server what the command line offers.
func (w *clients) commands(t *testing.T) {
	const app, name = string(store), string(store)
	m := w.machines[store]
	w.part(t, "image push", func(t *testing.T) {
		words := strings.Fields(w.near.run("image", "push", daemon.Busybox(t, "sh", "echo", "sleep"), "busy:1", "--cmd", "sh", "--cmd", "-c", "--cmd", "echo it is pushed; exec sleep 100000"))
		w.near.run("apps", "create", "busy")
		w.near.run("machine", "run", "busy", words[len(words)-1], "--name", "busy", "--restart", "no")
		if m := w.shown("busy"); m.Host != w.far.id() {
			t.Errorf("the Machine is on host %s", m.Host)
		}
		begin(t, w.hangar(t, "logs", "busy", "--follow")).shows(t, "it is pushed")
		w.near.run("machine", "destroy", "busy", "busy", "--force", "--yes")
		w.near.run("apps", "destroy", "busy", "--yes")
	})
	w.part(t, "exec", func(t *testing.T) {
		cmd := w.hangar(t, "machine", "exec", "-i", app, name, "--", "sh", "-c", "cat; exit 7")
		cmd.Stdin = strings.NewReader("input")
		out, err := cmd.Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 7 || string(out) != "input" {
			t.Errorf("%q, %v", out, err)
		}
	})
	w.part(t, "ssh console", func(t *testing.T) {
		if out := w.near.run("ssh", "console", app, "-C", "cat /etc/hostname"); out != string(m.ID) {
			t.Errorf("the hostname is %q", out)
		}
	})
	w.part(t, "sftp", func(t *testing.T) {
		dir := t.TempDir()
		want := randomFile(t, filepath.Join(dir, "sent"), 8<<20)
		w.near.run("ssh", "sftp", "put", app, filepath.Join(dir, "sent"), "/tmp/sent")
		if got := w.near.run("machine", "exec", app, name, "--", "sha256sum", "/tmp/sent"); !strings.HasPrefix(got, want) {
			t.Errorf("the file has come as %s, not %s", got, want)
		}
		w.near.run("ssh", "sftp", "get", app, "/tmp/sent", filepath.Join(dir, "back"))
		if got := sumOf(t, filepath.Join(dir, "back")); got != want {
			t.Errorf("the file has come back as %s, not %s", got, want)
		}
	})
	w.part(t, "proxy", func(t *testing.T) {
		proxy := begin(t, w.hangar(t, "proxy", "0:6379", string(cache), "--bind", w.near.address(), "--quiet"))
		host, port, err := net.SplitHostPort(strings.TrimSpace(proxy.shows(t, ":")))
		if err != nil {
			t.Fatal(err)
		}
		if out := w.mustLocal(t, "redis-cli", "-h", host, "-p", port, "SET", "proxied", "yes"); out != "OK\n" {
			t.Errorf("SET is answered with %q", out)
		}
		if out := w.mustLocal(t, "redis-benchmark", "-h", host, "-p", port, "-n", "5000", "-c", "10", "-P", "16", "-q", "-t", "set,get"); !strings.Contains(out, "GET: ") {
			t.Error(out)
		}
		if err := proxy.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		proxy.ends(t)
	})
	w.part(t, "logs", func(t *testing.T) {
		followed := begin(t, w.hangar(t, "logs", app, name, "--follow"))
		for _, page := range []string{"/kept/?first", "/kept/?second"} {
			w.mustLocal(t, w.curl(store, page)...)
			followed.shows(t, page)
		}
		w.await("the last line", func() error {
			if out := w.near.run("logs", app, name, "--limit", "1", "--bare"); !strings.Contains(out, "/kept/?second") {
				return errors.New(out)
			}
			return nil
		})
	})
	w.part(t, "states", w.states)
	w.part(t, "update", func(t *testing.T) {
		w.near.run("machine", "update", app, name, "--env", "UPDATED=yes")
		if out := w.near.run("machine", "exec", app, name, "--", "printenv", "UPDATED"); out != "yes" {
			t.Errorf("the variable is %q", out)
		}
		if now := w.shown(store); now.Host != w.far.id() || now.ID != m.ID || now.InstanceID == m.InstanceID {
			t.Errorf("the updated Machine is %s, %s on host %s, and was %s, %s", now.ID, now.InstanceID, now.Host, m.ID, m.InstanceID)
		}
		w.await("nginx serves again", func() error { _, err := w.local(w.curl(store, "/kept/")...); return err })
	})
}

// states takes a Machine of another server through its states, each of which a command waits for.
func (w *clients) states(t *testing.T) {
	const app, name = string(cache), string(cache)
	change := func(state hangar.MachineState, verb ...string) {
		t.Helper()
		wait := begin(t, w.hangar(t, "machine", "wait", app, name, "--state", string(state)))
		w.near.run(append([]string{"machine"}, append(verb, app, name)...)...)
		wait.shows(t, string(state))
		wait.ends(t)
		if now := w.shown(cache); now.State != state || now.Host != w.far.id() {
			t.Errorf("after %q the Machine is %s on host %s", verb, now.State, now.Host)
		}
	}
	key := func() string {
		t.Helper()
		var out string
		w.await("Redis answers", func() (err error) {
			out, err = w.local("redis-cli", "-h", w.own[cache], "GET", "state")
			if err == nil && strings.HasPrefix(out, "LOADING") {
				err = errors.New(out)
			}
			return err
		})
		return out
	}
	w.mustLocal(t, "redis-cli", "-h", w.own[cache], "SET", "state", "kept")
	change(hangar.MachineSuspended, "suspend")
	change(hangar.MachineStarted, "start")
	if got := key(); got != "kept\n" {
		t.Errorf("the memory of a suspended Machine has %q", got)
	}
	change(hangar.MachineStopped, "stop")
	change(hangar.MachineStarted, "start")
	if got := key(); got != "\n" {
		t.Errorf("a Machine that was stopped has %q", got)
	}
	w.near.run("machine", "restart", app, name)
	key()
	var types []hangar.EventType
	for _, e := range w.shown(cache).Events {
		types = append(types, e.Type)
	}
	for _, want := range []hangar.EventType{hangar.EventSuspend, hangar.EventStart, hangar.EventExit} {
		if !slices.Contains(types, want) {
			t.Errorf("the near server shows no event %s among %v", want, types)
		}
	}
}

// asleep: a client of the near server wakes a Machine of the far one, by HTTP and by raw TCP.
func (w *clients) asleep(t *testing.T) {
	sleeps := func(app hangar.AppName, verb string) {
		t.Helper()
		w.near.run("machine", verb, string(app), string(app))
	}
	redis := func(command ...string) string {
		t.Helper()
		return w.mustLocal(t, append([]string{"redis-cli", "-h", w.own[cache]}, command...)...)
	}
	redis("SET", "asleep", "kept")
	for _, verb := range []string{"suspend", "stop"} {
		sleeps(store, verb)
		if out := w.mustLocal(t, w.curl(store, "/kept/")...); !strings.Contains(out, "kept") {
			t.Errorf("after %s, the page is %q", verb, out)
		}
	}
	sleeps(store, "suspend")
	if out := w.near.run("ssh", "console", string(store), "-C", "cat /etc/hostname"); out != string(w.machines[store].ID) {
		t.Errorf("the shell of a Machine that was suspended says %q", out)
	}
	sleeps(cache, "suspend")
	if out := redis("GET", "asleep"); out != "kept\n" {
		t.Errorf("the value is %q", out)
	}
	for _, app := range []hangar.AppName{store, cache} {
		if now := w.shown(app); now.State != hangar.MachineStarted || now.Host != w.far.id() {
			t.Errorf("the Machine of %s is %s on host %s", app, now.State, now.Host)
		}
	}
}

// idle: a Machine is suspended when it is idle, and not while a client of the near server is connected that says nothing.
func (w *clients) idle(t *testing.T) {
	update := func(app hangar.AppName, what hangar.AutostopMode) {
		t.Helper()
		config, second := w.shown(app).Config, hangar.Duration(time.Second)
		for i := range config.Services {
			config.Services[i].Autostop, config.Services[i].AutostopAfter = what, &second
		}
		if _, err := w.near.client().UpdateMachine(t.Context(), w.machines[app].Ref(), hangar.MachineUpdate{Config: config}); err != nil {
			t.Fatal(err)
		}
	}
	suspended := func(app hangar.AppName) {
		t.Helper()
		w.near.run("machine", "wait", string(app), string(app), "--state", string(hangar.MachineSuspended), "--timeout", patience.String())
	}
	update(cache, hangar.AutostopSuspend)
	w.await("Redis serves", func() error { _, err := w.local("redis-cli", "-h", w.own[cache], "PING"); return err })
	subscriber := exec.CommandContext(t.Context(), "redis-cli", "-h", w.own[cache], "SUBSCRIBE", "news")
	connected := begin(t, subscriber)
	connected.shows(t, "subscribe")
	began := w.shown(cache).InstanceID
	update(store, hangar.AutostopSuspend)
	suspended(store)
	if now := w.shown(cache); now.State != hangar.MachineStarted || now.InstanceID != began || now.Events[0].Type == hangar.EventSuspend {
		t.Errorf("a Machine with a client is %s, and its last event is %+v", now.State, now.Events[0])
	}
	if out := w.mustLocal(t, "redis-cli", "-h", w.own[cache], "PUBLISH", "news", "extra"); out != "1\n" {
		t.Errorf("%q clients are still connected", out)
	}
	connected.shows(t, "extra")
	if err := subscriber.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	suspended(cache)
	if out := w.mustLocal(t, w.curl(store, "/kept/")...); out != "kept\n" {
		t.Errorf("the page is %q", out)
	}
	for _, app := range []hangar.AppName{store, cache} {
		update(app, hangar.AutostopOff)
	}
	w.await("both serve again", func() error {
		_, err := w.local("redis-cli", "-h", w.own[cache], "PING")
		if err == nil {
			_, err = w.local(w.curl(store, "/kept/")...)
		}
		return err
	})
}

// wireGuard: a computer that is connected to the near server reaches Machines of the far one, by name and by address.
func (w *clients) wireGuard(t *testing.T) {
	config, err := peertest.Parse(w.near.run("wireguard", "create", "personal", "laptop"))
	if err != nil {
		t.Fatal(err)
	}
	if config.Endpoint.Addr() != netip.MustParseAddr(w.near.address()) {
		t.Errorf("the peer calls %s, and not %s", config.Endpoint, w.near.address())
	}
	laptop := peertest.Start(t, config)
	m := w.machines[cache]
	for _, name := range []string{string(cache) + ".internal", string(m.ID) + ".vm." + string(cache) + ".internal"} {
		w.await("the peer finds "+name, func() error {
			found, err := laptop.Resolver().LookupNetIP(t.Context(), "ip6", name)
			if err == nil && (len(found) != 1 || found[0] != m.PrivateIP) {
				err = fmt.Errorf("at %v, and not at %s", found, m.PrivateIP)
			}
			return err
		})
	}
	runs := func(command ...string) (out string) {
		t.Helper()
		if err := laptop.Inside(func() (err error) { out, err = w.local(command...); return err }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := runs("redis-cli", "-h", m.PrivateIP.String(), "SET", "tunnelled", "yes"); out != "OK\n" {
		t.Errorf("SET is answered with %q", out)
	}
	if out := runs("redis-benchmark", "-h", m.PrivateIP.String(), "-n", "5000", "-c", "10", "-P", "16", "-q", "-t", "set,get"); !strings.Contains(out, "GET: ") {
		t.Error(out)
	}
	host := string(store) + ".internal"
	if out := runs("curl", "--silent", "--show-error", "--fail", "--resolve", host+":80:"+w.machines[store].PrivateIP.String(), "http://"+host+"/kept/"); out != "kept\n" {
		t.Errorf("the page is %q", out)
	}
	w.part(t, "SSH", func(t *testing.T) { w.ssh(t, laptop) })
	w.near.run("wireguard", "remove", "personal", "laptop")
	if laptop.Reaches(t.Context(), net.JoinHostPort(m.PrivateIP.String(), "6379"), time.Second) {
		t.Error("a peer that was removed reaches the Machine")
	}
}

// ssh signs in to the Machine of the far server with OpenSSH, with a certificate that the near one has issued.
func (w *clients) ssh(t *testing.T, laptop *peertest.Peer) {
	org, err := w.near.client().Org(t.Context(), hangar.OrgPersonal)
	if err != nil {
		t.Fatal(err)
	}
	root := graphql.Client{URL: w.near.url(), Token: w.near.token()}.Certificate(t, string(org.ID), "root")
	m := w.machines[cache]
	dir := t.TempDir()
	want := randomFile(t, filepath.Join(dir, "sent"), 4<<20)
	runs := func(stdin string, command ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Stdin = strings.NewReader(stdin)
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := laptop.Inside(cmd.Start); err != nil { // a child is in the namespace of the thread that starts it
			t.Fatal(err)
		}
		err := cmd.Wait()
		return out.String(), err
	}
	batch := fmt.Sprintf("put %s/sent /tmp/sent\nget /tmp/sent %s/back\n", dir, dir)
	if out, err := runs(batch, append(append([]string{"sftp", "-b", "-"}, root.Options()...), "root@["+m.PrivateIP.String()+"]")...); err != nil {
		t.Fatalf("sftp: %v\n%s", err, out)
	}
	if got := sumOf(t, filepath.Join(dir, "back")); got != want {
		t.Errorf("the file has come back as %s, not %s", got, want)
	}
	in := append(append([]string{"ssh"}, root.Options()...), "root@"+m.PrivateIP.String())
	if out, err := runs("", append(in, "cat /etc/hostname; sha256sum </tmp/sent")...); err != nil || !strings.HasPrefix(out, string(m.ID)+"\n"+want) {
		t.Errorf("ssh: %q, %v", out, err)
	}
}

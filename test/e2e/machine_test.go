package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/daemon"
)

const (
	app = hangar.AppName("e2e")
	// patience bounds everything that is waited for. It is long because the server
	// may be busy with other things; nothing is measured by it.
	patience = 90 * time.Second
	// retryPause is the pause between two requests for something that is not ready yet.
	retryPause = 5 * time.Millisecond
)

// platform is a daemon with the App that a test runs its Machines in.
type platform struct {
	d *daemon.Daemon
	c *client.Client
}

func start(t *testing.T) *platform {
	t.Helper()
	return startWith(t)
}

// startWith is start with more arguments of `hangar up`.
func startWith(t *testing.T, args ...string) *platform {
	t.Helper()
	if testing.Short() {
		t.Skip("end-to-end tests are left out of short runs")
	}
	p := &platform{d: daemon.Start(t, daemon.Options{Args: args})}
	p.c = p.d.Client()
	if _, err := p.c.CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	return p
}

// reference is the name of an image in the built-in registry.
func (p *platform) reference(image string) string {
	return p.d.Addr() + "/" + string(hangar.OrgPersonal) + "/" + image
}

// push sends an image to the built-in registry, as any OCI client would, and returns
// the reference to run.
func (p *platform) push(t *testing.T, img v1.Image, image string) string {
	t.Helper()
	return p.pushTo(t, img, p.reference(image))
}

func (p *platform) pushTo(t *testing.T, img v1.Image, reference string) string {
	t.Helper()
	ref, err := name.ParseReference(reference, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	user := authn.FromConfig(authn.AuthConfig{Username: "anybody", Password: p.d.Token()})
	if err := remote.Write(ref, img, remote.WithAuth(user), remote.WithContext(t.Context())); err != nil {
		t.Fatalf("push %s: %v", ref, err)
	}
	return ref.Name()
}

// machine is a Machine under test. Its methods fail the test that they are given.
type machine struct {
	p   *platform
	ref hangar.MachineRef
	ip  string
}

// run creates a Machine and waits until it is started.
func (p *platform) run(t *testing.T, name string, config hangar.MachineConfig) *machine {
	t.Helper()
	m := p.create(t, name, config)
	m.wait(t, hangar.MachineStarted)
	return m
}

// create creates a Machine.
func (p *platform) create(t *testing.T, name string, config hangar.MachineConfig) *machine {
	t.Helper()
	got, err := p.c.CreateMachine(t.Context(), app, hangar.MachineCreate{Name: name, Config: config})
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	return &machine{p: p, ref: got.Ref(), ip: got.PrivateIP.String()}
}

// addr is where the Machine listens on a port.
func (m *machine) addr(port int) string { return net.JoinHostPort(m.ip, strconv.Itoa(port)) }

// wait waits until the Machine is in one of the states.
func (m *machine) wait(t *testing.T, states ...hangar.MachineState) hangar.MachineState {
	t.Helper()
	reached, err := m.tryWait(t.Context(), states...)
	if err != nil {
		now, _ := m.p.c.Machine(t.Context(), m.ref)
		t.Fatalf("wait for %v: %v\n%s", states, err, describe(now))
	}
	return reached
}

func (m *machine) tryWait(ctx context.Context, states ...hangar.MachineState) (hangar.MachineState, error) {
	reached, err := m.p.c.WaitMachine(ctx, m.ref, hangar.MachineWait{States: states, Timeout: hangar.MaxWaitTimeout})
	return reached.State, err
}

// describe is a Machine for people who look for what went wrong.
func describe(m *hangar.Machine) string {
	if m == nil {
		return "no Machine"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Machine %s is %s:\n", m.ID, m.State)
	for _, e := range m.Events {
		fmt.Fprintf(&b, "  %s %s %s", time.UnixMilli(e.Timestamp).UTC().Format("15:04:05.000"), e.Type, e.Status)
		if r := e.Request; r != nil {
			fmt.Fprintf(&b, " %s%s", r.Error, r.ColdBoot)
			if x := r.ExitEvent; x != nil {
				fmt.Fprintf(&b, " exit %d signal %d oom %t %s", x.ExitCode, x.Signal, x.OOMKilled, x.Error)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (m *machine) suspend(t *testing.T) {
	t.Helper()
	if err := m.p.c.SuspendMachine(t.Context(), m.ref); err != nil {
		t.Fatalf("suspend: %v", err)
	}
	m.wait(t, hangar.MachineSuspended)
}

func (m *machine) stop(t *testing.T) {
	t.Helper()
	if err := m.p.c.StopMachine(t.Context(), m.ref, hangar.MachineStop{Timeout: 30 * time.Second}); err != nil {
		t.Fatalf("stop: %v", err)
	}
	m.wait(t, hangar.MachineStopped)
}

func (m *machine) start(t *testing.T) {
	t.Helper()
	if _, err := m.p.c.StartMachine(t.Context(), m.ref); err != nil {
		t.Fatalf("start: %v", err)
	}
	m.wait(t, hangar.MachineStarted)
}

// resume starts a suspended Machine, which must bring its memory back.
func (m *machine) resume(t *testing.T) {
	t.Helper()
	m.start(t)
	m.mustBeWarm(t)
}

// mustBeWarm fails if the last start lost the memory.
func (m *machine) mustBeWarm(t *testing.T) {
	t.Helper()
	if why := m.coldBoot(t); why != "" {
		now, _ := m.p.c.Machine(t.Context(), m.ref)
		t.Fatalf("resumed without its memory: %s\n%s", why, describe(now))
	}
}

// coldBoot returns why the last start from suspended lost the memory, or nothing.
func (m *machine) coldBoot(t *testing.T) string {
	t.Helper()
	for _, e := range m.events(t) {
		if e.Type == hangar.EventStart && e.Status == string(hangar.MachineStarted) {
			if e.Request == nil {
				return ""
			}
			return e.Request.ColdBoot
		}
	}
	t.Fatal("no start was reported")
	return ""
}

func (m *machine) events(t *testing.T) []hangar.Event {
	t.Helper()
	events, err := m.p.c.MachineEvents(t.Context(), m.ref, 50)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// exit returns the newest exit of the Machine.
func (m *machine) exit(t *testing.T) *hangar.ExitEvent {
	t.Helper()
	for _, e := range m.events(t) {
		if e.Type == hangar.EventExit && e.Request != nil && e.Request.ExitEvent != nil {
			return e.Request.ExitEvent
		}
	}
	now, _ := m.p.c.Machine(t.Context(), m.ref)
	t.Fatalf("no exit was reported\n%s", describe(now))
	return nil
}

func (m *machine) destroy(t *testing.T) {
	t.Helper()
	if err := m.p.c.DestroyMachine(t.Context(), m.ref, hangar.MachineDestroy{Force: true}); err != nil {
		t.Fatalf("destroy: %v", err)
	}
	m.wait(t, hangar.MachineDestroyed)
}

// exec runs a command in the Machine, which must succeed, and returns its output.
func (m *machine) exec(t *testing.T, command ...string) string {
	t.Helper()
	out, code, err := m.tryExec(t.Context(), command...)
	if err != nil || code != 0 {
		t.Fatalf("exec %q: exit code %d, %v\n%s", command, code, err, out)
	}
	return out
}

func (m *machine) tryExec(ctx context.Context, command ...string) (out string, code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var both bytes.Buffer
	result, err := m.p.c.ExecMachine(ctx, m.ref, hangar.ExecRequest{Command: command}, hangar.ExecStreams{Stdout: &both, Stderr: &both})
	return both.String(), result.ExitCode, err
}

// processes returns the process ids of commands that contain a text.
func (m *machine) processes(t *testing.T, text string) map[int]bool {
	t.Helper()
	list, err := m.p.c.MachineProcesses(t.Context(), m.ref)
	if err != nil {
		t.Fatal(err)
	}
	pids := map[int]bool{}
	for _, p := range list {
		if strings.Contains(p.Command, text) {
			pids[p.PID] = true
		}
	}
	return pids
}

// until repeats what may not be possible yet.
func until(t *testing.T, what string, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(retryPause) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("%s: still after %s: %v", what, patience, err)
}

// dial connects to a Machine that may still be about to listen.
func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	var conn net.Conn
	until(t, "connect to "+addr, func() (err error) {
		conn, err = net.DialTimeout("tcp", addr, 50*time.Millisecond)
		return err
	})
	t.Cleanup(func() { conn.Close() })
	return conn
}

// serves waits until the Machine answers HTTP requests on a port.
func (m *machine) serves(t *testing.T, port int, path string) string {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: 50 * time.Millisecond}).DialContext}
	c := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	var body string
	until(t, "GET "+path, func() (err error) {
		body, err = get(c, "http://"+m.addr(port)+path)
		return err
	})
	return body
}

func get(c *http.Client, url string) (string, error) {
	res, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return string(body), err
}

// local runs a program of this host and returns its output.
func local(t *testing.T, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("%v; `make deps` installs it", err)
	}
	if err != nil {
		t.Fatalf("%q: %v\n%s", command, err, out)
	}
	return string(out)
}

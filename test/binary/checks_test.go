package binary_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/daemon"
)

// servers listen on a port of IPv4 and on one of IPv6.
const servers = "mkdir -p /www; httpd -p 0.0.0.0:8080 -h /www; httpd -p '[::]:8081' -h /www; exec sleep 100000"

// TestChecksFollowAServer has a web server in a real Machine turn well and ill, across
// a suspend and a kill of the daemon. One check finds a port that listens on IPv4
// alone, as many programs do, and one a port of IPv6.
func TestChecksFollowAServer(t *testing.T) {
	d := daemon.Start(t, daemon.Options{Driver: "gvisor"})
	c := d.Client()
	image := d.Push(daemon.Busybox(t, "sh", "sleep", "httpd", "touch", "rm", "mkdir", "killall"), "web:1", "--cmd", "sleep", "--cmd", "100000")
	const app = hangar.AppName("checks")
	if _, err := c.CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	// A server that stands still for longer than a check has makes it fail.
	second, patient := hangar.Duration(time.Second), hangar.Duration(30*time.Second)
	m, err := c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: hangar.MachineConfig{
		Image:    image,
		Init:     hangar.Init{Exec: []string{"sh", "-c", servers}},
		Checks:   map[string]hangar.Check{"port": {Type: "tcp", Port: 8081, Interval: &second, Timeout: &patient}},
		Services: []hangar.Service{{InternalPort: 8080, Checks: []hangar.Check{{Type: "http", Path: "/ok", Interval: &second, Timeout: &patient}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	p := probed{t, c, m.Ref()}
	p.until("passing critical", "404 Not Found")
	p.exec("touch", "/www/ok")
	p.until("passing passing", "")
	p.exec("rm", "/www/ok")
	p.until("passing critical", "404 Not Found")
	p.exec("touch", "/www/ok")
	p.until("passing passing", "")

	before := p.machine().Checks
	p.exec("sleep", "4") // a status is journaled a moment after it is known
	d.Kill()
	d.Up()
	if after := p.machine().Checks; !slices.EqualFunc(before, after, func(x, y hangar.MachineCheck) bool {
		return x.Name == y.Name && x.Status == y.Status && x.UpdatedAt.Equal(y.UpdatedAt)
	}) {
		t.Errorf("a kill of the daemon made %+v of %+v", after, before)
	}
	if err := c.SuspendMachine(t.Context(), p.ref); err != nil {
		t.Fatal(err)
	}
	p.wait(hangar.MachineSuspended)
	p.until("warning warning", "the machine hasn't started: it is suspended")
	if _, err := c.StartMachine(t.Context(), p.ref); err != nil {
		t.Fatal(err)
	}
	p.until("passing passing", "")
	p.exec("killall", "httpd")
	p.until("critical critical", "connect: connection refused")
	if m := p.machine(); m.State != hangar.MachineStarted {
		t.Errorf("the machine is %s: checks must not act", m.State)
	}
	page, err := c.Logs(t.Context(), app, hangar.LogQuery{Instance: p.ref.ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"Health check 'servicecheck-00-http-8080' on port 8080 is now passing.",
		"Health check 'servicecheck-00-http-8080' on port 8080 has failed. 404 Not Found",
	} {
		if !slices.ContainsFunc(page.Entries, func(e hangar.LogEntry) bool { return strings.HasPrefix(e.Message, line) }) {
			t.Errorf("the log lacks %q", line)
		}
	}
}

// probed is a Machine whose checks are watched.
type probed struct {
	*testing.T
	c   *client.Client
	ref hangar.MachineRef
}

func (p probed) machine() *hangar.Machine {
	p.Helper()
	m, err := p.c.Machine(p.Context(), p.ref)
	if err != nil {
		p.Fatal(err)
	}
	return m
}

func (p probed) wait(s hangar.MachineState) {
	p.Helper()
	if _, err := p.c.WaitMachine(p.Context(), p.ref, hangar.MachineWait{States: []hangar.MachineState{s}}); err != nil {
		p.Fatal(err)
	}
}

func (p probed) exec(command ...string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), time.Minute)
	defer cancel()
	if r, err := p.c.ExecMachine(ctx, p.ref, hangar.ExecRequest{Command: command}, hangar.ExecStreams{}); err != nil || r.ExitCode != 0 {
		p.Fatalf("%v: %+v, %v", command, r, err)
	}
}

// until waits for statuses, and for a part of the output of the last check.
func (p probed) until(statuses, output string) {
	p.Helper()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
		var got []string
		checks := p.machine().Checks
		for _, k := range checks {
			got = append(got, string(k.Status))
		}
		if strings.Join(got, " ") == statuses && strings.Contains(checks[len(checks)-1].Output, output) {
			return
		}
		if time.Now().After(deadline) {
			p.Fatalf("checks are %+v, want %s %q", checks, statuses, output)
		}
	}
}

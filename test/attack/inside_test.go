package attack

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/daemon"
)

// patience bounds one attempt from inside a Machine.
const patience = time.Minute

// resident is a Machine of an organization of its own, on gVisor.
type resident struct {
	c   *client.Client
	org hangar.OrgSlug
	m   *hangar.Machine
}

// newResident starts a Machine that serves its name on port 8080, in a new organization.
func newResident(t *testing.T, d *daemon.Daemon, c *client.Client, name string) *resident {
	t.Helper()
	r := &resident{c: c, org: hangar.OrgSlug("org-" + name)}
	if _, err := c.CreateOrg(t.Context(), hangar.OrgCreate{Slug: r.org}); err != nil {
		t.Fatal(err)
	}
	app := hangar.AppName("app-" + name)
	if _, err := c.CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: r.org}); err != nil {
		t.Fatal(err)
	}
	commands := []string{"sh", "sleep", "echo", "cat", "nc", "httpd", "wget", "ls", "mount", "mknod", "dd", "nslookup", "yes", "head", "tail", "ps", "kill", "rm", "mkdir", "df", "true", "id", "seq", "chroot", "unshare"}
	image := d.Push(daemon.Busybox(t, commands...), "busybox:1", "--org", string(r.org),
		"--cmd", "sh", "--cmd", "-c", "--cmd", "mkdir -p /www /tmp; echo "+name+" >/www/index.html; exec httpd -f -p 8080 -h /www")
	m, err := c.CreateMachine(t.Context(), app, hangar.MachineCreate{Name: name, Config: hangar.MachineConfig{
		Image: image, Guest: &hangar.Guest{CPUs: 1, CPUKind: "shared", MemoryMB: 256}, Restart: &hangar.RestartConfig{Policy: hangar.RestartAlways},
	}})
	if err != nil {
		t.Fatal(err)
	}
	r.m = m
	r.waitStarted(t)
	return r
}

func (r *resident) waitStarted(t *testing.T) {
	t.Helper()
	if _, err := r.c.WaitMachine(t.Context(), r.m.Ref(), hangar.MachineWait{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
}

// sh runs a script in the Machine, and returns what it printed and its exit code. It is
// killed after a while: an attempt may hang.
func (r *resident) sh(t *testing.T, script string, within time.Duration) (string, int, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var out bytes.Buffer
	res, err := r.c.ExecMachine(ctx, r.m.Ref(), hangar.ExecRequest{Command: []string{"sh", "-c", script}, Timeout: within}, hangar.ExecStreams{Stdout: &out, Stderr: &out})
	return out.String(), res.ExitCode, err
}

// healthy checks that the Machine answers, and that the API does.
func (r *resident) healthy(t *testing.T, after string) {
	t.Helper()
	out, code, err := r.sh(t, "wget -q -O - http://127.0.0.1:8080/index.html && echo kept >/tmp/kept && cat /tmp/kept", patience)
	if err != nil || code != 0 || !strings.HasSuffix(strings.TrimSpace(out), "kept") {
		t.Errorf("after %s the other tenant's Machine is not well: %q, exit code %d, %v", after, out, code, err)
	}
}

// TestFromInside plays what a program in a Machine may try against the server and against the
// Machines of others: the attempts and their expected results. The Machine of another
// organization is checked after each attempt.
func TestFromInside(t *testing.T) {
	d := daemon.Start(t, daemon.Options{Args: []string{"--acme", "off"}})
	c := d.Client()
	victim, attacker := newResident(t, d, c, "alpha"), newResident(t, d, c, "omega")
	_, apiPort, err := net.SplitHostPort(d.Addr())
	if err != nil {
		t.Fatal(err)
	}
	gateway := gateway4(t, attacker)
	canary := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(canary, []byte("of the server"), 0o644); err != nil {
		t.Fatal(err)
	}
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}

	const refused = "refused" // a command that has to fail, or be killed for hanging
	attempts := []struct {
		name, script string
		want         string // what the output has; "refused"
		not          string // what the output has not
	}{
		{"the other Machine by its address", "wget -q -T 2 -O - http://[" + victim.m.PrivateIP.String() + "]:8080/", refused, "alpha"},
		{"the other Machine by its name", "nslookup -type=aaaa app-alpha.internal", refused, victim.m.PrivateIP.String()},
		{"all names there are", "nslookup -type=txt _apps.internal", "app-omega", "alpha"},
		{"the API by the gateway", "wget -q -T 2 -O - http://" + gateway + ":" + apiPort + "/v1/apps", refused, "alpha"},
		{"ports of the server by the gateway", "nc -w 2 " + gateway + " 22 </dev/null; nc -w 2 " + gateway + " 2379 </dev/null", refused, ""},
		{"loopback of the server", "wget -q -T 2 -O - http://127.0.0.1:" + apiPort + "/healthz", refused, ""},
		{"the API inside without a token", inside("GET /v1/apps HTTP/1.0\\r\\n\\r\\n"), "401", "alpha"},
		{"the API inside with a made up token", inside("GET /v1/apps HTTP/1.0\\r\\nAuthorization: Bearer admin\\r\\n\\r\\n"), "401", "alpha"},
		{"cloud metadata", "wget -q -T 2 -O - http://169.254.169.254/latest/meta-data/", refused, ""},
		{"a file of the server", "cat " + canary, refused, "of the server"},
		{"a file of the server through /proc", "cat /proc/1/root" + canary + " /proc/self/root" + canary, refused, "of the server"},
		{"directories above", "cat /../../../.." + canary + "; chroot / cat " + canary, refused, "of the server"},
		{"processes of the server", "ps", "httpd", "hangar up"},
		{"core_pattern of the server", "echo '|/bin/sh' >/proc/sys/kernel/core_pattern", refused, ""},
		{"sysrq", "echo b >/proc/sysrq-trigger", refused, ""},
		{"a disk of the server", "mknod /tmp/disk b 254 0 && dd if=/tmp/disk of=/dev/null bs=512 count=1", refused, "1+0 records in"},
		{"memory of the server", "mknod /tmp/mem c 1 1 && dd if=/tmp/mem of=/dev/null bs=512 count=1", refused, "1+0 records in"},
		{"cgroups of the server", "mkdir -p /tmp/cg && mount -t cgroup -o memory none /tmp/cg && ls /tmp/cg/hangar*", refused, ""},
		{"kernel modules", "echo x >/sys/module/kernel/parameters/panic", refused, ""},
	}
	for _, a := range attempts {
		t.Run(a.name, func(t *testing.T) {
			within := 8 * time.Second
			if a.want != refused {
				within = patience
			}
			out, code, err := attacker.sh(t, a.script, within)
			switch {
			case a.want == refused && code == 0 && err == nil:
				t.Errorf("succeeded: %q", out)
			case a.want != refused && !strings.Contains(out, a.want):
				t.Errorf("%q, exit code %d, %v; want %q in it", out, code, err, a.want)
			}
			if a.not != "" && strings.Contains(out, a.not) {
				t.Errorf("%q is in %q", a.not, out)
			}
			victim.healthy(t, a.name)
		})
	}
	if now, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err != nil || !bytes.Equal(now, pattern) {
		t.Errorf("core_pattern of the server is %q, was %q, %v", now, pattern, err)
	}

	t.Run("bombs", func(t *testing.T) {
		for _, bomb := range []struct{ name, script string }{
			{"sockets", "for i in $(seq 1 2000); do nc -w 20 127.0.0.1 8080 & done; sleep 3"},
			{"output", "for i in 1 2 3; do (yes 'a line that says nothing' | head -c 60000000 >/proc/1/fd/1) & done; sleep 5"},
			{"processes", "bomb() { bomb | bomb & }; bomb; sleep 3"},
			{"memory", "dd if=/dev/zero of=/dev/null bs=1500M count=1"},
		} {
			attacker.answers(t)
			_, code, err := attacker.sh(t, bomb.script, 8*time.Second)
			t.Logf("%s: exit code %d, %v", bomb.name, code, err)
			victim.healthy(t, bomb.name)
			if res, err := http.Get(d.URL() + "/healthz"); err != nil {
				t.Errorf("after %s the API is gone: %v", bomb.name, err)
			} else if res.Body.Close(); res.StatusCode != http.StatusOK {
				t.Errorf("after %s the API says %s", bomb.name, res.Status)
			}
		}
		var size int64
		err := filepath.WalkDir(filepath.Join(d.Dir(), "logs"), func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info, err := e.Info()
			if err == nil {
				size += info.Size()
			}
			return err
		})
		if err != nil || size > 80<<20 {
			t.Errorf("logs have %d MB, %v", size>>20, err)
		}
	})
}

// answers waits until commands run in the Machine, which may have been restarted.
func (r *resident) answers(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, code, err := r.sh(t, "true", 10*time.Second)
		if err == nil && code == 0 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the Machine does not come back: exit code %d, %v", code, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// inside is a script that sends a request to the API by the address that Machines know.
func inside(request string) string {
	return `at=$(nslookup -type=aaaa _api.internal | while read -r word address; do [ "$word" != Address: ] || echo "$address"; done | tail -1); printf '` + request + `' | nc -w 30 "$at" 4280`
}

// gateway4 is the address of the server in the network of a Machine.
func gateway4(t *testing.T, r *resident) string {
	t.Helper()
	out, code, err := r.sh(t, "while read -r word address rest; do [ $word != nameserver ] || echo $address; done </etc/resolv.conf", patience)
	if err != nil || code != 0 {
		t.Fatalf("nameservers: %q, exit code %d, %v", out, code, err)
	}
	for address := range strings.FieldsSeq(out) {
		if ip := net.ParseIP(address); ip != nil && ip.To4() != nil {
			return address
		}
	}
	// By IPv6 alone.
	if len(strings.Fields(out)) > 0 {
		return fmt.Sprintf("[%s]", strings.Fields(out)[0])
	}
	t.Fatalf("no gateway in %q", out)
	return ""
}

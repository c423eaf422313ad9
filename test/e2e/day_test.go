package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
)

// serveVersion is the program of the App: it serves its version, and prints its secret.
const serveVersion = `mkdir -p /tmp/www; echo "$VERSION" >/tmp/www/index.html; echo "serving $VERSION with ${TOKEN:-nothing}"; exec httpd -f -p 8080 -h /tmp/www`

// day is an App as its user has it: a file, and commands.
type day struct {
	t    *testing.T
	p    *platform
	dir  string
	base string // of the file
	load *http.Client
	http string // where the edge serves
}

const dayApp = hangar.AppName("day")

// file writes the file of the App.
func (d *day) file(version string, more ...string) {
	d.t.Helper()
	text := fmt.Sprintf("app = %q\n%s\n[env]\nVERSION = %q\n%s\n", dayApp, d.base, version, strings.Join(more, "\n"))
	check(d.t, os.WriteFile(filepath.Join(d.dir, "hangar.toml"), []byte(text), 0o644))
}

// deploy deploys it.
func (d *day) deploy(args ...string) (string, error) {
	d.t.Helper()
	return d.p.d.Try(append([]string{"deploy", d.dir, "--smoke-time", "0"}, args...)...)
}

func (d *day) mustDeploy(args ...string) {
	d.t.Helper()
	if out, err := d.deploy(args...); err != nil {
		d.t.Fatalf("%v\n%s", err, out)
	}
}

// get is a request of a user of the App.
func (d *day) get() (string, error) {
	r, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, "http://"+string(dayApp)+".hangar.localhost/", http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := d.load.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, b)
	}
	return strings.TrimSpace(string(b)), err
}

// serves fails the test unless a version answers.
func (d *day) serves(version string) {
	d.t.Helper()
	if got, err := d.get(); err != nil || got != version {
		d.t.Errorf("the App serves %q, %v, not version %s", got, err, version)
	}
}

// machines are those of the App that are started.
func (d *day) machines(of hangar.AppName, want int) []*hangar.Machine {
	d.t.Helper()
	all, err := d.p.c.Machines(d.t.Context(), of, hangar.MachineFilter{})
	check(d.t, err)
	var started []*hangar.Machine
	for _, m := range all {
		if m.State == hangar.MachineStarted && !m.Cordoned {
			started = append(started, m)
		}
	}
	if len(started) != want {
		d.t.Errorf("%d Machines of %s are started, not %d", len(started), of, want)
	}
	return started
}

// TestDayOfAUser does with an App what its user does in the course of a day.
func TestDayOfAUser(t *testing.T) {
	p := start(t)
	image := p.d.Push(daemon.Busybox(t, "sh", "mkdir", "echo", "httpd", "sleep", "cat", "sync"), "day:1", "--cmd", "sh", "--cmd", "-c", "--cmd", serveVersion)
	d := &day{t: t, p: p, dir: t.TempDir(), base: fmt.Sprintf("[build]\nimage = %q\n", image)}
	d.http, _ = p.d.Edge()
	d.load = edgeClient(d.http, nil, 8)
	defer d.load.CloseIdleConnections()
	const service = "[http_service]\ninternal_port = 8080\nauto_stop_machines = \"off\"\n[[http_service.checks]]\npath = \"/\"\ninterval = \"1s\"\n"

	p.d.Run("launch", "--image", image, "--name", string(dayApp), "--path", d.dir, "--smoke-time", "0")
	d.serves("")
	d.file("1", service)
	d.mustDeploy()
	d.serves("1")

	t.Log("scale: more Machines, and larger ones")
	d.file("1", service, "[scale]\napp = 2\n[[vm]]\nmemory = \"512mb\"\n")
	d.mustDeploy()
	for _, m := range d.machines(dayApp, 2) {
		if m.Config.Guest.MemoryMB != 512 {
			t.Errorf("a Machine has %d MB", m.Config.Guest.MemoryMB)
		}
	}

	t.Log("secrets: staged, and then deployed")
	p.d.Run("secrets", "set", string(dayApp), "TOKEN=hunter2", "--stage")
	console := func(command string) string {
		t.Helper()
		return strings.TrimSpace(p.d.Run("ssh", "console", string(dayApp), "-C", command))
	}
	if got := console("sh -c 'echo $VERSION $TOKEN'"); got != "1" {
		t.Errorf("a staged secret is in the Machine: %q", got)
	}
	p.d.Run("secrets", "deploy", string(dayApp))
	if got := console("sh -c 'echo $VERSION $TOKEN'"); got != "1 hunter2" {
		t.Errorf("a deployed secret is not in the Machine: %q", got)
	}

	t.Log("blue-green, while requests come")
	var requests, failed atomic.Int64
	stop := make(chan struct{})
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				requests.Add(1)
				if got, err := d.get(); err != nil || got != "1" && got != "2" {
					failed.Add(1)
					t.Errorf("a request during the deploy: %q, %v", got, err)
				}
			}
		})
	}
	d.file("2", service, "[scale]\napp = 2\n[[vm]]\nmemory = \"512mb\"\n")
	_, err := d.deploy("--strategy", "bluegreen")
	close(stop)
	users.Wait()
	check(t, err)
	t.Logf("%d requests, %d failed", requests.Load(), failed.Load())
	d.serves("2")
	d.machines(dayApp, 2)

	t.Log("a release command that fails")
	d.file("3", service, "[scale]\napp = 2\n[deploy]\nrelease_command = \"sh -c 'exit 3'\"\n")
	if out, err := d.deploy(); err == nil || !strings.Contains(err.Error()+out, "3") {
		t.Errorf("the deploy: %v\n%s", err, out)
	}
	d.serves("2")

	t.Log("checks that fail, and back by itself")
	d.file("4", strings.Replace(service, `path = "/"`, `path = "/none"`, 1), "[scale]\napp = 2\n")
	if out, err := d.deploy("--wait-timeout", "5s", "--rollback"); err == nil {
		t.Errorf("the deploy succeeded\n%s", out)
	}
	d.serves("2")

	t.Log("back to a release")
	first := ""
	list, err := p.c.Releases(t.Context(), dayApp, 0)
	check(t, err)
	for _, r := range list {
		if r.Status == hangar.ReleaseComplete && strings.Contains(string(r.Definition), `"VERSION":"1"`) {
			first = fmt.Sprint(r.Version)
		}
	}
	p.d.Run("releases", "rollback", string(dayApp), first, "--yes", "--smoke-time", "0")
	d.serves("1")

	t.Log("logs")
	if out := p.d.Run("logs", string(dayApp)); !strings.Contains(out, "serving 1") {
		t.Errorf("the logs are\n%s", out)
	}

	t.Log("a deploy token, as CI has it")
	words := strings.Fields(p.d.Run("tokens", "create", "deploy", string(dayApp)))
	d.file("5", service)
	ci := exec.CommandContext(t.Context(), daemon.Binary(t), "deploy", d.dir, "--smoke-time", "0", "--json")
	ci.Env = append(os.Environ(), "HANGAR_URL="+p.d.URL(), "HANGAR_TOKEN="+words[len(words)-1], "HANGAR_DIR=/nonexistent", "HANGAR_CONFIG=/dev/null")
	if out, err := ci.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	d.serves("5")

	d.volumes(image)

	t.Log("the end")
	p.d.Run("apps", "destroy", string(dayApp), "--yes", "--force")
	if _, err := p.c.App(t.Context(), dayApp); hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("the App after its end: %v", err)
	}
}

// volumes deploys an App with a volume twice; its content stays.
func (d *day) volumes(image string) {
	d.t.Helper()
	d.t.Log("volumes")
	const store = hangar.AppName("day-store")
	d.p.d.Run("apps", "create", string(store))
	dir := d.t.TempDir()
	for _, version := range []string{"1", "2"} {
		text := fmt.Sprintf("app = %q\n[build]\nimage = %q\n[env]\nVERSION = %q\n[mounts]\nsource = \"data\"\ndestination = \"/data\"\ninitial_size = \"1gb\"\n", store, image, version)
		check(d.t, os.WriteFile(filepath.Join(dir, "hangar.toml"), []byte(text), 0o644))
		d.p.d.Run("deploy", dir, "--smoke-time", "0")
		if version == "1" {
			d.p.d.Run("ssh", "console", string(store), "-C", "sh -c 'echo kept >/data/file; sync'")
		}
	}
	if got := d.p.d.Run("ssh", "console", string(store), "-C", "sh -c 'echo $VERSION; cat /data/file'"); got != "2\nkept\n" {
		d.t.Errorf("the volume has %q", got)
	}
	d.machines(store, 1)
}

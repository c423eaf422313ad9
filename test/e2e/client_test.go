package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
)

// TestLogsAreFollowed: `hangar logs -f` shows lines as they are printed, over a
// suspension and a new start of the Machine.
func TestLogsAreFollowed(t *testing.T) {
	p := start(t)
	m, k, state := p.runKeeper(t, "keeper", nil)
	cmd := exec.Command(daemon.Binary(t), "logs", "--follow", string(app), "keeper")
	cmd.Env = append(os.Environ(), "HANGAR_DIR="+p.d.Dir())
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(stdout)
	shows := func(texts ...string) {
		t.Helper()
		for lines.Scan() {
			all := true
			for _, text := range texts {
				all = all && strings.Contains(lines.Text(), text)
			}
			if all {
				return
			}
		}
		t.Fatalf("the log ended before it showed %q: %v", texts, lines.Err())
	}
	shows("keeper "+state.ID+" serves", string(m.ref.ID), "app[info]")
	if _, err := k.post("/chatter", url.Values{"ms": {"5"}}); err != nil {
		t.Fatal(err)
	}
	shows("line 10")
	m.suspend(t)
	m.resume(t)
	shows("runner[info]", "resumed")
	shows("line ")
	m.stop(t)
	shows("keeper " + state.ID + " stops: interrupt")
	m.start(t)
	shows(" serves")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}

// TestForeignImageClient pushes and pulls with skopeo, which shares no code with the
// platform's registry, and runs what it pushed.
func TestForeignImageClient(t *testing.T) {
	p := start(t)
	img := keeperImage(t)
	dir := filepath.Join(t.TempDir(), "layout")
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := index.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	ref := p.reference("foreign:1")
	local(t, "skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false", "--dest-creds", "anybody:"+p.d.Token(), "oci:"+dir, "docker://"+ref)

	inspected := local(t, "skopeo", "inspect", "--tls-verify=false", "--creds", "anybody:"+p.d.Token(), "docker://"+ref)
	var about struct{ Digest string }
	if err := json.Unmarshal([]byte(inspected), &about); err != nil || about.Digest != digest.String() {
		t.Fatalf("the registry has %q, not %s (%v)", about.Digest, digest, err)
	}
	back := filepath.Join(t.TempDir(), "back")
	local(t, "skopeo", "--insecure-policy", "copy", "--src-tls-verify=false", "--src-creds", "anybody:"+p.d.Token(), "docker://"+ref, "dir:"+back)
	if out, err := exec.Command("skopeo", "inspect", "--tls-verify=false", "--creds", "anybody:wrong", "docker://"+ref).CombinedOutput(); err == nil {
		t.Fatalf("a wrong password was taken: %s", out)
	}

	for name, image := range map[string]string{"by-tag": ref, "by-digest": p.reference("foreign") + "@" + digest.String()} {
		m := p.run(t, name, hangar.MachineConfig{Image: image})
		m.serves(t, 8080, "/state")
		got, err := p.c.Machine(t.Context(), m.ref)
		if err != nil || got.ImageRef.Digest != digest.String() {
			t.Fatalf("runs %+v, %v", got.ImageRef, err)
		}
	}
}

// TestCommandLine goes the way of the README.
func TestCommandLine(t *testing.T) {
	p := start(t)
	binary := filepath.Join(t.TempDir(), "myserver")
	buildKeeper(t, binary)
	d := p.d
	contains := func(out string, texts ...string) string {
		t.Helper()
		for _, text := range texts {
			if !strings.Contains(out, text) {
				t.Fatalf("no %q in:\n%s", text, out)
			}
		}
		return out
	}
	fails := func(code int, args ...string) {
		t.Helper()
		_, err := d.Try(args...)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != code {
			t.Fatalf("hangar %s: not exit code %d but %v", strings.Join(args, " "), code, err)
		}
	}
	contains(d.Run("version"), "hangar ")
	contains(d.Run("completion", "bash"), "complete")
	fails(3, "machine", "run", "hello", "x/y:1")
	d.Run("apps", "create", "hello")
	fails(5, "apps", "create", "hello")
	ref := d.Push(binary, "myserver")
	contains(ref, "registry.hangar.localhost/personal/myserver")
	contains(d.Run("machine", "run", "hello", ref, "--name", "one", "--port", "80:8080", "--env", "REMEMBER_MB=8", "--memory", "512"), "is started", "http://[fdaa:")
	var m hangar.Machine
	if err := json.Unmarshal([]byte(d.Run("machine", "status", "hello", "one", "--json")), &m); err != nil {
		t.Fatal(err)
	}
	one := &machine{p: p, ref: m.Ref(), ip: m.PrivateIP.String()}
	contains(one.serves(t, 8080, "/state"), `"steps":0`)
	if m.Config.Env["REMEMBER_MB"] != "8" || m.Config.Guest.MemoryMB != 512 {
		t.Fatalf("the config has %v and %+v", m.Config.Env, m.Config.Guest)
	}
	contains(d.Run("image", "list"), "myserver")
	contains(d.Run("machine", "list", "hello"), "one", "started", string(m.ID))
	contains(d.Run("logs", "hello", "one"), "serves")
	contains(d.Run("machine", "ps", "hello", "one"), "myserver")
	d.Run("machine", "suspend", "hello", "one")
	contains(d.Run("machine", "status", "hello", "one"), "suspended")
	d.Run("machine", "start", "hello", "one")
	d.Run("machine", "stop", "hello", "one")
	d.Run("machine", "start", "hello", "one")
	d.Run("machine", "wait", "hello", "one", "--state", "started")
	d.Run("machine", "restart", "hello", "one")
	d.Run("machine", "update", "hello", "one", "--env", "REMEMBER_MB=9")
	contains(one.serves(t, 8080, "/state"), `"steps":0`)
	contains(d.Run("machine", "events", "hello", "one"), "suspend", "exit", "update")
	contains(d.Run("machine", "clone", "hello", "one", "--name", "two"), "is started")
	fails(3, "machine", "status", "hello", "three")
	fails(2, "machine", "run", "hello")
	fails(5, "apps", "destroy", "hello", "--yes")
	d.Run("machine", "destroy", "hello", "--all", "--force", "--yes")
	d.Run("apps", "destroy", "hello", "--yes")
	if out := d.Run("apps", "list", "--json"); strings.Contains(out, `"hello"`) {
		t.Fatal(out)
	}
}

// TestConfigReachesTheProgram: a program finds the settings of its config and image.
func TestConfigReachesTheProgram(t *testing.T) {
	p := start(t)
	m := p.shell(t, "plain")
	if out := m.exec(t, "sh", "-c", "cat /proc/1/comm; tr '\\0' ' ' </proc/$(pidof sleep)/cmdline; stat -c %U /proc/$(pidof sleep)"); !strings.HasSuffix(out, "sleep infinity daemon\n") {
		t.Errorf("the image's command and user: %q", out)
	}
	if out := strings.TrimSpace(m.exec(t, "cat", "/etc/hostname")); out != string(m.ref.ID) {
		t.Errorf("the host name is %q", out)
	}
	now, err := p.c.Machine(t.Context(), m.ref)
	if err != nil {
		t.Fatal(err)
	}
	other := p.run(t, "other", hangar.MachineConfig{
		Image: now.Config.Image,
		Init:  hangar.Init{Exec: []string{"sh", "-c", "cat /etc/secret/file; echo $GREETING $MINE; exec sleep 100000"}},
		Env:   map[string]string{"MINE": "two words", "GREETING": "changed"},
		Files: []hangar.File{{GuestPath: "/etc/secret/file", RawValue: []byte("content\n"), Mode: 0o644}},
		Guest: &hangar.Guest{CPUs: 1, MemoryMB: 512},
	})
	until(t, "the log", func() error {
		page, err := p.c.Logs(t.Context(), app, hangar.LogQuery{Instance: other.ref.ID})
		if err != nil {
			return err
		}
		var messages []string
		for _, e := range page.Entries {
			if e.Provider == hangar.LogApp { // the platform has something to say at any time
				messages = append(messages, e.Message)
			}
		}
		if all := strings.Join(messages, "\n"); !strings.Contains(all, "content\nchanged two words") {
			return errors.New(all)
		}
		return nil
	})
	if out := other.exec(t, "sh", "-c", "awk '/MemTotal/ {print $2 / 1024}' /proc/meminfo"); out != "512\n" {
		t.Errorf("the program sees %q MB", out)
	}
	for _, name := range []string{"FLY_APP_NAME", "PLATFORM_APP_NAME"} {
		if out := other.exec(t, "printenv", name); out != string(app)+"\n" {
			t.Errorf("%s is %q", name, out)
		}
	}
	if out := m.exec(t, "cat", "/proc/net/if_inet6"); !strings.Contains(out, "eth0") {
		t.Errorf("addresses inside: %q", out)
	}
}

package binary_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/daemon"
)

// The values of the secrets of TestSecretsStayHidden.
const (
	firstSecret    = "first-5e1f0a0c-plaintext"
	secondSecret   = "second-77d2b9aa-plaintext"
	registrySecret = "registry-0b51c6f4-plaintext"
	keySecret      = "key-48a6e3d7-plaintext-of-some-size" // the value of a secret key
)

// hidden is a daemon with one App, whose Machines have secrets.
type hidden struct {
	*testing.T
	d   *daemon.Daemon
	c   *client.Client
	ctx context.Context //nolint:containedctx // of the test
}

const hiddenApp hangar.AppName = "hidden"

// TestSecretsStayHidden: Machines find the secrets of their App in their environment, also after
// restarts of them and kills of the daemon. The secrets are nowhere else: not on disk, in the log,
// in answers of the API or in the output of commands.
func TestSecretsStayHidden(t *testing.T) {
	d := daemon.Start(t, daemon.Options{Driver: "gvisor", Args: []string{"--log-level", "debug"}})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	t.Cleanup(cancel)
	h := hidden{t, d, d.Client(), ctx}
	image := d.Push(daemon.Busybox(t, "sh", "sleep", "cat", "echo"), "busybox:1", "--cmd", "sleep", "--cmd", "100000")
	d.Run("apps", "create", string(hiddenApp))
	h.set("TOKEN", firstSecret)
	signature := h.setKey()
	login := hangar.RegistryLogin{Username: "me", Password: hangar.NewSensitive(registrySecret)}
	if _, err := h.c.SetRegistryCredential(ctx, "registry.example", login); err != nil {
		t.Fatal(err)
	}
	config := hangar.MachineConfig{Image: image, Env: map[string]string{"TOKEN": "of the config", "OTHER": "kept"}}
	m, err := h.c.CreateMachine(ctx, hiddenApp, hangar.MachineCreate{Name: "one", Config: config, MinSecretsVersion: 1})
	if err != nil {
		t.Fatal(err)
	}
	h.started(m.Ref())
	h.has(m.Ref(), firstSecret)
	h.nowhere()

	// A new secret does not concern a Machine before its next version.
	h.set("TOKEN", secondSecret)
	h.restart(m.Ref())
	h.has(m.Ref(), firstSecret)
	d.Kill()
	d.Up()
	h.has(m.Ref(), firstSecret)
	h.restart(m.Ref())
	h.has(m.Ref(), firstSecret)
	d.Run("secrets", "rotate-key")
	d.Kill()
	d.Up()
	h.restart(m.Ref())
	h.has(m.Ref(), firstSecret)
	if err := h.c.VerifyWithKey(ctx, hiddenKey, 0, []byte("text"), signature); err != nil {
		t.Errorf("a signature of before: %v", err)
	}
	d.Run("secrets", "deploy", string(hiddenApp))
	h.has(m.Ref(), secondSecret)
	h.nowhere()

	// An update that fails keeps the secrets of the version that stays.
	h.set("TOKEN", firstSecret)
	config.Image = d.Addr() + "/personal/nothing@sha256:" + strings.Repeat("0", 64)
	if _, err := h.c.UpdateMachine(ctx, m.Ref(), hangar.MachineUpdate{Config: config}); err == nil {
		h.started(m.Ref())
	}
	h.restart(m.Ref())
	h.has(m.Ref(), secondSecret)

	d.Run("machine", "stop", string(hiddenApp), string(m.ID))
	h.nowhere()
	if found := find(t, runDir(d)); len(found) != 0 {
		t.Errorf("the environment of a stopped machine is in %v", found)
	}
	d.Run("apps", "destroy", string(hiddenApp), "--force")
	h.nowhere()
}

func (h hidden) set(name, value string) {
	h.Helper()
	if _, err := h.c.SetSecrets(h.ctx, hiddenApp, map[string]hangar.Sensitive{name: hangar.NewSensitive(value)}); err != nil {
		h.Fatal(err)
	}
}

var hiddenKey = hangar.SecretKeyRef{App: hiddenApp, Name: "key"}

// setKey sets a secret key and returns its signature of "text".
func (h hidden) setKey() []byte {
	h.Helper()
	in := hangar.SecretKeySet{Type: hangar.SecretKeyHS256, Value: hangar.NewSensitive(keySecret)}
	if _, _, err := h.c.SetSecretKey(h.ctx, hiddenKey, in); err != nil {
		h.Fatal(err)
	}
	in.Type = hangar.SecretKeyES256
	_, _, err := h.c.SetSecretKey(h.ctx, hiddenKey, in)
	if hangar.CodeOf(err) != hangar.CodeInvalid || revealing([]byte(err.Error())) {
		h.Errorf("a value of another type: %v", err)
	}
	signature, err := h.c.SignWithKey(h.ctx, hiddenKey, 0, []byte("text"))
	if err != nil {
		h.Fatal(err)
	}
	return signature
}

func (h hidden) started(ref hangar.MachineRef) {
	h.Helper()
	if _, err := h.c.WaitMachine(h.ctx, ref, hangar.MachineWait{Timeout: time.Minute}); err != nil {
		h.Fatal(err)
	}
}

func (h hidden) restart(ref hangar.MachineRef) {
	h.Helper()
	h.d.Run("machine", "restart", string(ref.App), string(ref.ID))
	h.started(ref)
}

// has checks the environment of the main process, and of a command.
func (h hidden) has(ref hangar.MachineRef, want string) {
	h.Helper()
	var environ bytes.Buffer
	for _, command := range [][]string{{"cat", "/proc/1/environ"}, {"sh", "-c", `echo "TOKEN=$TOKEN"`}} {
		environ.Reset()
		_, err := h.c.ExecMachine(h.ctx, ref, hangar.ExecRequest{Command: command}, hangar.ExecStreams{Stdout: &environ})
		if err != nil {
			h.Fatal(err)
		}
		if !strings.Contains(environ.String(), "TOKEN="+want) {
			h.Errorf("%q shows %q, want the secret %q", command, environ.String(), want)
		}
		if strings.Contains(environ.String(), keySecret) {
			h.Errorf("%q shows a secret key", command)
		}
	}
}

// nowhere looks for plaintext in all that a person may see, and on disk.
func (h hidden) nowhere() {
	h.Helper()
	if found := find(h.T, h.d.Dir()); len(found) != 0 {
		h.Errorf("there is plaintext in %v", found)
	}
	for _, path := range find(h.T, runDir(h.d)) {
		var file syscall.Stat_t
		if err := syscall.Stat(path, &file); err == nil && (file.Uid != 0 || file.Gid != 0 || file.Mode&0o007 != 0) {
			h.Errorf("others than root may read the plaintext in %s: owner %d:%d, mode %o", path, file.Uid, file.Gid, file.Mode)
		}
	}
	h.clean("the log of the daemon", []byte(h.d.Output()))
	paths := []string{
		"/v1/apps", "/v1/registries", "/v1/registries/registry.example", "/v1/images", "/v1/apps/hidden", "/v1/apps/hidden/secrets",
		"/v1/apps/hidden/secrets/TOKEN", "/v1/apps/hidden/secretkeys", "/v1/apps/hidden/secretkeys/key",
		"/v1/apps/hidden/secretkeys?types=hs256", "/v1/apps/hidden/machines?include_deleted=true", "/api/v1/apps/hidden/logs",
	}
	if machines, err := h.c.Machines(h.ctx, hiddenApp, hangar.MachineFilter{}); err == nil {
		for _, m := range machines {
			for _, suffix := range []string{"", "/events", "/versions", "/ps", "/metadata"} {
				paths = append(paths, "/v1/apps/hidden/machines/"+string(m.ID)+suffix)
			}
			h.clean("status", []byte(h.d.Run("machine", "status", string(hiddenApp), string(m.ID))))
		}
		h.clean("list", []byte(h.d.Run("secrets", "list", string(hiddenApp), "--json")))
		h.clean("list of keys", []byte(h.d.Run("secretkeys", "list", string(hiddenApp), "--json")))
	}
	for _, path := range paths {
		h.clean(path, h.get(path))
	}
}

func (h hidden) get(path string) []byte {
	h.Helper()
	req, err := http.NewRequestWithContext(h.ctx, http.MethodGet, h.d.URL()+path, http.NoBody)
	if err != nil {
		h.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+h.d.Token())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		h.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		h.Fatal(err)
	}
	return body
}

func (h hidden) clean(what string, text []byte) {
	h.Helper()
	if revealing(text) {
		h.Errorf("%s shows a secret: %s", what, text)
	}
}

func revealing(text []byte) bool {
	for _, s := range []string{firstSecret, secondSecret, registrySecret, keySecret} {
		if bytes.Contains(text, []byte(s)) || bytes.Contains(text, []byte(base64.StdEncoding.EncodeToString([]byte(s)))) {
			return true
		}
	}
	return false
}

// find returns the files below a directory that hold a secret.
func find(t *testing.T, dir string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "rootfs" || entry.Name() == "layers") { // what the Machine itself sees
			return fs.SkipDir
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) { // a namespace
			return nil
		}
		if err != nil {
			return err
		}
		if revealing(b) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// runDir is where the daemon keeps what a reboot may forget.
func runDir(d *daemon.Daemon) string {
	sum := sha256.Sum256([]byte(d.Dir()))
	return "/run/hangar-" + hex.EncodeToString(sum[:3])
}

// TestKillDaemonWhileRotating kills the daemon at random moments of a rotation of the key: all
// earlier secrets can be read, and Machines have theirs.
func TestKillDaemonWhileRotating(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	d := daemon.Start(t, daemon.Options{Driver: "fake"})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	t.Cleanup(cancel)
	h := hidden{t, d, d.Client(), ctx}
	image := d.Push(daemon.Busybox(t, "sh"), "busybox:1", "--cmd", "sleep", "--cmd", "100000")
	d.Run("apps", "create", string(hiddenApp))
	want := map[string]string{}
	var machines []hangar.MachineRef
	for i := range 8 {
		name := "S" + strconv.Itoa(i)
		want[name] = "value " + strconv.Itoa(i)
		h.set(name, want[name])
		m, err := h.c.CreateMachine(ctx, hiddenApp, hangar.MachineCreate{Config: hangar.MachineConfig{Image: image}})
		if err != nil {
			t.Fatal(err)
		}
		machines = append(machines, m.Ref())
		h.started(m.Ref())
	}
	for round := range rounds {
		rotated := make(chan error, 1)
		go func() {
			_, err := h.c.RotateEncryptionKey(ctx)
			rotated <- err
		}()
		time.Sleep(time.Duration(rand.IntN(15)) * time.Millisecond) // the moment is the input of this test
		d.Kill()
		<-rotated
		d.Up()
		all, err := h.c.Secrets(ctx, hiddenApp, hangar.SecretQuery{Show: true})
		if err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, d.Output())
		}
		for _, s := range all.List {
			if s.Value.Reveal() != want[s.Name] {
				t.Errorf("round %d: %s is %q", round, s.Name, s.Value.Reveal())
			}
		}
		h.set("ROUND", strconv.Itoa(round))
		want["ROUND"] = strconv.Itoa(round)
	}
	if strings.Contains(h.d.Output(), "skipped") {
		t.Errorf("something was not read:\n%s", h.d.Output())
	}
	for i, ref := range machines {
		h.restart(ref)
		var environ bytes.Buffer
		if _, err := h.c.ExecMachine(ctx, ref, hangar.ExecRequest{Command: []string{"env"}}, hangar.ExecStreams{Stdout: &environ}); err != nil {
			t.Fatal(err)
		}
		if name := "S" + strconv.Itoa(i); !strings.Contains(environ.String(), name+"="+want[name]) {
			t.Errorf("machine %d has lost %s", i, name)
		}
	}
}

// TestSecretsOfProcessesAndFiles: each process finds the secrets that it names, and a
// file holds the secret that it was made of; that file, in the Machine's own root file
// system, is the only one on disk.
func TestSecretsOfProcessesAndFiles(t *testing.T) {
	d := daemon.Start(t, daemon.Options{Driver: "gvisor"})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	t.Cleanup(cancel)
	h := hidden{t, d, d.Client(), ctx}
	image := d.Push(daemon.Busybox(t, "sh", "sleep", "cat", "echo"), "busybox:1")
	d.Run("apps", "create", string(hiddenApp))
	h.set("TOKEN", firstSecret)
	h.set("FILE", base64.StdEncoding.EncodeToString([]byte(secondSecret)))
	tell := func(name string) []string {
		return []string{"sh", "-c", `echo "[$TOKEN][$OTHER]" >/tmp/` + name + `; sleep 100000`}
	}
	m, err := h.c.CreateMachine(ctx, hiddenApp, hangar.MachineCreate{Config: hangar.MachineConfig{
		Image: image,
		Files: []hangar.File{{GuestPath: "/etc/keys/file", SecretName: "FILE"}},
		Processes: []hangar.ProcessConfig{
			{Exec: tell("all")},
			{Exec: tell("one"), IgnoreAppSecrets: true, Secrets: []hangar.ProcessSecret{{EnvVar: "OTHER", Name: "TOKEN"}}},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	h.started(m.Ref())
	for path, want := range map[string]string{
		"/tmp/all":       "[" + firstSecret + "][]\n",
		"/tmp/one":       "[][" + firstSecret + "]\n",
		"/etc/keys/file": secondSecret,
	} {
		if got := h.content(m.Ref(), path); got != want {
			t.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
	for _, path := range find(t, d.Dir()) {
		if !strings.HasSuffix(path, "/root/upper/etc/keys/file") && !strings.Contains(path, "/root/upper/tmp/") {
			t.Errorf("there is plaintext in %s", path)
		}
	}
	d.Run("apps", "destroy", string(hiddenApp), "--force")
	h.removed(m.ID)
	h.nowhere()
}

// removed waits until the server has nothing of a Machine: its destruction is decided when
// the call returns, and carried out after that.
func (h hidden) removed(id hangar.MachineID) {
	h.Helper()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		if _, err := os.Stat(filepath.Join(h.d.Dir(), "machines", string(id))); errors.Is(err, fs.ErrNotExist) {
			return
		}
		select {
		case <-tick.C:
		case <-h.ctx.Done():
			h.Fatalf("machine %s is not removed", id)
		}
	}
}

// content waits until a file of a Machine holds something.
func (h hidden) content(ref hangar.MachineRef, path string) string {
	h.Helper()
	var out bytes.Buffer
	_, err := h.c.ExecMachine(h.ctx, ref, hangar.ExecRequest{
		Command: []string{"sh", "-c", `until [ -s "$0" ]; do sleep 0.01; done; cat "$0"`, path},
	}, hangar.ExecStreams{Stdout: &out})
	if err != nil {
		h.Fatal(err)
	}
	return out.String()
}

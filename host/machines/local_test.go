package machines_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
)

// local is a file in the platform's directory of a Machine.
func (r *rig) local(ref hangar.MachineRef, name string) string {
	return filepath.Join(r.dir, "layers", string(ref.ID), "local", name)
}

// asks sends a request over the socket of a Machine and returns the answer.
func (r *rig) asks(ref hangar.MachineRef) (string, error) {
	dir, err := os.Open(filepath.Dir(r.local(ref, "api"))) // the name may be too long for a socket's
	if err != nil {
		return "", err
	}
	defer dir.Close()
	c := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", "/proc/self/fd/"+itoa(int(dir.Fd()))+"/api")
	}}}
	res, err := c.Get("http://anything/")
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// self answers with the caller's identity.
func self(w http.ResponseWriter, r *http.Request) {
	ref, _ := hangar.SelfFrom(r.Context())
	p, _ := hangar.PrincipalFrom(r.Context())
	org := hangar.OrgSlug("")
	if len(p.Orgs()) == 1 {
		org = p.Orgs()[0]
	}
	_, _ = io.WriteString(w, string(ref.App)+" "+string(ref.ID)+" "+string(org)+" "+string(hangar.EventSourceFrom(r.Context())))
}

// TestLocalSocket: the socket exists exactly as long as the sandbox.
func TestLocalSocket(t *testing.T) {
	r := newLocalRig(t)
	ref := r.create(nil)
	answers := func() {
		t.Helper()
		want := "web " + string(ref.ID) + " personal machine"
		if got, err := r.asks(ref); err != nil || got != want {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
	}
	refuses := func() {
		t.Helper()
		r.until(func() bool { _, err := r.asks(ref); return err != nil })
	}
	r.wait(ref, hangar.MachineStarted)
	answers()
	if info, err := os.Stat(r.local(ref, "api")); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	refuses()
	r.start(ref)
	answers()
	r.restart()
	answers()
	r.crash()
	r.open()
	answers()
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	refuses()
	r.restart()
	refuses()
	r.start(ref)
	answers()
	r.must(r.RestartMachine(t.Context(), ref, hangar.MachineRestart{}))
	r.wait(ref, hangar.MachineStarted)
	answers()
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
	r.wait(ref, hangar.MachineDestroyed)
	refuses()
}

// newLocalRig is a rig whose Machines have the local API.
func newLocalRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.close()
	r.handler = http.HandlerFunc(self)
	r.open()
	return r
}

// TestRetakenLater: what the daemon cannot take back of a running Machine at its start, it takes back
// once it can.
func TestRetakenLater(t *testing.T) {
	r := newLocalRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.crash()
	output, local := filepath.Join(r.dir, "machines", string(ref.ID), "output"), filepath.Dir(r.local(ref, "api"))
	for _, part := range []string{output, local} {
		r.must(os.Rename(part, part+".away"))
		r.must(os.WriteFile(part, nil, 0o600))
	}
	r.open()
	r.wait(ref, hangar.MachineStarted)
	if _, err := r.asks(ref); err == nil {
		t.Fatal("nothing was tested")
	}
	for _, part := range []string{output, local} {
		r.must(errors.Join(os.Remove(part), os.Rename(part+".away", part)))
	}
	r.until(func() bool { r.exec(ref, "say", "hello"); return r.logged(ref, "hello") })
	r.until(func() bool { _, err := r.asks(ref); return err == nil })
}

// TestLocalSocketOfManyUsers: a Machine may let other users in, until its next boot.
func TestLocalSocketOfManyUsers(t *testing.T) {
	r := newLocalRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	has := func(what string, mode os.FileMode, uid uint32) {
		t.Helper()
		info, err := os.Lstat(r.local(ref, "api"))
		r.must(err)
		if owner := info.Sys().(*syscall.Stat_t).Uid; info.Mode() != os.ModeSocket|mode || owner != uid {
			t.Errorf("%s: the socket is %v of %d", what, info.Mode(), owner)
		}
		if _, err := r.asks(ref); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.must(errors.Join(os.Chmod(r.local(ref, "api"), 0o666), os.Chown(r.local(ref, "api"), 1000, 1000)))
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.start(ref)
	has("resumed", 0o666, 1000)
	r.crash()
	r.open()
	has("daemon killed", 0o666, 1000)
	r.must(os.WriteFile(r.local(ref, "more"), nil, 0o600))
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	r.start(ref)
	has("started", 0o600, 0)
	if _, err := os.Lstat(r.local(ref, "more")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a boot finds what the one before has left: %v", err)
	}
}

// TestLocalDirectoryIsHostile: the Machine replaces the platform's files with other things. The
// host neither follows them nor hangs, and the Machine can still start.
func TestLocalDirectoryIsHostile(t *testing.T) {
	victims := t.TempDir()
	for name, put := range map[string]func(path string) error{
		"link":                func(path string) error { return os.Symlink(filepath.Join(victims, "file"), path) },
		"dangling link":       func(path string) error { return os.Symlink(filepath.Join(victims, "new"), path) },
		"link to a directory": func(path string) error { return os.Symlink(victims, path) },
		"fifo":                func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"directory": func(path string) error {
			return errors.Join(os.MkdirAll(filepath.Join(path, "sub"), 0o700), os.Symlink(victims, filepath.Join(path, "sub", "link")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLocalRig(t)
			r.issuer.set(false, time.Hour)
			r.must(os.WriteFile(filepath.Join(victims, "file"), []byte("kept"), 0o600))
			plain, role := r.create(nil), r.create(map[string]string{"AWS_ROLE_ARN": "a"})
			machines := []hangar.MachineRef{plain, role}
			all := func(do func(ref hangar.MachineRef)) {
				for _, ref := range machines {
					do(ref)
				}
			}
			attack := func() {
				t.Helper()
				all(func(ref hangar.MachineRef) {
					r.wait(ref, hangar.MachineStarted)
					for _, name := range []string{"api", "oidc_token", ".api"} {
						r.until(func() bool { // the host may just have put a token there
							return errors.Join(os.RemoveAll(r.local(ref, name)), put(r.local(ref, name))) == nil
						})
					}
				})
			}
			serves := func(what string) {
				t.Helper()
				all(func(ref hangar.MachineRef) {
					if _, err := r.asks(ref); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				})
				if n, _ := r.roleToken(role); n == 0 {
					t.Errorf("%s: no token", what)
				}
			}
			attack()
			r.crash()
			r.open()
			attack()
			all(func(ref hangar.MachineRef) {
				r.must(r.SuspendMachine(t.Context(), ref))
				r.wait(ref, hangar.MachineSuspended)
				r.start(ref)
			})
			serves("resumed")
			attack()
			all(func(ref hangar.MachineRef) {
				r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
				r.wait(ref, hangar.MachineStopped)
				r.start(ref)
			})
			serves("started")
			b, err := os.ReadFile(filepath.Join(victims, "file"))
			list, listErr := os.ReadDir(victims)
			info, statErr := os.Stat(filepath.Join(victims, "file"))
			r.must(errors.Join(err, listErr, statErr))
			if string(b) != "kept" || len(list) != 1 || info.Mode() != 0o600 {
				t.Errorf("the host's file is %q, %v, in %v", b, info.Mode(), list)
			}
		})
	}
}

// TestStartBeforeTidying: a Machine that starts while its last sandbox is still being cleaned up
// has a socket of its own.
func TestStartBeforeTidying(t *testing.T) {
	r := newLocalRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	for range 50 {
		r.must(os.Remove(r.local(ref, "api")))
		r.must(r.SuspendMachine(t.Context(), ref))
		r.wait(ref, hangar.MachineSuspended)
		r.start(ref)
		if _, err := r.asks(ref); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSuspendThatFails: the Machine keeps its socket.
func TestSuspendThatFails(t *testing.T) {
	r := newLocalRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op == fake.OpSuspend {
			return 0, os.ErrPermission
		}
		return 0, nil
	})
	r.must(r.SuspendMachine(t.Context(), ref))
	r.until(func() bool { return strings.HasSuffix(r.history(ref), "suspend/suspending suspend/started") })
	if _, err := r.asks(ref); err != nil {
		t.Error(err)
	}
}

// roleToken returns the number and the audience of the token that a Machine finds; 0: none.
func (r *rig) roleToken(ref hangar.MachineRef) (n int, audience string) {
	r.Helper()
	raw, err := os.ReadFile(r.local(ref, "oidc_token"))
	if err != nil {
		return 0, ""
	}
	var claims struct {
		N   int    `json:"n"`
		Aud string `json:"aud"`
		Sub string `json:"sub"`
	}
	body, err := base64.RawURLEncoding.DecodeString(strings.Split(string(raw), ".")[1])
	if err == nil {
		err = json.Unmarshal(body, &claims)
	}
	if err != nil || claims.Sub != string(ref.ID) {
		r.Fatalf("token %s: %v", raw, err)
	}
	return claims.N, claims.Aud
}

func (r *rig) logged(ref hangar.MachineRef, text string) bool {
	page, err := r.Logs(r.Context(), ref.AppID, hangar.LogQuery{Instance: ref.ID, Limit: 100})
	r.must(err)
	for _, e := range page.Entries {
		if strings.Contains(e.Message, text) {
			return true
		}
	}
	return false
}

func TestRoleTokens(t *testing.T) {
	r := newRig(t)
	r.issuer.set(false, 4*time.Second)
	plain := r.create(nil)
	ref := r.create(map[string]string{"AWS_ROLE_ARN": "arn:aws:iam::1:role/r"})
	r.wait(ref, hangar.MachineStarted)
	first, audience := r.roleToken(ref)
	if first == 0 || audience != "sts.amazonaws.com" {
		t.Fatalf("token %d for %q once it is started", first, audience)
	}
	if info, err := os.Stat(r.local(ref, "oidc_token")); err != nil || info.Mode() != 0o644 {
		t.Errorf("the token is %v, %v", info, err)
	}
	if got := r.variable(ref, "AWS_WEB_IDENTITY_TOKEN_FILE") + " " + r.variable(ref, "AWS_ROLE_SESSION_NAME"); got != "/.fly/oidc_token web-"+string(ref.ID) {
		t.Errorf("variables %q", got)
	}
	later := func(than int) (n int) {
		t.Helper()
		r.until(func() bool { n, _ = r.roleToken(ref); return n > than })
		return n
	}
	n := later(first) // at half of its life
	r.restart()
	n = later(n) // the next daemon continues
	r.issuer.set(true, time.Hour)
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.issuer.set(false, time.Hour)
	before, _ := r.roleToken(ref)
	r.start(ref)
	if now, _ := r.roleToken(ref); now <= before || now <= n {
		t.Errorf("token %d after a resume, %d before", now, before)
	}
	if n, _ := r.roleToken(plain); n != 0 {
		t.Error("a Machine without a role has a token")
	}
}

func TestRoleTokenThatCannotBeHad(t *testing.T) {
	r := newRig(t)
	r.issuer.set(true, time.Hour)
	ref := r.create(map[string]string{"AWS_ROLE_ARN": "a"})
	r.wait(ref, hangar.MachineStarted)
	if n, _ := r.roleToken(ref); n != 0 || !r.logged(ref, "Cannot get the identity token in /.fly/oidc_token, trying on: issuer away") {
		t.Errorf("token %d, or the log does not say why there is none", n)
	}
	r.restart() // that it is due is not forgotten
	r.issuer.set(false, time.Hour)
	r.until(func() bool { n, _ := r.roleToken(ref); return n > 0 })

	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	r.issuer.set(true, time.Hour)
	r.start(ref)
	if n, _ := r.roleToken(ref); n != 0 {
		t.Errorf("token %d is of the boot before", n)
	}
	r.issuer.set(false, time.Hour)
	r.until(func() bool { n, _ := r.roleToken(ref); return n > 0 && r.logged(ref, "There is a new identity token") })
}

// TestRoleTokenDueAtBoot: no pending renewal interferes while a boot gives a Machine its token, or
// removes it.
func TestRoleTokenDueAtBoot(t *testing.T) {
	r := newRig(t)
	r.issuer.set(false, time.Second)
	ref := r.create(map[string]string{"AWS_ROLE_ARN": "a"})
	r.wait(ref, hangar.MachineStarted)
	<-r.issuer.hold() // the renewal
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	r.start(ref)
	if r.issuer.overlapped() {
		t.Error("the boot asked for a token while one was being renewed")
	}
	if n, _ := r.roleToken(ref); n == 0 {
		t.Error("there is no token after the boot")
	}

	<-r.issuer.hold()
	before, err := r.Machine(t.Context(), ref)
	r.must(err)
	config := before.Config
	config.Env = nil
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
	r.must(err)
	r.wait(ref, hangar.WaitSettled)
	r.close() // which waits for the renewal
	if n, _ := r.roleToken(ref); n != 0 {
		t.Error("a renewal that was under way gave a Machine a token that has no role any more")
	}
}

// TestEtcOfMachines: a Machine's changes to its files last as long as its root file system.
func TestEtcOfMachines(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	path := filepath.Join(r.dir, "layers", string(ref.ID), "etc", "hosts")
	own, err := os.ReadFile(path)
	r.must(err)
	r.must(os.WriteFile(path, append(own, "192.0.2.1 added\n"...), 0o600))
	added := func() bool {
		b, err := os.ReadFile(path)
		r.must(err)
		return strings.HasSuffix(string(b), "added\n")
	}
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.start(ref)
	if !added() {
		t.Error("a resume changed /etc/hosts")
	}
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	r.start(ref)
	if added() {
		t.Error("a boot from the image left /etc/hosts as it was")
	}
	r.must(os.Truncate(path, 0))
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.start(ref)
	if b, _ := os.ReadFile(path); string(b) != string(own) {
		t.Errorf("/etc/hosts is %q after it was cut short", b)
	}
}

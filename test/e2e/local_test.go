package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/e2e/debian"
	"github.com/hangar-platform/hangar/test/e2e/software"
)

// debianMachine runs a Debian system with curl. Its main process runs as root the commands written
// to /do, and leaves their output in /done: unlike a command of exec, it continues after a suspend.
func debianMachine(t *testing.T, p *platform, name string, alter func(*hangar.MachineConfig)) *machine {
	t.Helper()
	builder := software.Builder(t)
	img, err := builder.Build(t.Context(), debian.Recipe{
		Packages: []string{"curl", "procps", "iproute2"}, Version: "curl --version | head -1",
		Setup:  "echo '192.0.2.7 legacy-database' >/etc/hosts\nchmod 755 /root",
		Config: v1.Config{Env: software.Path, Cmd: []string{"sh", "-c", `while :; do if [ -e /do ]; then mv /do /doing; sh /doing >/doing.out 2>&1; echo "exit $?" >>/doing.out; mv /doing.out /done; fi; sleep 0.02; done`}},
	})
	if err != nil {
		t.Fatal(err)
	}
	config := hangar.MachineConfig{Image: p.push(t, img, "guest:1"), Restart: &hangar.RestartConfig{Policy: hangar.RestartNo}}
	if alter != nil {
		alter(&config)
	}
	return p.run(t, name, config)
}

// does has the main process of a debianMachine run a script.
func (m *machine) does(t *testing.T, script string) {
	t.Helper()
	m.exec(t, "sh", "-c", "rm -f /done; printf '%s\n' \"$0\" >/do.new && mv /do.new /do", script)
}

// did returns what came of the script.
func (m *machine) did(t *testing.T) (out string) {
	t.Helper()
	until(t, "a script in the Machine", func() (err error) {
		var code int
		if out, code, err = m.tryExec(t.Context(), "cat", "/done"); err == nil && code != 0 {
			err = fmt.Errorf("exit code %d", code)
		}
		return err
	})
	return out
}

// asks is shell code that sends a request over the local socket, and prints the status
// after the answer.
func (m *machine) asks(method, path string, more ...string) string {
	return "curl -sS -w ' %{http_code}' " + strings.Join(more, " ") + " --unix-socket /.fly/api -X " + method + " http://flaps/v1/apps/" + path
}

func (m *machine) self() string { return "e2e/machines/" + string(m.ref.ID) }

// TestLocalAPI: what a Machine can and cannot do with its local socket, through everything that
// may happen to both sides of it.
func TestLocalAPI(t *testing.T) {
	p := start(t)
	m := debianMachine(t, p, "local", nil)
	other := p.create(t, "other", hangar.MachineConfig{Image: p.reference("guest:1")})
	if _, err := p.c.CreateApp(t.Context(), hangar.AppCreate{Name: "elsewhere", Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	reads := func(t *testing.T) {
		t.Helper()
		for _, socket := range []string{"/.fly/api", "/.platform/api"} {
			out := m.exec(t, "curl", "-sSf", "--max-time", "20", "--unix-socket", socket, "http://anything/v1/apps/"+m.self())
			var got hangar.Machine
			if err := json.Unmarshal([]byte(out), &got); err != nil || got.ID != m.ref.ID {
				t.Fatalf("%s: %v: %s", socket, err, out)
			}
		}
	}
	t.Run("itself", func(t *testing.T) {
		reads(t)
		out := m.exec(t, "sh", "-c", m.asks("POST", m.self()+"/metadata/role", `-d '{"value":"primary"}'`)+";"+
			m.asks("GET", m.self()+"/metadata")+";"+m.asks("DELETE", m.self()+"/metadata/role")+";"+m.asks("GET", m.self()+"/metadata"))
		if want := ` 204{"role":"primary"} 204{}` + " 200"; strings.ReplaceAll(strings.ReplaceAll(out, "\n", ""), "} 200 204", "} 204") != want {
			t.Errorf("metadata: %q", out)
		}
		if out := m.exec(t, "sh", "-c", m.asks("GET", "e2e")); !strings.HasSuffix(out, " 200") {
			t.Errorf("its app: %q", out)
		}
	})
	t.Run("others", func(t *testing.T) {
		for _, c := range []struct{ method, path, status string }{
			{"GET", "e2e/machines/" + string(other.ref.ID), "404"},
			{"POST", "e2e/machines/" + string(other.ref.ID) + "/suspend", "404"},
			{"POST", "e2e/machines/" + string(other.ref.ID) + "/metadata/a", "404"},
			{"GET", "elsewhere", "404"},
			{"GET", "elsewhere/machines/" + string(m.ref.ID), "404"},
			{"GET", "none", "404"},
			{"GET", "e2e/machines", "403"},
			{"POST", "e2e/machines", "403"},
			{"POST", m.self(), "403"},
			{"DELETE", m.self(), "403"},
			{"POST", m.self() + "/exec", "403"},
			{"POST", m.self() + "/stop", "403"},
			{"GET", m.self() + "/lease", "403"},
			{"POST", m.self() + "/lease", "403"},
			{"GET", "e2e/secrets", "403"},
			{"GET", "../tokens", "403"},
			{"POST", "../tokens", "403"},
			{"GET", "../orgs/personal/machines", "403"},
			{"GET", "../../v2/", "403"},
		} {
			// Not even with the token of an administrator.
			out := m.exec(t, "sh", "-c", m.asks(c.method, c.path, "--path-as-is -d '{}' -H 'Authorization: Bearer "+p.d.Token()+"'"))
			if strings.Contains(c.path, "..") {
				out = m.exec(t, "sh", "-c", m.asks(c.method, c.path, "-d '{}'"))
			}
			if !strings.HasSuffix(out, " "+c.status) {
				t.Errorf("%s %s: %q, want %s", c.method, c.path, out, c.status)
			}
		}
	})
	forRoot := func(t *testing.T) {
		t.Helper()
		if got := m.exec(t, "stat", "-c", "%a %U %F", "/.fly/api", "/.fly"); got != "600 root socket\n755 root directory\n" {
			t.Errorf("the socket is %q", got)
		}
		out, code, err := m.tryExec(t.Context(), "setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "curl", "-sS", "--unix-socket", "/.fly/api", "http://x/healthz")
		if err != nil || code != 7 {
			t.Errorf("another user: exit code %d, %v: %s", code, err, out)
		}
	}
	t.Run("for root alone", forRoot)
	t.Run("suspends itself", func(t *testing.T) {
		for n := range times(5, 2) {
			m.does(t, m.asks("POST", m.self()+"/suspend"))
			m.wait(t, hangar.MachineSuspended)
			m.resume(t)
			if out := m.did(t); out != "{\"ok\":true}\n 200exit 0\n" {
				t.Errorf("the %d. request to be suspended: %q", n+1, out)
			}
			reads(t)
		}
		for _, e := range m.events(t) {
			if e.Type == hangar.EventSuspend && e.Status == string(hangar.MachineSuspending) && e.Source != hangar.SourceMachine {
				t.Errorf("event %+v", e)
			}
		}
	})
	t.Run("reads the answer late", func(t *testing.T) {
		// The second half of a connection that is the last thing it does, and of one that it keeps.
		for _, connection := range []string{"close", "keep-alive"} {
			m.does(t, `perl -MIO::Socket::UNIX -e '
				my $s = IO::Socket::UNIX->new(Peer => "/.fly/api") or die $!;
				print $s "POST /v1/apps/`+m.self()+`/suspend HTTP/1.1\r\nHost: x\r\nConnection: `+connection+`\r\n\r\n";
				$s->flush; select undef, undef, undef, 0.3;
				$s->sysread(my $answer, 4096) or die "no answer: $!"; print substr($answer, 0, 15), "\n"'`)
			m.wait(t, hangar.MachineSuspended)
			m.resume(t)
			if out := m.did(t); out != "HTTP/1.1 200 OK\nexit 0\n" {
				t.Errorf("connection: %s: %q", connection, out)
			}
		}
	})
	t.Run("leased", func(t *testing.T) {
		lease, err := p.c.AcquireLease(t.Context(), m.ref, hangar.LeaseAcquire{})
		if err != nil {
			t.Fatal(err)
		}
		if out := m.exec(t, "sh", "-c", m.asks("POST", m.self()+"/suspend")); !strings.HasSuffix(out, " 409") {
			t.Errorf("suspend under another user's lease: %q", out)
		}
		if err := p.c.ReleaseLease(hangar.WithLeaseNonce(t.Context(), lease.Nonce), m.ref); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("daemon killed", func(t *testing.T) {
		m.does(t, "while curl -sf --unix-socket /.fly/api http://x/healthz >/dev/null; do sleep 0.05; done\n"+
			m.asks("GET", m.self()+"/metadata", "--retry 200 --retry-delay 1 --retry-all-errors 2>/dev/null"))
		p.d.Kill()
		p.d.Up()
		if out := m.did(t); !strings.HasSuffix(out, "{}\n 200exit 0\n") {
			t.Errorf("across a kill of the daemon: %q", out)
		}
		reads(t)
	})
	forOthers := func(t *testing.T, mode string) {
		t.Helper()
		for _, dir := range []string{"/.fly", "/.platform"} {
			if got := m.exec(t, "stat", "-c", "%a %u:%g %F", dir+"/api"); got != mode+" socket\n" {
				t.Errorf("the socket in %s is %q, want %q", dir, got, mode)
			}
			out := m.exec(t, "setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "curl", "-sSf", "--unix-socket", dir+"/api", "http://x/v1/apps/"+m.self())
			if !strings.Contains(out, string(m.ref.ID)) {
				t.Errorf("another user over %s: %s", dir, out)
			}
		}
	}
	t.Run("for other users", func(t *testing.T) {
		for _, c := range []struct{ change, mode string }{
			{"chmod 666 /.fly/api", "666 0:0"},
			{"chmod 600 /.platform/api && chown 1000:1000 /.platform/api", "600 1000:1000"},
		} {
			m.exec(t, "sh", "-ec", c.change)
			forOthers(t, c.mode)
			m.suspend(t)
			m.resume(t)
			forOthers(t, c.mode)
			p.d.Kill()
			p.d.Up()
			forOthers(t, c.mode)
		}
		m.stop(t)
		m.start(t)
		forRoot(t)
	})
	t.Run("hostile", func(t *testing.T) {
		out := m.exec(t, "sh", "-c", `cd /.fly
			mknod null c 1 3 && echo DEVICE; mknod disk b 8 0 && echo DEVICE
			cp /bin/sh shell && chmod 4755 shell || echo NO SHELL
			rm api && ln -s /etc/passwd api && mkdir -p oidc_token/sub && mkfifo .api && head -c 1000000 /dev/zero >large; ls -A`)
		if strings.Contains(out, "DEVICE") || !strings.Contains(out, "large") {
			t.Errorf("what the Machine may do in its directory: %s", out)
		}
		for dir := p.d.Dir(); ; dir += "/machines" {
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("other users of the server come to what the Machine makes: %v %v", info.Mode(), err)
			}
			if strings.HasSuffix(dir, "/machines") {
				break
			}
		}
		p.d.Kill()
		p.d.Up()
		reads(t)
		m.exec(t, "sh", "-ec", "rm /.fly/api; mkdir -p /.fly/api/sub")
		m.suspend(t)
		m.resume(t)
		reads(t)
		m.stop(t)
		m.start(t)
		if out := m.exec(t, "ls", "-A", "/.fly"); out != "api\n" {
			t.Errorf("a boot finds %q", out)
		}
		forRoot(t)
		reads(t)
	})
	t.Run("nothing is left", func(t *testing.T) {
		other.wait(t, hangar.MachineStarted, hangar.MachineStopped)
		before := descriptors(t, p.d.PID())
		for range 3 {
			m.suspend(t)
			m.resume(t)
			reads(t)
		}
		until(t, "descriptors of the daemon", func() error {
			if now := descriptors(t, p.d.PID()); now > before+2 {
				return fmt.Errorf("%d, before %d", now, before)
			}
			return nil
		})
		m.stop(t)
		until(t, "socket of a stopped Machine", func() error {
			if n := strings.Count(local(t, "cat", "/proc/net/unix"), p.d.Dir()+"/machines/"+string(m.ref.ID)); n > 0 {
				return fmt.Errorf("%d are there", n)
			}
			return nil
		})
	})
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// claims reads the claims of an identity token, unverified.
func claims(t *testing.T, token string) (c hangar.IdentityClaims) {
	t.Helper()
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		t.Fatalf("no token: %q", token)
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		t.Fatalf("%v: %q", err, token)
	}
	return c
}

// TestIdentity: a Machine proves who it is over its socket, and finds a token when it
// assumes a role at AWS.
func TestIdentity(t *testing.T) {
	p := start(t)
	m := debianMachine(t, p, "identity", func(c *hangar.MachineConfig) {
		c.Env = map[string]string{"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/reader"}
		// The first program finds the token.
		c.Init.Exec = []string{"sh", "-c", `setpriv --reuid 1000 --regid 1000 --clear-groups cat $AWS_WEB_IDENTITY_TOKEN_FILE >/tmp/first; exec sleep 1000000`}
	})
	is := func(t *testing.T, c hangar.IdentityClaims, audience string) {
		t.Helper()
		if c.MachineID != m.ref.ID || c.AppName != app || c.Subject != "personal:e2e:identity" || c.Audience != audience {
			t.Errorf("claims %+v, want the audience %q", c, audience)
		}
	}
	t.Run("socket", func(t *testing.T) {
		const ask = "curl -sSf --unix-socket /.fly/api -X POST http://localhost/v1/tokens/oidc"
		one, other := claims(t, m.exec(t, "sh", "-c", ask+` -d '{"aud":"https://vault.test"}'`)), claims(t, m.exec(t, "sh", "-c", ask))
		is(t, one, "https://vault.test")
		if one.ID == other.ID || other.MachineID != m.ref.ID {
			t.Errorf("the second token is %+v", other)
		}
	})
	token := func() string { return m.exec(t, "cat", "/.platform/oidc_token") }
	t.Run("role", func(t *testing.T) {
		first := m.exec(t, "sh", "-c", "until [ -s /tmp/first ]; do sleep 0.01; done; cat /tmp/first")
		is(t, claims(t, first), "sts.amazonaws.com")
		want := "/.fly/oidc_token e2e-" + string(m.ref.ID) + "\n"
		if got := m.exec(t, "sh", "-c", "echo $AWS_WEB_IDENTITY_TOKEN_FILE $AWS_ROLE_SESSION_NAME"); got != want {
			t.Errorf("variables %q, want %q", got, want)
		}
		if got := m.exec(t, "stat", "-c", "%a %u:%g %F", "/.fly/oidc_token"); got != "644 0:0 regular file\n" {
			t.Errorf("the token is a %q", got)
		}
	})
	changes := func(t *testing.T, what string, do func()) {
		t.Helper()
		before := claims(t, token())
		do()
		until(t, "a new token after "+what, func() error {
			if c := claims(t, token()); c.ID == before.ID {
				return fmt.Errorf("it is still %s", c.ID)
			}
			return nil
		})
		is(t, claims(t, token()), "sts.amazonaws.com")
	}
	t.Run("resume", func(t *testing.T) { changes(t, "a resume", func() { m.suspend(t); m.resume(t) }) })
	t.Run("daemon killed", func(t *testing.T) { changes(t, "a kill of the daemon", func() { p.d.Kill(); p.d.Up() }) })
	t.Run("start", func(t *testing.T) { changes(t, "a start", func() { m.stop(t); m.start(t) }) })
}

package listen

import (
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program finds a program of others, or skips the test.
func program(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		if found, err := filepath.Glob(name); err == nil && len(found) > 0 {
			return found[len(found)-1]
		}
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skipf("there is none of %q", names)
	return ""
}

// output runs a program and returns what it says.
func output(t *testing.T, input string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin = strings.NewReader(input)
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// talk runs a program, gives it its input once it has said something, and returns all that it says.
func talk(t *testing.T, until, input string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	in, err := cmd.StdinPipe()
	must(err)
	out, err := cmd.StdoutPipe()
	must(err)
	must(cmd.Start())
	var said strings.Builder
	for buffer := make([]byte, 4096); err == nil; {
		var n int
		n, err = out.Read(buffer)
		said.Write(buffer[:n])
		if input != "" && strings.Contains(said.String(), until) {
			_, _ = io.WriteString(in, input)
			input = ""
		}
	}
	_ = cmd.Wait()
	return said.String()
}

// authority writes the certificate that signs all others of a world.
func (w *world) authority(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	must(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.ca.Raw}), 0o600))
	return file
}

func TestOpenSSL(t *testing.T) {
	openssl := program(t, "openssl")
	w := newWorld()
	w.echo(t, 1, "hello\n")
	web := freePort(t)
	w.app("shop", []string{"shared_v4 127.0.0.1", "v4 " + dedicated}, service("tcp", 1, 443, "tls"), service("tcp", 1, web, "tls", "http"))
	r := newRig(t, w, nil)
	_, https := r.Addrs()
	ca, session := w.authority(t), filepath.Join(t.TempDir(), "session")
	dial(t, "tcp", at(dedicated, web))
	for _, tt := range []struct {
		args, want string
	}{
		{"-tls1_3 -servername shop.apps.test -verify_hostname shop.apps.test", "Verified peername: shop.apps.test"},
		{"-tls1_2 -servername shop.apps.test -verify_hostname shop.apps.test", "Verified peername: shop.apps.test"},
		{"-tls1_2 -cipher ECDHE-ECDSA-AES128-SHA -servername shop.apps.test", "Cipher is (NONE)"},
		{"-tls1_1 -cipher DEFAULT@SECLEVEL=0 -servername shop.apps.test", "Cipher is (NONE)"},
		{"-servername shop.apps.test -alpn h2", "No ALPN negotiated"},
		{"-servername nobody.apps.test", "Cipher is (NONE)"},
		{"-noservername", "Cipher is (NONE)"},
		{"-servername shop.apps.test -sess_out " + session, "New, TLS"},
		{"-servername shop.apps.test -sess_in " + session, "Reused, TLS"},
		{"-servername shop.apps.test -alpn h2,http/1.1 web", "ALPN protocol: h2"},
	} {
		args, address := tt.args, https.String()
		if rest, ok := strings.CutSuffix(args, " web"); ok {
			args, address = rest, at(dedicated, web)
		}
		all := append([]string{"s_client", "-connect", address, "-CAfile", ca}, strings.Fields(args)...)
		out := ""
		if strings.Contains(args, session) {
			out = talk(t, "hello", "Q\n", openssl, all...) // the ticket comes before the greeting
		} else {
			out = output(t, "Q\n", openssl, all...)
		}
		if !strings.Contains(out, tt.want) {
			t.Errorf("%s: want %q in:\n%s", tt.args, tt.want, out)
		}
	}
}

func TestNginxTakesThePROXYHeader(t *testing.T) {
	nginx, curl := program(t, "nginx", "/usr/sbin/nginx"), program(t, "curl")
	dir := t.TempDir()
	port, backend := freePort(t), freePort(t)
	config := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log stderr;
events {}
http {
	access_log off; client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
	server { listen 127.0.0.1:%[2]d proxy_protocol; return 200 "$proxy_protocol_addr $proxy_protocol_server_addr $proxy_protocol_server_port"; }
}`, dir, backend)
	must(os.WriteFile(dir+"/nginx.conf", []byte(config), 0o600))
	server := exec.CommandContext(t.Context(), nginx, "-c", dir+"/nginx.conf", "-e", "stderr")
	must(server.Start())
	t.Cleanup(func() {
		must(server.Process.Kill())
		_ = server.Wait()
	})
	w := newWorld()
	w.backends[1] = at("127.0.0.1", backend)
	v2 := service("tcp", 1, freePort(t), "proxy_proto", "tls")
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, port, "proxy_proto"), v2)
	newRig(t, w, nil)
	dial(t, "tcp", at("127.0.0.1", backend))
	dial(t, "tcp", at(dedicated, port))
	if got, want := output(t, "", curl, "-sS", "http://"+at(dedicated, port)), fmt.Sprintf("127.0.0.1 %s %d", dedicated, port); got != want {
		t.Errorf("nginx received %q, want %q", got, want)
	}
	public := v2.Ports[0].Port
	got := output(t, "", curl, "-sS", "--cacert", w.authority(t), "--connect-to", fmt.Sprintf("shop.apps.test:%d:%s:%d", public, dedicated, public), fmt.Sprintf("https://shop.apps.test:%d", public))
	if want := fmt.Sprintf("127.0.0.1 %s %d", dedicated, public); got != want {
		t.Errorf("nginx received %q, want %q", got, want)
	}
}

// psql finds a real server behind pg_tls.
func TestPostgreSQL(t *testing.T) {
	psql := program(t, "psql")
	initdb, postgres := program(t, "/usr/lib/postgresql/*/bin/initdb"), program(t, "/usr/lib/postgresql/*/bin/postgres")
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user, who PostgreSQL wants to be")
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("/tmp", "hangar-listen-") //nolint:usetesting // t.TempDir is not for others to traverse
	must(err)
	t.Cleanup(func() { must(os.RemoveAll(dir)) })
	must(os.Chown(dir, nobody, nobody))
	as := func(name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = dir, []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return cmd
	}
	if out, err := as(initdb, "-D", dir+"/db", "-U", "me", "-A", "trust", "--no-sync").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	backend, port := freePort(t), freePort(t)
	server := as(postgres, "-D", dir+"/db", "-p", fmt.Sprint(backend), "-h", "127.0.0.1", "-k", dir, "-F")
	server.Cancel = func() error { return server.Process.Signal(syscall.SIGINT) } // killed, it would leave children that write to its directory
	must(server.Start())
	t.Cleanup(func() { _ = server.Wait() })
	w := newWorld()
	w.backends[1] = at("127.0.0.1", backend)
	w.app("db", []string{"v4 " + dedicated}, service("tcp", 1, port, "pg_tls"))
	newRig(t, w, nil)
	dial(t, "tcp", at(dedicated, port))
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", at("127.0.0.1", backend)); err == nil {
			must(c.Close())
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("PostgreSQL does not start")
		}
	}
	ask := func(mode, sql string) string {
		return output(t, "", psql, fmt.Sprintf("host=db.apps.test hostaddr=%s port=%d user=me dbname=postgres sslmode=%s sslrootcert=%s", dedicated, port, mode, w.authority(t)), "-Atc", sql)
	}
	var got string
	for deadline := time.Now().Add(patience); got != "42\n" && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		got = ask("verify-full", "select 6*7") // it takes connections before it answers them
	}
	if got != "42\n" {
		t.Errorf("psql says %q", got)
	}
	if got := ask("disable", "select 1"); !strings.Contains(got, "FATAL:  the connection has to be encrypted: use sslmode=require") {
		t.Errorf("without TLS psql says %q", got)
	}
	if got := ask("prefer", "select length(repeat('x', 1000000))"); got != "1000000\n" {
		t.Errorf("psql says %q", got)
	}
}

package sshd_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/sshd"
	"github.com/hangar-platform/hangar/internal/gobuild"
	"github.com/hangar-platform/hangar/internal/ratelimit"
)

const (
	acme  hangar.OrgID = "acme"
	other hangar.OrgID = "other"

	web     hangar.MachineID = "00000000000001"
	bare    hangar.MachineID = "00000000000002" // has no shell
	theirs  hangar.MachineID = "00000000000003" // of another organization
	stopped hangar.MachineID = "00000000000004"
)

// guest is the path of hangar-guest, for all tests.
var guest string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "hgsshd")
	if err == nil {
		guest = filepath.Join(dir, "hangar-guest")
		err = gobuild.Build(context.Background(), guest, "github.com/hangar-platform/hangar/cmd/hangar-guest")
	}
	code := 1
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// house is a host whose Machines are this computer.
type house struct {
	guest string // path of hangar-guest
	home  string
}

func (h *house) SSHMachine(id hangar.MachineID) (hangar.MachineRef, hangar.OrgID, error) {
	ref := hangar.MachineRef{App: "web", ID: id}
	switch id {
	case web, bare:
		return ref, acme, nil
	case theirs:
		return ref, other, nil
	default:
		return ref, "", hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "not started")
	}
}

func (h *house) SSHUser(_ hangar.MachineRef, name string) (hangar.SSHUser, error) {
	if name != "root" && name != "deploy" {
		return hangar.SSHUser{}, hangar.Errorf(hangar.CodeInvalid, "", "no such user")
	}
	return hangar.SSHUser{Name: name, Home: h.home, Shell: "/bin/sh"}, nil
}

func (h *house) ExecSSH(ctx context.Context, ref hangar.MachineRef, in hangar.SSHExec, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	args := in.Command
	if args[0] == hangar.SSHProgram {
		args = append([]string{h.guest}, args[1:]...)
	}
	if ref.ID == bare && args[0] == "/bin/sh" {
		return hangar.ExecResult{}, hangar.Errorf(hangar.CodeInvalid, "", "not in the file system")
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append([]string{"PATH=" + os.Getenv("PATH")}, in.Env...), streams.Stdout, streams.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return hangar.ExecResult{}, err
	}
	if err := cmd.Start(); err != nil {
		return hangar.ExecResult{}, err
	}
	go func() { // ends with the reader
		_, _ = io.Copy(stdin, streams.Stdin)
		_ = stdin.Close()
	}()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil {
		return hangar.ExecResult{ExitCode: exit.ExitCode()}, nil
	}
	return hangar.ExecResult{}, err
}

// authorities are those of the organizations.
type authorities map[hangar.OrgID]ssh.Signer

func (a authorities) TrustedSSHAuthorities(_ context.Context, org hangar.OrgID) ([]hangar.SSHAuthority, error) {
	return []hangar.SSHAuthority{{PublicKey: string(ssh.MarshalAuthorizedKey(a[org].PublicKey()))}}, nil
}

// rig is a server that is called at a port for each Machine.
type rig struct {
	t     testing.TB
	trust authorities
	home  string
	ports map[hangar.MachineID]string
}

func newSigner(tb testing.TB) (ed25519.PrivateKey, ssh.Signer) {
	tb.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	return private, signer
}

func start(tb testing.TB, limits sshd.Limits) *rig {
	tb.Helper()
	r := &rig{t: tb, trust: authorities{}, home: tb.TempDir(), ports: map[hangar.MachineID]string{}}
	for _, org := range []hangar.OrgID{acme, other} {
		_, r.trust[org] = newSigner(tb)
	}
	house := &house{guest: guest, home: r.home}
	server := sshd.New(sshd.Options{
		Machines: house, Trust: r.trust, Secret: bytes.Repeat([]byte{7}, sshd.SecretSize), Limits: limits,
		Log: slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), Now: time.Now,
	})
	if err := server.Open(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(tb.Context())
	var serving sync.WaitGroup
	for _, id := range []hangar.MachineID{web, bare, theirs, stopped} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		r.ports[id] = l.Addr().String()
		serving.Go(func() {
			err := server.Serve(ctx, l, func(net.Conn) (hangar.MachineID, bool) { return id, true })
			if !errors.Is(err, context.Canceled) {
				tb.Errorf("Serve: %v", err)
			}
		})
	}
	tb.Cleanup(func() {
		stop()
		serving.Wait()
		if err := server.Close(); err != nil {
			tb.Error(err)
		}
	})
	return r
}

// wish is a certificate as the tests want it. The zero value is one that lets root in for an hour.
type wish struct {
	org        hangar.OrgID
	principals []string
	from, to   time.Duration // beside now
	forbid     string        // what is not permitted
	source     string
	host       bool // a certificate of a host
	plain      bool // no certificate at all
}

func (r *rig) certify(w wish) (ed25519.PrivateKey, ssh.Signer, *ssh.Certificate) {
	r.t.Helper()
	private, signer := newSigner(r.t)
	if w.plain {
		return private, signer, nil
	}
	if w.org == "" {
		w.org = acme
	}
	if w.principals == nil {
		w.principals = []string{"root"}
	}
	if w.to == 0 {
		w.to = time.Hour
	}
	c := &ssh.Certificate{
		Key: signer.PublicKey(), CertType: ssh.UserCert, KeyId: "test", ValidPrincipals: w.principals,
		ValidAfter: uint64(time.Now().Add(w.from - time.Minute).Unix()), ValidBefore: uint64(time.Now().Add(w.to).Unix()),
		Permissions: ssh.Permissions{CriticalOptions: map[string]string{}, Extensions: map[string]string{"permit-pty": "", "permit-port-forwarding": ""}},
	}
	delete(c.Extensions, w.forbid)
	if w.source != "" {
		c.CriticalOptions["source-address"] = w.source
	}
	if w.host {
		c.CertType = ssh.HostCert
	}
	if err := c.SignCert(rand.Reader, r.trust[w.org]); err != nil {
		r.t.Fatal(err)
	}
	certified, err := ssh.NewCertSigner(c, signer)
	if err != nil {
		r.t.Fatal(err)
	}
	return private, certified, c
}

// dial signs in as a client of this process.
func (r *rig) dial(id hangar.MachineID, user string, w wish) (*ssh.Client, error) {
	r.t.Helper()
	_, signer, _ := r.certify(w)
	return ssh.Dial("tcp", r.ports[id], &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(), Timeout: time.Minute,
	})
}

// openSSH returns the arguments of the real programs, which are the same for all of them, except
// for the target.
func (r *rig) openSSH(id hangar.MachineID) (args []string, port string) {
	r.t.Helper()
	private, _, certificate := r.certify(wish{})
	dir := r.t.TempDir()
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		r.t.Fatal(err)
	}
	for name, content := range map[string][]byte{"key": pem.EncodeToMemory(block), "key-cert.pub": ssh.MarshalAuthorizedKey(certificate)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	_, port, _ = net.SplitHostPort(r.ports[id])
	return []string{
		"-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=accept-new",
		"-o", "UserKnownHostsFile=" + filepath.Join(dir, "known"), "-i", filepath.Join(dir, "key"),
	}, port
}

// TestOpenSSH uses the client of Debian.
func TestOpenSSH(t *testing.T) {
	r := start(t, sshd.DefaultLimits())
	for name, test := range map[string]struct {
		machine hangar.MachineID
		stdin   string
		command string
		options []string
		out     string
		code    int
	}{
		"exit code":         {machine: web, command: "exit 7", code: 7},
		"input":             {machine: web, stdin: "one\ntwo\n", command: "wc -l", out: "2\n"},
		"shell":             {machine: web, stdin: "echo $USER $FLY_SSH\nexit 3\n", out: "root 1\n", code: 3},
		"home":              {machine: web, command: "pwd", out: r.home + "\n"},
		"environment":       {machine: web, options: []string{"-o", "SetEnv=COLOR=blue"}, command: "echo $COLOR", out: "blue\n"},
		"without a shell":   {machine: bare, command: "echo 'a  b'", out: "a  b\n"},
		"no such command":   {machine: web, command: "no-such-command", code: 127},
		"several at a time": {machine: web, command: "sleep 0 & echo x & wait", out: "x\n"},
	} {
		t.Run(name, func(t *testing.T) {
			args, port := r.openSSH(test.machine)
			args = append(append(args, test.options...), "-p", port, "root@127.0.0.1")
			if test.command != "" {
				args = append(args, test.command)
			}
			cmd := exec.CommandContext(t.Context(), "ssh", args...)
			cmd.Stdin = strings.NewReader(test.stdin)
			out, err := cmd.Output()
			if cmd.ProcessState == nil {
				t.Fatal(err)
			}
			if code := cmd.ProcessState.ExitCode(); string(out) != test.out || code != test.code {
				t.Errorf("%q, exit code %d (%v), want %q, %d", out, code, err, test.out, test.code)
			}
		})
	}
}

// TestSFTP moves files with the client of Debian, by sftp and by scp.
func TestSFTP(t *testing.T) {
	r := start(t, sshd.DefaultLimits())
	args, port := r.openSSH(web)
	local := filepath.Join(t.TempDir(), "up")
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := os.WriteFile(local, content, 0o644); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("put %s up\nrename up there\nmkdir d\nls\nget there %s.back\n", local, local)
	cmd := exec.CommandContext(t.Context(), "sftp", append(append([]string{"-b", "-", "-P", port}, args...), "root@127.0.0.1")...)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "there") {
		t.Fatalf("sftp: %v\n%s", err, out)
	}
	if back, err := os.ReadFile(local + ".back"); err != nil || !bytes.Equal(back, content) {
		t.Errorf("%d bytes came back, %v", len(back), err)
	}
	if there, err := os.ReadFile(filepath.Join(r.home, "there")); err != nil || !bytes.Equal(there, content) {
		t.Errorf("%d bytes are there, %v", len(there), err)
	}
	cmd = exec.CommandContext(t.Context(), "scp", append(append([]string{"-s", "-P", port}, args...), local, "root@127.0.0.1:d/copy")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("scp: %v\n%s", err, out)
	}
	if there, err := os.ReadFile(filepath.Join(r.home, "d", "copy")); err != nil || !bytes.Equal(there, content) {
		t.Errorf("%d bytes are there, %v", len(there), err)
	}
}

// TestWhoIsLetIn tries certificates that let their holder in, and others.
func TestWhoIsLetIn(t *testing.T) {
	r := start(t, sshd.DefaultLimits())
	for name, test := range map[string]struct {
		machine hangar.MachineID
		user    string
		wish    wish
		in      bool
	}{
		"root":                          {web, "root", wish{}, true},
		"root in the App":               {web, "root", wish{principals: []string{"root@web"}}, true},
		"root in another App":           {web, "root", wish{principals: []string{"root@db"}}, false},
		"another user":                  {web, "root", wish{principals: []string{"deploy"}}, false},
		"that user":                     {web, "deploy", wish{principals: []string{"deploy"}}, true},
		"a user that the image lacks":   {web, "eve", wish{principals: []string{"eve"}}, false},
		"the name of the principal":     {web, "root@web", wish{principals: []string{"root@web"}}, false},
		"no principal":                  {web, "root", wish{principals: []string{}}, false},
		"another organization":          {web, "root", wish{org: other}, false},
		"from another organization":     {theirs, "root", wish{}, false},
		"their own":                     {theirs, "root", wish{org: other}, true},
		"not any more":                  {web, "root", wish{from: -2 * time.Hour, to: -time.Hour}, false},
		"not yet":                       {web, "root", wish{from: time.Hour, to: 2 * time.Hour}, false},
		"from here":                     {web, "root", wish{source: "127.0.0.0/8"}, true},
		"from elsewhere":                {web, "root", wish{source: "192.0.2.1"}, false},
		"a host":                        {web, "root", wish{host: true}, false},
		"a key":                         {web, "root", wish{plain: true}, false},
		"a Machine that is not started": {stopped, "root", wish{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := r.dial(test.machine, test.user, test.wish)
			if client != nil {
				defer client.Close()
			}
			if (err == nil) != test.in {
				t.Errorf("let in: %t, %v", err == nil, err)
			}
		})
	}
}

// TestForwarding connects to what listens beside the Machine's programs.
func TestForwarding(t *testing.T) {
	r := start(t, sshd.DefaultLimits())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	client, err := r.dial(web, "root", wish{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := client.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("forwarded ", 100_000)
	go func() {
		_, _ = io.WriteString(conn, want)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != want {
		t.Errorf("%d bytes came back of %d, %v", len(got), len(want), err)
	}
	_ = l.Close()
	if _, err := client.Dial("tcp", l.Addr().String()); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("where nothing listens: %v", err)
	}
	if _, err := client.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Error("a port listens in the Machine")
	}

	limited, err := r.dial(web, "root", wish{forbid: "permit-port-forwarding"})
	if err != nil {
		t.Fatal(err)
	}
	defer limited.Close()
	if _, err := limited.Dial("tcp", l.Addr().String()); err == nil || !strings.Contains(err.Error(), "permit") {
		t.Errorf("without the permission: %v", err)
	}
	terminal, err := r.dial(web, "root", wish{forbid: "permit-pty"})
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	session, err := terminal.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.RequestPty("xterm", 24, 80, nil); err == nil {
		t.Error("a terminal without the permission")
	}
}

// TestFloods: an organization that opens what it can takes nothing from another.
func TestFloods(t *testing.T) {
	limits := sshd.DefaultLimits()
	limits.SigningIn, limits.Clients, limits.Channels, limits.OneChannel = [2]int{4, 64}, [2]int{6, 64}, [2]int{5, 20}, 4
	limits.Handshakes = ratelimit.Pace{PerSecond: 1000, Burst: 1000}
	limits.Login = time.Minute
	r := start(t, limits)

	// Connections that never sign in.
	closed := make(chan struct{}, 64)
	for range 20 {
		c, err := net.Dial("tcp", r.ports[web])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go func() {
			_, _ = io.Copy(io.Discard, c)
			closed <- struct{}{}
		}()
	}
	for range 20 - limits.SigningIn[0] {
		<-closed
	}
	if _, err := r.dial(web, "root", wish{}); err == nil {
		t.Error("one more signs in")
	}
	client, err := r.dial(theirs, "root", wish{org: other})
	if err != nil {
		t.Fatalf("another organization: %v", err)
	}
	defer client.Close()

	// Channels of one connection, and of an organization.
	open := 0
	for range 10 {
		if _, err := client.NewSession(); err == nil {
			open++
		}
	}
	if open != limits.OneChannel {
		t.Errorf("%d sessions of one connection, want %d", open, limits.OneChannel)
	}
	second, err := r.dial(theirs, "root", wish{org: other})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	for range 10 {
		if _, err := second.NewSession(); err == nil {
			open++
		}
	}
	if open != limits.Channels[0] {
		t.Errorf("%d sessions of an organization, want %d", open, limits.Channels[0])
	}
}

// failing is a listener that accepts nothing.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	err := f.errs[0]
	f.errs = f.errs[1:]
	return nil, err
}

// TestNoDescriptors: a lack of descriptors does not end the server, which is a part of the daemon.
func TestNoDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := sshd.New(sshd.Options{Limits: sshd.DefaultLimits(), Log: slog.New(slog.DiscardHandler), Now: time.Now})
		gone := errors.New("gone")
		if err := server.Serve(t.Context(), &failing{errs: []error{syscall.EMFILE, syscall.ENFILE, gone}}, nil); !errors.Is(err, gone) {
			t.Errorf("the server ends with %v", err)
		}
	})
}

// TestHandshakesArePaced: a flood of handshakes costs the host a bounded number.
func TestHandshakesArePaced(t *testing.T) {
	limits := sshd.DefaultLimits()
	limits.Handshakes = ratelimit.Pace{PerSecond: 1e-6, Burst: 3}
	r := start(t, limits)
	in := 0
	for range 6 {
		if client, err := r.dial(web, "root", wish{}); err == nil {
			in++
			_ = client.Close()
		}
	}
	if in != limits.Handshakes.Burst {
		t.Errorf("%d signed in, want %d", in, limits.Handshakes.Burst)
	}
	if client, err := r.dial(theirs, "root", wish{org: other}); err != nil {
		t.Errorf("another organization: %v", err)
	} else {
		_ = client.Close()
	}
}

// TestHostKeys: a Machine has a key of its own, which is the same at each connection.
func TestHostKeys(t *testing.T) {
	r := start(t, sshd.DefaultLimits())
	keyOf := func(id hangar.MachineID) (key string) {
		_, signer, _ := r.certify(wish{})
		client, err := ssh.Dial("tcp", r.ports[id], &ssh.ClientConfig{
			User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
			HostKeyCallback: func(_ string, _ net.Addr, k ssh.PublicKey) error {
				key = string(k.Marshal())
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = client.Close()
		return key
	}
	if first, again, another := keyOf(web), keyOf(web), keyOf(bare); first != again || first == another {
		t.Errorf("the keys are the same: %t, those of two Machines: %t", first == again, first == another)
	}
}

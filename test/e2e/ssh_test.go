package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/curve25519"
	"golang.org/x/crypto/ssh"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/wireguard/peertest"
	"github.com/hangar-platform/hangar/test/daemon"
	"github.com/hangar-platform/hangar/test/e2e/graphql"
)

// graphql calls an operation as existing clients do, and decodes its data.
func (p *platform) graphql(t *testing.T, query string, input, into any) {
	t.Helper()
	p.existing().Call(t, query, input, into)
}

// existing is how existing clients call the platform.
func (p *platform) existing() graphql.Client {
	return graphql.Client{URL: p.d.URL(), Token: p.d.Token()}
}

// orgID is the id by which existing clients name an organization.
func (p *platform) orgID(t *testing.T, slug hangar.OrgSlug) string {
	t.Helper()
	org, err := p.c.Org(t.Context(), slug)
	check(t, err)
	return string(org.ID)
}

// graphqlPeer has a WireGuard peer let in as existing clients do, and connects it.
func (p *platform) graphqlPeer(t *testing.T, org hangar.OrgSlug, name string) (*peertest.Peer, string) {
	t.Helper()
	var private [32]byte
	_, _ = rand.Read(private[:])
	public, err := curve25519.X25519(private[:], curve25519.Basepoint)
	check(t, err)
	var made struct {
		AddWireGuardPeer struct{ Peerip, Endpointip, Pubkey string }
	}
	p.graphql(t, `mutation($input: AddWireGuardPeerInput!) { addWireGuardPeer(input: $input) { peerip endpointip pubkey } }`,
		map[string]any{"organizationId": p.orgID(t, org), "region": "loc", "name": name, "pubkey": base64.StdEncoding.EncodeToString(public)}, &made)
	at := made.AddWireGuardPeer
	address := netip.MustParseAddr(at.Peerip)
	peer := hangar.Peer{Address: address}
	// The answer has no port: clients take WireGuard's own, which a daemon of a test does not have.
	config := p.peerConfig(t, string(org), name+"-port")
	config.PrivateKey, config.PublicKey = base64.StdEncoding.EncodeToString(private[:]), at.Pubkey
	config.Address, config.AllowedIPs, config.DNS = netip.PrefixFrom(address, 120), hangar.NetworkPrefix(address), peer.Nameserver()
	config.Endpoint = netip.AddrPortFrom(netip.MustParseAddr(at.Endpointip), config.Endpoint.Port())
	return peertest.Start(t, config), at.Peerip
}

// certificate has one issued as existing clients do.
func (p *platform) certificate(t *testing.T, org hangar.OrgSlug, principals ...string) graphql.Credential {
	t.Helper()
	return p.existing().Certificate(t, p.orgID(t, org), principals...)
}

// runs runs a program on the computer of a peer.
func runs(t *testing.T, on *peertest.Peer, stdin string, command ...string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	check(t, on.Inside(cmd.Start)) // a child is in the namespace of the thread that starts it
	_ = cmd.Wait()                 // its exit code is checked
	t.Logf("%s: exit code %d, %q, %q", command[0], cmd.ProcessState.ExitCode(), stdout.String(), stderr.String())
	return stdout.String(), cmd.ProcessState.ExitCode()
}

// TestSSH signs in to Machines with Debian's OpenSSH, from a computer that a WireGuard peer of existing
// clients is on.
func TestSSH(t *testing.T) {
	p := start(t)
	prog := redis()
	m := p.run(t, "debian", prog.config(p.push(t, build(t, prog.recipe), "ssh:1")))
	bare, _, _ := p.runKeeper(t, "bare", nil)
	if _, err := p.c.CreateOrg(t.Context(), hangar.OrgCreate{Slug: "acme"}); err != nil {
		t.Fatal(err)
	}
	laptop, peerIP := p.graphqlPeer(t, hangar.OrgPersonal, "laptop")
	root := p.certificate(t, hangar.OrgPersonal, "root", "redis")
	in := func(c graphql.Credential, user string, m *machine, more ...string) []string {
		return append(append([]string{"ssh"}, append(c.Options(), "-l", user)...), append([]string{m.ip}, more...)...)
	}

	for name, test := range map[string]struct {
		stdin, command, out string
		code                int
	}{
		"exit code":   {command: "exit 7", code: 7},
		"input":       {stdin: "a\nb\n", command: "wc -l", out: "2\n"},
		"who":         {command: "id -un; pwd; echo $FLY_SSH $FLY_APP_NAME $SHELL", out: "root\n/root\n1 " + string(app) + " /bin/bash\n"},
		"host":        {command: "cat /etc/hostname", out: string(m.ref.ID) + "\n"},
		"large":       {command: "head -c 3000000 /dev/zero | wc -c", out: "3000000\n"},
		"login shell": {stdin: "shopt -q login_shell && echo login\nexit 3\n", out: "login\n", code: 3},
	} {
		t.Run(name, func(t *testing.T) {
			more := []string{test.command}
			if test.command == "" {
				more = nil
			}
			if out, code := runs(t, laptop, test.stdin, in(root, "root", m, more...)...); out != test.out || code != test.code {
				t.Errorf("%q, exit code %d, want %q, %d", out, code, test.out, test.code)
			}
		})
	}
	t.Run("sftp", func(t *testing.T) {
		for name, to := range map[string]*machine{"debian": m, "without anything": bare} {
			local := filepath.Join(t.TempDir(), "f")
			content := bytes.Repeat([]byte(name), 100_000)
			check(t, os.WriteFile(local, content, 0o644))
			command := append([]string{"sftp", "-b", "-"}, append(root.Options(), "root@["+to.ip+"]")...)
			if _, code := runs(t, laptop, fmt.Sprintf("put %s /f\nrename /f /g\nget /g %s.back\n", local, local), command...); code != 0 {
				t.Errorf("%s: exit code %d", name, code)
			}
			if back, err := os.ReadFile(local + ".back"); err != nil || !bytes.Equal(back, content) {
				t.Errorf("%s: %d bytes came back, %v", name, len(back), err)
			}
		}
	})
	t.Run("files by the API", func(t *testing.T) {
		for name, to := range map[string]*machine{"debian": m, "without anything": bare} {
			dir, id := t.TempDir(), string(to.ref.ID)
			content := bytes.Repeat([]byte(name), 1_000_000)
			check(t, os.MkdirAll(dir+"/tree/deep", 0o755))
			check(t, os.WriteFile(dir+"/tree/deep/file", content, 0o640))
			p.d.Run("ssh", "sftp", "put", "-R", id, dir+"/tree", "/api")
			if out := p.d.Run("ssh", "sftp", "ls", id, "/api/deep"); !strings.Contains(out, fmt.Sprintf("-rw-r-----   0:0     %d", len(content))) {
				t.Errorf("%s: %s", name, out)
			}
			if out := p.d.Run("ssh", "sftp", "find", id, "/api"); out != "/api\n/api/deep\n/api/deep/file\n" {
				t.Errorf("%s: found %q", name, out)
			}
			p.d.Run("ssh", "sftp", "get", id, "/api/deep/file", dir+"/back")
			if back, err := os.ReadFile(dir + "/back"); err != nil || !bytes.Equal(back, content) {
				t.Errorf("%s: %d bytes came back, %v", name, len(back), err)
			}
			if out, err := p.d.Try("ssh", "sftp", "put", id, dir+"/back", "/api/deep/file"); err == nil {
				t.Errorf("%s: a file that is there is overwritten: %s", name, out)
			}
			if out, err := p.d.Try("ssh", "sftp", "get", id, "/etc/none", dir); err == nil {
				t.Errorf("%s: a file that is not there is copied: %s", name, out)
			}
		}
		if out, code := runs(t, laptop, "", in(root, "root", m, "stat -c '%U %a' /api/deep/file")...); out != "root 640\n" || code != 0 {
			t.Errorf("the file is %q, exit code %d", out, code)
		}
	})
	t.Run("forwarding", func(t *testing.T) {
		dial(t, m.addr(6379))
		out, _ := runs(t, laptop, "PING\r\nQUIT\r\n", append([]string{"ssh"}, append(root.Options(), "-W", "localhost:6379", "root@"+m.ip)...)...)
		if out != "+PONG\r\n+OK\r\n" {
			t.Errorf("redis answers %q", out)
		}
	})
	t.Run("terminal", func(t *testing.T) { terminal(t, laptop, root, m) })
	t.Run("no shell", func(t *testing.T) {
		if _, code := runs(t, laptop, "", in(root, "root", bare, "anything")...); code != 127 {
			t.Errorf("exit code %d of a Machine without a shell", code)
		}
	})
	t.Run("refused", func(t *testing.T) {
		for what, c := range map[string]struct {
			graphql.Credential
			user string
		}{"the certificate of another organization": {p.certificate(t, "acme", "root"), "root"}, "another user": {root, "daemon"}} {
			if out, code := runs(t, laptop, "", in(c.Credential, c.user, m, "echo in")...); code != 255 || out != "" {
				t.Errorf("%s: exit code %d, %q", what, code, out)
			}
		}
		stranger, _ := p.graphqlPeer(t, "acme", "stranger")
		check(t, stranger.Add(netip.Addr{}, netip.MustParsePrefix("fdaa::/16")))
		if stranger.Reaches(t.Context(), m.addr(hangar.MachineSSHPort), refusalPatience) {
			t.Error("a peer of another organization reaches the port")
		}
	})
	t.Run("tunnel", func(t *testing.T) {
		conn, err := p.c.DialMachine(t.Context(), bare.ref, hangar.MachineSSHPort)
		check(t, err)
		client, err := root.Dial(conn, "root")
		check(t, err)
		defer client.Close()
		if session, err := client.NewSession(); err != nil || session.RequestSubsystem("sftp") != nil {
			t.Errorf("no SFTP by a tunnel: %v", err)
		}
	})
	t.Run("a program at the port", func(t *testing.T) {
		own := p.run(t, "own", hangar.MachineConfig{Image: p.d.Push(daemon.Busybox(t, "sh", "nc", "echo"), "nc:1", "--cmd", "nc", "--cmd", "-ll", "--cmd", "-p", "--cmd", "22", "--cmd", "-e", "--cmd", "echo", "--cmd", "own")})
		conn, err := p.c.DialMachine(t.Context(), own.ref, hangar.MachineSSHPort)
		for began := time.Now(); err == nil && time.Since(began) < patience; {
			b, _ := io.ReadAll(io.LimitReader(conn, 4))
			_ = conn.Close()
			if string(b) == "own\n" {
				return
			}
			conn, err = p.c.DialMachine(t.Context(), own.ref, hangar.MachineSSHPort)
		}
		t.Errorf("the program is not reached: %v", err)
	})
	t.Run("peers", func(t *testing.T) { p.graphqlPeerLife(t, laptop, m, peerIP) })
}

// terminal has a size, which changes.
func terminal(t *testing.T, from *peertest.Peer, c graphql.Credential, m *machine) {
	t.Helper()
	conn, err := from.DialContext(t.Context(), "tcp", m.addr(hangar.MachineSSHPort))
	check(t, err)
	client, err := c.Dial(conn, "root")
	check(t, err)
	defer client.Close()
	session, err := client.NewSession()
	check(t, err)
	check(t, session.RequestPty("xterm-256color", 33, 99, ssh.TerminalModes{}))
	stdin, err := session.StdinPipe()
	check(t, err)
	var shown bytes.Buffer
	screen, err := session.StdoutPipe()
	check(t, err)
	check(t, session.Start("stty -echo; tty; echo $TERM; stty size; while [ \"$(stty size)\" = '33 99' ]; do read -t 1 changed; done; stty size"))
	seen := func(text string) {
		t.Helper()
		b := make([]byte, 1024)
		for !strings.Contains(shown.String(), text) {
			n, err := screen.Read(b)
			shown.Write(b[:n])
			if err != nil {
				t.Fatalf("%v after %q, without %q", err, shown.String(), text)
			}
		}
	}
	seen("33 99")
	check(t, session.WindowChange(44, 111))
	_, err = io.WriteString(stdin, "\n") // it may be there before the size
	check(t, err)
	seen("44 111")
	if text := shown.String(); !strings.Contains(text, "/dev/pts/") || !strings.Contains(text, "xterm-256color") {
		t.Errorf("the terminal shows %q", text)
	}
	check(t, session.Wait())
}

// graphqlPeerLife reaches a Machine and the name server from a peer, and not once it is removed.
func (p *platform) graphqlPeerLife(t *testing.T, laptop *peertest.Peer, m *machine, peerIP string) {
	t.Helper()
	found, err := laptop.Resolver().LookupNetIP(t.Context(), "ip6", string(m.ref.ID)+".vm."+string(app)+".internal")
	if err != nil || len(found) != 1 || found[0].String() != m.ip {
		t.Errorf("the peer finds the Machine at %v, %v", found, err)
	}
	if !laptop.Reaches(t.Context(), m.addr(6379), patience) {
		t.Error("the peer does not reach a port of the Machine")
	}
	validate := func() (valid struct {
		ValidateWireGuardPeers struct{ InvalidPeerIps []string }
	},
	) {
		p.graphql(t, `mutation($input: ValidateWireGuardPeersInput!) { validateWireGuardPeers(input: $input) { invalidPeerIps } }`,
			map[string]any{"peerIps": []string{peerIP}}, &valid)
		return valid
	}
	if got := validate(); len(got.ValidateWireGuardPeers.InvalidPeerIps) != 0 {
		t.Errorf("a peer that is let in is not valid: %+v", got)
	}
	var removed struct {
		RemoveWireGuardPeer struct{ Organization struct{ ID string } }
	}
	p.graphql(t, `mutation($input: RemoveWireGuardPeerInput!) { removeWireGuardPeer(input: $input) { organization { id } } }`,
		map[string]any{"organizationId": p.orgID(t, hangar.OrgPersonal), "name": "laptop"}, &removed)
	if got := validate(); len(got.ValidateWireGuardPeers.InvalidPeerIps) != 1 {
		t.Errorf("a peer that was removed is valid: %+v", got)
	}
	for _, port := range []int{6379, hangar.MachineSSHPort} {
		if laptop.Reaches(t.Context(), m.addr(port), refusalPatience) {
			t.Errorf("a removed peer reaches port %d", port)
		}
	}
}

package binary_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/host/wireguard/peertest"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/test/contract"
	"github.com/hangar-platform/hangar/test/daemon"
)

const (
	movedHostname = "www.moved-names.com"
	movedTarget   = hangar.AppName("shop-target")

	// movedProgram says who its owner is in all ways in which the edge asks. If REPLAY names an
	// App, /cgi-bin/go is that one's, and the edge is to remember it.
	movedProgram = `mkdir -p /www/cgi-bin
echo "$OWNER" >/www/index.html
{
	echo '#!/bin/sh'
	[ -z "$REPLAY" ] || echo "printf 'fly-replay: app=$REPLAY\\r\\nfly-replay-cache: /cgi-bin/*\\r\\nfly-replay-cache-ttl-secs: 3600\\r\\n'"
	echo "printf 'Content-Type: text/plain\\r\\n\\r\\n$OWNER\\n'"
} >/www/cgi-bin/go
chmod +x /www/cgi-bin/go
exec httpd -f -p 8080 -h /www`
)

// TestNamesChangeHandsOnTheNetwork moves the names by which an App is reached, and its image:
// connections from before end with the App, and a lookup finds the current owner of a name.
func TestNamesChangeHandsOnTheNetwork(t *testing.T) {
	d := daemon.Start(t, daemon.Options{Args: []string{"--acme", "off", "--trust-hostnames", "--volume-overcommit", "100"}})
	files := daemon.Busybox(t, "sh", "mkdir", "chmod", "cat", "sleep", "httpd", "nslookup")
	must(t, "make a directory", os.Mkdir(filepath.Join(files, "static"), 0o755))
	for what, move := range map[string]struct {
		from, to hangar.OrgSlug
		again    bool // the organization is removed, too, and made again
	}{
		"another organization":                  {"alpha", "beta", false},
		"another organization of the same slug": {"gamma", "gamma", true},
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			m := &moved{T: t, ctx: ctx, admin: d.Client(), url: d.URL()}
			destroy := func(ctx context.Context) {
				for _, app := range []hangar.AppName{movedApp, movedTarget} {
					if err := m.admin.DestroyApp(ctx, app, true); err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
						t.Error(err)
					}
				}
			}
			t.Cleanup(func() { destroy(context.WithoutCancel(ctx)) })
			m.org(move.from)
			first := m.tenant(d, move.from, "the first owner", files)
			first.settle(movedTarget)
			first.run(movedTarget, "")
			first.sees(first)
			first.keepOpen(d)
			destroy(ctx)
			if move.again {
				must(t, "remove the organization", m.admin.DeleteOrg(ctx, move.from))
			}
			m.org(move.to)
			next := m.tenant(d, move.to, "the next owner", files)
			next.hasNoImageOf(first)
			next.settle("")
			next.sees(first)
			first.ended(next)
		})
	}
}

// tenant is the owner of the names, with its open connections.
type tenant struct {
	*moved
	org         hangar.OrgSlug
	name        string
	all         *client.Client
	http, https string // where the edge is
	upload      hangar.CertificateUpload
	image       string
	machine     *hangar.Machine

	web    *http.Client // keeps its connection, and the TLS sessions that it had
	peer   *peertest.Peer
	tunnel net.Conn
	open   sync.WaitGroup // of what has to end
}

func (m *moved) tenant(d *daemon.Daemon, org hangar.OrgSlug, name, files string) *tenant {
	m.Helper()
	m.push = func(org hangar.OrgSlug) string {
		must(m.T, "write a file", os.WriteFile(filepath.Join(files, "static", "who"), []byte(name), 0o644))
		return d.Push(files, "busybox:1", "--org", string(org), "--cmd", "sh", "--cmd", "-c", "--cmd", movedProgram)
	}
	o := &owner{moved: m, org: org}
	w := &tenant{moved: m, org: org, name: name, all: o.client(hangar.TokenCreate{Kind: hangar.TokenOrg, Org: org})}
	w.http, w.https = d.Edge()
	w.upload = contract.NewUpload(m, movedHostname)
	w.web = w.browser()
	return w
}

// browser calls the edge by any name.
func (w *tenant) browser() *http.Client {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(8)}, // looked at below
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			to := w.http
			if strings.HasSuffix(address, ":443") {
				to = w.https
			}
			return (&net.Dialer{}).DialContext(ctx, network, to)
		},
	}
	w.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// settle makes the App, with its Hostname.
func (w *tenant) settle(replay hangar.AppName) {
	w.Helper()
	_, err := w.all.CreateApp(w.ctx, hangar.AppCreate{Name: movedApp, Org: w.org})
	must(w.T, "create the app", err)
	_, err = w.all.AllocateAddress(w.ctx, movedApp, hangar.AddressCreate{Kind: hangar.AddressSharedV4})
	must(w.T, "allocate an address", err)
	if certificates, err := w.all.Certificates(w.ctx, movedApp); err != nil || len(certificates) != 0 {
		w.Errorf("a new app has the hostnames %v, %v", certificates, err)
	}
	certificate, err := w.all.UploadCertificate(w.ctx, movedApp, movedHostname, w.upload)
	must(w.T, "upload a certificate", err)
	if len(certificate.Issued) > 1 {
		w.Errorf("the hostname has the certificates %+v", certificate.Issued)
	}
	w.image = w.push(w.org)
	w.machine = w.start(movedApp, replay)
}

// run makes an App with a Machine.
func (w *tenant) run(app, replay hangar.AppName) {
	w.Helper()
	_, err := w.all.CreateApp(w.ctx, hangar.AppCreate{Name: app, Org: w.org})
	must(w.T, "create the app", err)
	w.start(app, replay)
}

// start starts a Machine of an App.
func (w *tenant) start(app, replay hangar.AppName) *hangar.Machine {
	w.Helper()
	m, err := w.all.CreateMachine(w.ctx, app, hangar.MachineCreate{Name: "worker", Config: hangar.MachineConfig{
		Image: w.image, Env: map[string]string{"OWNER": w.name, "REPLAY": string(replay)},
		Statics: []hangar.Static{{GuestPath: "/static", URLPrefix: "/static"}},
		Services: []hangar.Service{
			{Protocol: "tcp", InternalPort: 8080, Ports: []hangar.ServicePort{
				{Port: 80, Handlers: []string{"http"}}, {Port: 443, Handlers: []string{"tls", "http"}},
			}},
		},
	}})
	must(w.T, "create a machine", err)
	_, err = w.all.WaitMachine(w.ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}, Timeout: time.Minute})
	must(w.T, "wait for the machine", err)
	return m
}

// ask returns who answers a request to the Hostname, and what the handshake was. It is repeated
// until the edge serves the App.
func (w *tenant) ask(c *http.Client, url string) (string, *tls.ConnectionState) {
	w.Helper()
	last := ""
	for w.ctx.Err() == nil {
		req, err := http.NewRequestWithContext(w.ctx, http.MethodGet, url, http.NoBody)
		must(w.T, "make a request", err)
		res, err := c.Do(req)
		if err == nil {
			body, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return strings.TrimSpace(string(body)), res.TLS
			}
			last = fmt.Sprintf("%s: %s", res.Status, body)
		} else {
			last = err.Error()
		}
		_ = pause.For(w.ctx, 20*time.Millisecond)
	}
	w.Fatalf("%s is not served: %s", url, last)
	return "", nil
}

// sees asks for everything by the names, with new connections and with those of the first owner,
// which may be the same.
func (w *tenant) sees(first *tenant) {
	w.Helper()
	for who, c := range map[string]*http.Client{"a new client": w.browser(), "a client of before": first.web} {
		for _, path := range []string{"/", "/static/who", "/cgi-bin/go", "/cgi-bin/go"} { // replayed, and then by memory
			if got, _ := w.ask(c, "http://"+movedHostname+path); got != w.name {
				w.Errorf("%s asks for %s, and %q answers", who, path, got)
			}
		}
		got, state := w.ask(c, "https://"+movedHostname+"/")
		block, _ := pem.Decode([]byte(w.upload.Fullchain))
		if got != w.name || state == nil || !bytes.Equal(state.PeerCertificates[0].Raw, block.Bytes) {
			w.Errorf("%s asks by TLS, and %q answers, not with its own certificate", who, got)
		}
		if state != nil && state.DidResume && w != first {
			w.Errorf("%s resumes a TLS session of the app before", who)
		}
		if transport, ok := c.Transport.(*http.Transport); ok && w == first {
			transport.CloseIdleConnections() // so that a session is left, and no connection
			w.ask(c, "http://"+movedHostname+"/")
		}
	}
	var out bytes.Buffer
	_, err := w.all.ExecMachine(w.ctx, w.machine.Ref(), hangar.ExecRequest{Command: []string{"nslookup", "-type=aaaa", string(movedApp) + ".internal"}}, hangar.ExecStreams{Stdout: &out})
	if err != nil || !strings.Contains(out.String(), w.machine.PrivateIP.String()) {
		w.Errorf("the machine finds the app at %s, %v", out.String(), err)
	}
	if w != first && strings.Contains(out.String(), first.machine.PrivateIP.String()) {
		w.Errorf("the machine finds the app of before: %s", out.String())
	}
}

// keepOpen opens what lasts: it ends with the App.
func (w *tenant) keepOpen(d *daemon.Daemon) {
	w.Helper()
	ref := w.machine.Ref()
	var began sync.WaitGroup
	last := func(what string, f func(begun func()) error) {
		began.Add(1)
		begun := sync.OnceFunc(began.Done)
		w.open.Go(func() {
			defer begun()
			if err := f(begun); err != nil {
				w.Errorf("%s: %v", what, err)
			}
		})
	}
	last("a session of a command", func(begun func()) error {
		in, words := io.Pipe()
		defer words.Close()
		out, heard := io.Pipe()
		go func() {
			if _, err := bufio.NewReader(out).ReadString('\n'); err == nil {
				begun()
			}
			_, _ = io.Copy(io.Discard, out)
		}()
		go func() { _, _ = io.WriteString(words, "a line\n") }()
		res, err := w.all.ExecMachine(w.ctx, ref, hangar.ExecRequest{Command: []string{"cat"}}, hangar.ExecStreams{Stdin: in, Stdout: heard})
		_ = heard.Close()
		if err == nil && res.ExitCode == 0 {
			return errors.New("it has ended well")
		}
		return w.ctx.Err()
	})
	for what, q := range map[string]hangar.LogQuery{"a follower of the log": {}, "a follower of the edge": {Edge: true}} {
		last(what, func(begun func()) error {
			heard, there := context.WithCancel(w.ctx)
			defer there()
			if q.Edge {
				go w.keepAsking(heard) // the edge keeps nothing
			} else {
				begun() // nothing may ever come
			}
			for e, err := range w.all.FollowLogs(w.ctx, movedApp, q) {
				if err != nil {
					if hangar.ReasonOf(err) == hangar.ReasonAppNotFound {
						return nil
					}
					return err
				}
				if e.Instance != "" && e.Instance != ref.ID {
					return fmt.Errorf("it hears %q of machine %s", e.Message, e.Instance)
				}
				begun()
				there()
			}
			return errors.New("it has ended without a word")
		})
	}
	last("a watch of the machine", func(begun func()) error {
		state := hangar.MachineState("")
		for change, err := range w.all.WatchMachine(w.ctx, ref) {
			if err != nil {
				return nil // it has ended, with a word
			}
			begun()
			if change.Machine != nil {
				state = change.Machine.State
			}
		}
		if state != hangar.MachineDestroyed {
			return fmt.Errorf("it ends with a machine that is %s", state)
		}
		return nil
	})
	var err error
	w.tunnel, err = w.all.DialMachine(w.ctx, ref, 8080)
	must(w.T, "open a tunnel", err)
	w.Cleanup(func() { _ = w.tunnel.Close() })
	w.open.Go(func() {
		if n, err := w.tunnel.Read(make([]byte, 1)); n != 0 || err == nil {
			w.Errorf("the tunnel reads %d bytes, %v", n, err)
		}
	})
	began.Wait()

	printed, err := exec.CommandContext(w.ctx, daemon.Binary(w), "--dir", d.Dir(), "wireguard", "create", string(w.org), "laptop").Output()
	must(w.T, "create a peer", err)
	config, err := peertest.Parse(string(printed))
	must(w.T, "read the configuration of the peer", err)
	w.peer = peertest.Start(w.T, config)
	found, err := w.peer.Resolver().LookupNetIP(w.ctx, "ip6", string(movedApp)+".internal")
	if err != nil || len(found) != 1 || found[0] != w.machine.PrivateIP {
		w.Fatalf("the peer finds the app at %v, %v", found, err)
	}
}

// keepAsking asks the App until ctx ends.
func (w *tenant) keepAsking(ctx context.Context) {
	for c := w.browser(); ctx.Err() == nil; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+movedHostname+"/", http.NoBody)
		if err != nil {
			return
		}
		if res, err := c.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}
}

// ended waits until all is closed that the tenant had open, and tries what a name may lead to.
func (w *tenant) ended(next *tenant) {
	w.Helper()
	w.open.Wait()
	if w.org != next.org { // without an organization, there is no peer that could ask
		if found, err := w.peer.Resolver().LookupNetIP(w.ctx, "ip6", string(movedApp)+".internal"); err == nil {
			w.Errorf("a peer of the owner before finds the app at %v", found)
		}
	}
	if at := net.JoinHostPort(next.machine.PrivateIP.String(), "8080"); w.peer.Reaches(w.ctx, at, time.Second) {
		w.Errorf("a peer of the owner before reaches %s", at)
	}
	peers, err := next.all.Peers(w.ctx, next.org)
	if err != nil || len(peers) != 0 {
		w.Errorf("the next owner has the peers %v, %v", peers, err)
	}
	if _, err := w.all.DialMachine(w.ctx, next.machine.Ref(), 8080); err == nil {
		w.Error("the owner before opens a tunnel to the machine of the next")
	}
}

// hasNoImageOf tries to run the image of another owner, by its tag and by its digest.
func (w *tenant) hasNoImageOf(first *tenant) {
	w.Helper()
	const app = hangar.AppName("shop-thief")
	_, err := w.all.CreateApp(w.ctx, hangar.AppCreate{Name: app, Org: w.org})
	must(w.T, "create the app", err)
	defer func() { must(w.T, "destroy the app", w.all.DestroyApp(w.ctx, app, true)) }()
	digest := first.machine.ImageRef
	repository := first.image[:strings.LastIndexAny(first.image, ":@")]
	if at := strings.Index(repository, "@"); at >= 0 {
		repository = repository[:at]
	}
	for _, ref := range []string{first.image, digest.String(), repository + ":1", repository + "@" + digest.Digest} {
		if m, err := w.all.CreateMachine(w.ctx, app, hangar.MachineCreate{Config: hangar.MachineConfig{Image: ref}}); err == nil {
			w.Errorf("the next owner runs %s, of the owner before, as %s", ref, m.ID)
		}
	}
}

package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/wireguard/peertest"
	"github.com/hangar-platform/hangar/test/daemon"
)

// refusalPatience is how long what must not be reached is waited for.
const refusalPatience = time.Second

// peer lets a computer in and connects it by what the command prints.
func (p *platform) peer(t *testing.T, args ...string) *peertest.Peer {
	t.Helper()
	return peertest.Start(t, p.peerConfig(t, args...))
}

func (p *platform) peerConfig(t *testing.T, args ...string) peertest.Config {
	t.Helper()
	cmd := exec.Command(daemon.Binary(t), append([]string{"--dir", p.d.Dir(), "wireguard", "create"}, args...)...)
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("hangar wireguard create: %v", err)
	}
	config, err := peertest.Parse(string(printed))
	if err != nil {
		t.Fatalf("%v in\n%s", err, printed)
	}
	return config
}

// httpOf is a client that calls from a peer, each time by a new connection.
func httpOf(p *peertest.Peer) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: p.DialContext, DisableKeepAlives: true}}
}

// ask returns what a Machine answers to a client within a time.
func ask(ctx context.Context, c *http.Client, at netip.Addr, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+netip.AddrPortFrom(at, 8080).String()+"/state", http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// TestWireGuardOverWebSocket: a computer whose network passes no UDP reaches a Machine, and finds it by its name, through
// the port of HTTPS, also after the daemon was killed. It calls the gateway by an address or by the name of the API, as
// its configuration says, and one that is no peer gets no answer.
func TestWireGuardOverWebSocket(t *testing.T) {
	p := start(t)
	m, _, state := p.runKeeper(t, "keeper", nil)
	https, err := os.ReadFile(filepath.Join(p.d.Dir(), "https.addr"))
	check(t, err)
	at, err := netip.ParseAddrPort(strings.TrimSpace(string(https)))
	check(t, err)
	at = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), at.Port())
	for name, host := range map[string]string{"address": "127.0.0.1", "name": "api.hangar.localhost"} {
		config := p.peerConfig(t, "personal", "behind-"+name)
		config.Endpoint = peertest.OverWebSocket(t, host, at)
		peer := peertest.Start(t, config)
		reached := func() {
			t.Helper()
			answer, err := ask(t.Context(), httpOf(peer), netip.MustParseAddr(m.ip), patience)
			if err != nil || !strings.Contains(answer, state.ID) {
				t.Fatalf("by %s the machine answers %q, %v", name, answer, err)
			}
		}
		reached()
		found, err := peer.Resolver().LookupNetIP(t.Context(), "ip6", string(app)+".internal")
		if err != nil || len(found) != 1 || found[0].String() != m.ip {
			t.Errorf("by %s the peer finds the machine at %v, %v", name, found, err)
		}
		p.d.Kill()
		p.d.Up()
		reached()
	}
	stranger := p.peerConfig(t, "personal", "removed")
	p.d.Run("wireguard", "remove", "personal", "removed")
	stranger.Endpoint = peertest.OverWebSocket(t, at.Addr().String(), at)
	if _, err := ask(t.Context(), httpOf(peertest.Start(t, stranger)), netip.MustParseAddr(m.ip), refusalPatience); err == nil {
		t.Error("one that is no peer reaches the machine")
	}
}

// TestWireGuard: a computer elsewhere calls a Machine of its network, and nothing but
// that network; it comes back after the daemon was killed, and stays away once it is
// removed.
func TestWireGuard(t *testing.T) {
	p := start(t)
	m, _, state := p.runKeeper(t, "keeper", nil)
	for org, network := range map[string]string{"acme": "", "personal": "staging"} {
		if org != "personal" {
			if _, err := p.c.CreateOrg(t.Context(), hangar.OrgCreate{Slug: hangar.OrgSlug(org)}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.c.CreateApp(t.Context(), hangar.AppCreate{Name: hangar.AppName("in-" + org), Org: hangar.OrgSlug(org), Network: network}); err != nil {
			t.Fatal(err)
		}
	}
	address := netip.MustParseAddr(m.ip)
	laptop := p.peer(t, "personal", "laptop")
	answer, err := ask(t.Context(), httpOf(laptop), address, patience)
	if err != nil || !strings.Contains(answer, state.ID) {
		t.Fatalf("the machine answers the peer %q, %v", answer, err)
	}

	for name, want := range map[string]netip.Addr{
		string(app) + ".internal": address, "laptop._peer.internal": laptop.Address.Addr(), "_api.internal": laptop.DNS,
	} {
		found, err := laptop.Resolver().LookupNetIP(t.Context(), "ip6", name)
		if err != nil || len(found) != 1 || found[0] != want {
			t.Errorf("the peer finds %s at %v, %v, want %s", name, found, err, want)
		}
	}

	for who, args := range map[string][]string{"another organization": {"acme"}, "another network": {"personal", "--network", "staging"}} {
		config := p.peerConfig(t, args...)
		config.AllowedIPs = netip.MustParsePrefix("fdaa::/16") // a peer's own configuration protects no one else
		stranger := peertest.Start(t, config)
		if _, err := ask(t.Context(), httpOf(stranger), address, refusalPatience); err == nil {
			t.Errorf("a peer of %s reaches the machine", who)
		}
		if found, err := stranger.Resolver().LookupNetIP(t.Context(), "ip6", string(app)+".internal"); err == nil {
			t.Errorf("a peer of %s finds the machine at %v", who, found)
		}
		if stranger.Reaches(t.Context(), net.JoinHostPort(laptop.Address.Addr().String(), "22"), refusalPatience) {
			t.Errorf("a peer of %s reaches the laptop", who)
		}
	}

	var listed []hangar.PeerStatus
	if err := json.Unmarshal([]byte(p.d.Run("wireguard", "list", "--json")), &listed); err != nil {
		t.Fatal(err)
	}
	for _, peer := range listed {
		if peer.Name == "laptop" && (peer.Handshake.IsZero() || peer.Received == 0 || peer.Sent == 0 || peer.Address != laptop.Address.Addr()) {
			t.Errorf("the laptop is listed as %+v", peer)
		}
	}

	open := &http.Client{Transport: &http.Transport{DialContext: laptop.DialContext}}
	defer open.CloseIdleConnections()
	if _, err := ask(t.Context(), open, address, patience); err != nil {
		t.Fatal(err)
	}
	for what, end := range map[string]func(){"SIGTERM": p.d.Term, "SIGKILL": p.d.Kill} {
		end()
		p.d.Up()
		began := time.Now()
		if answer, err := ask(t.Context(), httpOf(laptop), address, patience); err != nil || !strings.Contains(answer, state.ID) {
			t.Errorf("after %s the machine answers the peer %q, %v", what, answer, err)
		}
		t.Logf("the peer is back %s after the daemon that followed %s", time.Since(began), what)
	}

	traced := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		if !c.Reused {
			t.Error("the connection of before the daemon ended is lost")
		}
	}})
	if _, err := ask(traced, open, address, patience); err != nil {
		t.Errorf("over the connection of before: %v", err)
	}

	p.d.Run("wireguard", "remove", "personal", "laptop")
	if _, err := ask(t.Context(), httpOf(laptop), address, refusalPatience); err == nil {
		t.Error("a removed peer still reaches the machine")
	}
}

// TestWireGuardLeavesNothing: with the daemon go its device, its routes and its port.
func TestWireGuardLeavesNothing(t *testing.T) {
	before := devices(t)
	t.Run("", func(t *testing.T) {
		p := start(t)
		p.peerConfig(t, "personal", "laptop")
		during := devices(t)
		if added := len(during) - len(before); added != 1 {
			t.Errorf("with a peer there are %d devices more: %v", added, during)
		}
	})
	for name := range devices(t) {
		if !before[name] {
			t.Errorf("hangar down left device %s", name)
		}
	}
}

// devices are those of peers on this server.
func devices(t *testing.T) map[string]bool {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "hw") {
			names[l.Attrs().Name] = true
		}
	}
	return names
}

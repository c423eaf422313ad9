package contract_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/test/contract"
	"github.com/hangar-platform/hangar/test/platform"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness is that of a platform, at one of its addresses.
func harness(t *testing.T, p *platform.Platform, address string, options ...client.Option) contract.Harness {
	t.Helper()
	return over(t, address, p.Token(), contract.Harness{
		Image: "nginx:alpine", Suspend: true, ACME: true, Sleep: []string{"sleep", "1000"},
		Echo: []string{"serve"}, EchoPort: platform.EchoPort,
		Exit:    func(code int) []string { return []string{"exit", strconv.Itoa(code)} },
		Context: func(tb testing.TB) context.Context { tb.Helper(); return tb.Context() },
	}, options...)
}

// serve starts a platform on which certificates can be requested, and never come.
func serve(t *testing.T) *platform.Platform {
	t.Helper()
	return platform.Start(t, platform.Options{Config: func(c *daemon.Config) { c.ACME = "https://127.0.0.1:1/directory" }})
}

// over is a harness whose services are a client with a credential.
func over(tb testing.TB, address, credential string, h contract.Harness, options ...client.Option) contract.Harness {
	tb.Helper()
	c := client.New(address, credential, options...)
	tb.Cleanup(c.Close)
	h.Orgs, h.Tokens, h.Apps, h.Machines, h.Platform, h.Secrets, h.SecretKeys, h.Registries, h.Identity, h.SigningKeys, h.Peers, h.Volumes, h.Addresses, h.Certificates, h.Users, h.SignIns = c, c, c, c, c, c, c, c, c, c, c, c, c, c, c, c
	h.As = func(tb testing.TB, credential string) contract.Harness {
		tb.Helper()
		return over(tb, address, credential, h, options...)
	}
	return h
}

func TestTokenEnds(t *testing.T) {
	p := serve(t)
	testTokenEnds(t, p.URL(), harness(t, p, p.URL()))
}

// services runs the contract of every service but that of peers, which needs a network.
func services(t *testing.T, h contract.Harness) {
	t.Helper()
	t.Run("orgs", func(t *testing.T) { contract.OrgService(t, h) })
	t.Run("tokens", func(t *testing.T) { contract.TokenService(t, h) })
	t.Run("users", func(t *testing.T) { contract.UserService(t, h) })
	t.Run("apps", func(t *testing.T) { contract.AppService(t, h) })
	t.Run("machines", func(t *testing.T) { contract.MachineService(t, h) })
	t.Run("platform", func(t *testing.T) { contract.PlatformService(t, h) })
	t.Run("secrets", func(t *testing.T) { contract.SecretService(t, h) })
	t.Run("secret keys", func(t *testing.T) { contract.SecretKeyService(t, h) })
	t.Run("registries", func(t *testing.T) { contract.RegistryService(t, h) })
	t.Run("identity", func(t *testing.T) { contract.IdentityService(t, h) })
	t.Run("volumes", func(t *testing.T) { contract.VolumeService(t, h) })
	t.Run("addresses", func(t *testing.T) { contract.AddressService(t, h) })
	t.Run("certificates", func(t *testing.T) { contract.CertificateService(t, h) })
}

func TestOverTCP(t *testing.T) {
	p := serve(t)
	h := harness(t, p, p.URL(), client.WithHTTPClient(&http.Client{Transport: p.Transport()}))
	services(t, h)
	t.Run("peers", func(t *testing.T) { contract.PeerService(t, h) })
}

func TestOverUnixSocket(t *testing.T) {
	p := serve(t)
	h := harness(t, p, "unix://"+socket(t, p.Addr()))
	services(t, h)
	t.Run("peers", func(t *testing.T) { contract.PeerService(t, h) })
}

// socket leads from a unix socket to an address, until the test ends.
func socket(t *testing.T, address string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "api.sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { lead(t, from.(*net.UnixConn), address) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return path
}

// lead copies both ways, and ends each way by itself.
func lead(t *testing.T, from *net.UnixConn, address string) {
	t.Helper()
	defer from.Close()
	conn, err := (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "tcp", address)
	if err != nil {
		return // the platform has ended
	}
	defer conn.Close()
	to := conn.(*net.TCPConn)
	var there sync.WaitGroup
	there.Go(func() {
		_, _ = io.Copy(to, from)
		_ = to.CloseWrite()
	})
	_, _ = io.Copy(from, to)
	_ = from.CloseWrite()
	there.Wait()
}

func TestWrongToken(t *testing.T) {
	c := client.New(serve(t).URL(), "wrong")
	t.Cleanup(c.Close)
	_, err := c.App(t.Context(), "web")
	if hangar.CodeOf(err) != hangar.CodeUnauthenticated {
		t.Errorf("got %v, want %s", err, hangar.CodeUnauthenticated)
	}
	_, err = c.ExecMachine(t.Context(), hangar.MachineRef{App: "web", ID: "00000000000000"}, hangar.ExecRequest{Command: []string{"echo"}}, hangar.ExecStreams{})
	if hangar.CodeOf(err) != hangar.CodeUnauthenticated {
		t.Errorf("exec: got %v, want %s", err, hangar.CodeUnauthenticated)
	}
}

package contract_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/api/openapi/openapitest"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/contract"
	"github.com/hangar-platform/hangar/test/contract/fake"
)

const token = "secret"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs the API over a fake platform and returns a client's harness.
func serve(t *testing.T, l net.Listener, address string) contract.Harness {
	t.Helper()
	s := fake.New("loc")
	server := httptest.NewUnstartedServer(nil)
	handler := api.New(api.Config{
		Orgs: s, Tokens: s, Apps: s, Machines: s, Logs: s, Images: s, Platform: s,
		Secrets: s, SecretKeys: s, Registries: s, Encryption: s, Identity: s, SigningKeys: s, Issuer: s, Peers: s, Volumes: s, Addresses: s, Certificates: s,
		Auth:   s.Login(fake.Tokens{token: {Subject: "test", Admin: true}}),
		Region: "loc", Version: "test", Log: slog.New(slog.DiscardHandler),
	})
	server.Config = api.Server(openapitest.Of(t, handler, "/v1/openapi.json").Handler(t, handler))
	if l != nil {
		_ = server.Listener.Close()
		server.Listener = l
	}
	server.Start()
	t.Cleanup(server.Close)
	if address == "" {
		address = server.URL
	}
	return over(t, address, token, contract.Harness{
		Image: "nginx:alpine", Suspend: true, ACME: true, Sleep: []string{"sleep", "3600"},
		Echo: []string{"sleep", "3600"}, EchoPort: fake.EchoPort,
		Exit:    func(code int) []string { return []string{"exit", strconv.Itoa(code)} },
		Context: func(tb testing.TB) context.Context { tb.Helper(); return tb.Context() },
	})
}

// over is a harness whose services are a client with a credential.
func over(tb testing.TB, address, credential string, h contract.Harness, options ...client.Option) contract.Harness {
	tb.Helper()
	c := client.New(address, credential, options...)
	tb.Cleanup(c.Close)
	h.Orgs, h.Tokens, h.Apps, h.Machines, h.Platform, h.Secrets, h.SecretKeys, h.Registries, h.Identity, h.SigningKeys, h.Peers, h.Volumes, h.Addresses, h.Certificates = c, c, c, c, c, c, c, c, c, c, c, c, c, c
	h.As = func(tb testing.TB, credential string) contract.Harness {
		tb.Helper()
		return over(tb, address, credential, h, options...)
	}
	return h
}

func TestTokenEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + l.Addr().String()
	testTokenEnds(t, address, serve(t, l, address))
}

// services runs the contract of every service but that of peers, which needs a network.
func services(t *testing.T, h contract.Harness) {
	t.Helper()
	t.Run("orgs", func(t *testing.T) { contract.OrgService(t, h) })
	t.Run("tokens", func(t *testing.T) { contract.TokenService(t, h) })
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
	h := serve(t, nil, "")
	services(t, h)
	t.Run("peers", func(t *testing.T) { contract.PeerService(t, h) })
}

func TestOverUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, l, "unix://"+path)
	services(t, h)
	t.Run("peers", func(t *testing.T) { contract.PeerService(t, h) })
}

func TestWrongToken(t *testing.T) {
	server := httptest.NewServer(api.New(api.Config{Auth: fake.Tokens{}, Log: slog.New(slog.DiscardHandler)}))
	t.Cleanup(server.Close)
	c := client.New(server.URL, "wrong", client.WithHTTPClient(&http.Client{Transport: server.Client().Transport}))
	_, err := c.App(t.Context(), "web")
	if hangar.CodeOf(err) != hangar.CodeUnauthenticated {
		t.Errorf("got %v, want %s", err, hangar.CodeUnauthenticated)
	}
	_, err = c.ExecMachine(t.Context(), hangar.MachineRef{App: "web", ID: "00000000000000"}, hangar.ExecRequest{Command: []string{"echo"}}, hangar.ExecStreams{})
	if hangar.CodeOf(err) != hangar.CodeUnauthenticated {
		t.Errorf("exec: got %v, want %s", err, hangar.CodeUnauthenticated)
	}
}

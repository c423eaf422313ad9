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
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/internal/openapi/openapitest"
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
		Apps: s, Machines: s, Logs: s, Images: s, Platform: s, Auth: fake.Tokens{token: {Subject: "test", Admin: true}},
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
	c := client.New(address, token)
	t.Cleanup(c.Close)
	return contract.Harness{
		Apps: c, Machines: c, Platform: c, Image: "nginx:alpine", Suspend: true, Sleep: []string{"sleep", "3600"},
		Exit:    func(code int) []string { return []string{"exit", strconv.Itoa(code)} },
		Context: func(tb testing.TB) context.Context { tb.Helper(); return tb.Context() },
	}
}

func TestOverTCP(t *testing.T) {
	h := serve(t, nil, "")
	t.Run("apps", func(t *testing.T) { contract.AppService(t, h) })
	t.Run("machines", func(t *testing.T) { contract.MachineService(t, h) })
	t.Run("platform", func(t *testing.T) { contract.PlatformService(t, h) })
}

func TestOverUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, l, "unix://"+path)
	t.Run("apps", func(t *testing.T) { contract.AppService(t, h) })
	t.Run("machines", func(t *testing.T) { contract.MachineService(t, h) })
	t.Run("platform", func(t *testing.T) { contract.PlatformService(t, h) })
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

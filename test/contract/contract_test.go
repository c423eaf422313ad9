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
	return contract.Over(t, address, p.Token(), contract.Harness{
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

func TestTokenEnds(t *testing.T) {
	p := serve(t)
	contract.TokenEnds(t, p.URL(), harness(t, p, p.URL()))
}

func TestOverTCP(t *testing.T) {
	p := serve(t)
	h := harness(t, p, p.URL(), client.WithHTTPClient(&http.Client{Transport: p.Transport()}))
	contract.Services(t, h)
	t.Run("peers", func(t *testing.T) { contract.PeerService(t, h) })
}

// TestOverUnixSocket runs what uses a connection in every way: requests, streams, and tunnels.
func TestOverUnixSocket(t *testing.T) {
	p := serve(t)
	h := harness(t, p, "unix://"+socket(t, p.Addr()))
	t.Run("machines", func(t *testing.T) { contract.MachineService(t, h) })
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

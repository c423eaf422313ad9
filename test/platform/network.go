package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/machines"
)

// The ports on which every Machine that is started has a program.
const (
	EchoPort = 7    // sends back what it receives
	HTTPPort = 8080 // answers a request with "hello", for /status/NNN with that status; see Options.Program
)

// network is that of all Machines: programs in this process.
type network struct {
	machines.NoNetwork

	programs map[int]string // addresses, by port
}

// newNetwork serves the programs until the test ends. nil is the usual program of HTTPPort.
func newNetwork(tb testing.TB, program http.Handler) *network {
	tb.Helper()
	n := &network{programs: map[int]string{}}
	if program == nil {
		program = http.HandlerFunc(hello)
	}
	for port, serve := range map[int]func(net.Listener){EchoPort: echo, HTTPPort: func(l net.Listener) { answer(l, program) }} {
		l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		n.programs[port] = l.Addr().String()
		var served sync.WaitGroup
		served.Go(func() { serve(l) })
		tb.Cleanup(func() {
			_ = l.Close()
			served.Wait()
		})
	}
	return n
}

// echo returns when the listener is closed and its connections have ended.
func echo(l net.Listener) {
	var served sync.WaitGroup
	defer served.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		served.Go(func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		})
	}
}

func hello(w http.ResponseWriter, r *http.Request) {
	var status int
	if _, err := fmt.Sscanf(r.URL.Path, "/status/%d", &status); err == nil {
		w.WriteHeader(status)
	}
	_, _ = io.WriteString(w, "hello\n") // the client may have left
}

func answer(l net.Listener, program http.Handler) {
	s := &http.Server{Handler: program}
	_ = s.Serve(l)
	_ = s.Close()
}

// Dial implements machines.Networks.
func (n *network) Dial(ctx context.Context, _ hangar.MachineID, port int) (net.Conn, error) {
	address, ok := n.programs[port]
	if !ok {
		return nil, fmt.Errorf("port %d: %w", port, syscall.ECONNREFUSED)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

// DialService implements machines.Networks.
func (n *network) DialService(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error) {
	return n.Dial(ctx, id, port)
}

// gateway is the door of WireGuard peers, through which none comes.
type gateway struct{}

func (gateway) GatewayHost() hangar.HostID { return "0000000a" }

func (gateway) OpenGateway(context.Context) (hangar.PeerGateway, error) {
	return hangar.PeerGateway{EndpointIP: "peers.example", EndpointPort: 51820, GatewayKey: gatewayKey}, nil
}

// gatewayKey cannot be used: its private half does not exist.
const gatewayKey = "bmXOC+F1FxEMF9dyiK2H5/1SUtzH0JuVo51h2wPfgyo="

func (gateway) AwaitPeer(context.Context, hangar.PeerKey, netip.Addr) error { return nil }

func (gateway) PeerTraffic() map[hangar.PeerKey]hangar.PeerTraffic { return nil }

// names is a DNS. In every domain, the name to-APP leads to the name of that App; no other name is
// there.
type names struct{}

var errNoName = errors.New("no such host")

// LookupNetIP implements hostnames.Resolver.
func (names) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return nil, errNoName
}

// LookupCNAME implements hostnames.Resolver.
func (names) LookupCNAME(_ context.Context, name string) (string, error) {
	label, _, _ := strings.Cut(name, ".")
	if app, ok := strings.CutPrefix(label, "to-"); ok {
		return app + "." + Domain + ".", nil
	}
	return "", errNoName
}

// LookupTXT implements hostnames.Resolver.
func (names) LookupTXT(context.Context, string) ([]string, error) { return nil, errNoName }

package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/api/extension"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/host/image/registry"
	"github.com/hangar-platform/hangar/internal/certfile"
	"github.com/hangar-platform/hangar/internal/connlimit"
)

// drainTime is how long requests that are under way may take once the daemon ends.
const drainTime = 2 * time.Second

// The bounds of open connections to the API. From private networks: of one Machine or peer, and of all
// together. From other computers at --api: of one client, and of all together.
const (
	maxSourceConns  = 64
	maxPrivateConns = 4096
	maxClientConns  = 512
	maxConns        = 8192
)

// doors has the API and the listeners at which it is called, apart from names of the platform and
// sockets of Machines.
type doors struct {
	handler *api.Handler
	outside net.Listener // at --api
	inside  net.Listener // in private networks; nil: there is none
}

// openDoors makes the API, and gives it to the edge.
func (d *opening) openDoors(ctx context.Context, own *certfile.Pair, s *server, m *machines, public *edge.Edge, f *servers, c *controlParts, measured *series, events hangar.EventDelivery) (*doors, error) {
	handler, err := d.newHandler(m, public, f, c, measured, events)
	if err != nil {
		return nil, err
	}
	d.late.api.Handler = handler
	inside, err := d.listenInside(ctx, s)
	if err != nil {
		return nil, err
	}
	private := connlimit.New(connlimit.From(s.privateRanges()...), maxSourceConns, maxPrivateConns)
	outside := connlimit.New(comesFromElsewhere, maxClientConns, maxConns).Listener(private.Listener(d.listener))
	switch {
	case own != nil:
		outside = tlsBeyond{outside, tlsConfig(own.Get)}
	case d.cfg.APITLS:
		outside = tlsBeyond{outside, tlsConfig(publicCertificate(hangar.PlatformAPI.Hostname(public.Domain()), public.Certificate))}
	}
	if inside != nil {
		inside = private.Listener(inside)
	}
	return &doors{handler, outside, inside}, nil
}

func (d *doors) run(ctx context.Context) error {
	return api.Serve(ctx, d.outside, d.handler, drainTime)
}

func (d *doors) runInside(ctx context.Context) error {
	if d.inside == nil {
		return nil
	}
	return api.Serve(ctx, d.inside, d.handler, drainTime)
}

func (d *opening) newHandler(m *machines, public *edge.Edge, f *servers, c *controlParts, measured *series, events hangar.EventDelivery) (*api.Handler, error) {
	limits, err := d.cfg.rateLimits()
	if err != nil {
		return nil, err
	}
	_, https := public.Addrs()
	decide := c.decide
	config := api.Config{
		Orgs: decide.Orgs(), Tokens: decide.Tokens(), Users: decide.Users(), SignIns: decide.SignIns(), Apps: decide.Apps(), Machines: decide.Machines(), Logs: decide.Logs(),
		Images: decide.Images(), Platform: decide.Platform(), Secrets: decide.Secrets(), SecretKeys: decide.SecretKeys(),
		Registries: decide.Registries(), Encryption: decide.Encryption(), Identity: decide.Identity(), SigningKeys: decide.Identity(),
		Issuer: decide.Issuer(), Peers: decide.Peers(), Volumes: decide.Volumes(), Addresses: decide.Addresses(), Certificates: decide.Certificates(),
		Webhooks: decide.Webhooks(events), Releases: decide.Releases(), Elections: decide.Elections(), ImageResolver: decide.Images(), SSH: decide.SSH(),
		Auth: f.tokens, Registry: m.images.Registry(registry.NewTokenAccess(f.tokens, decide.Repositories(), decide.Orgs())),
		Metrics: d.counts, RateLimits: limits, AppURL: public.AppURL, RegistryName: d.cfg.registryHost(),
		Hosts:      f.fleet,
		Extensions: extension.Services{Providers: decide.Providers(), Extensions: decide.Extensions(), Hooks: decide.Hooks()},
		OAuth:      decide.OAuth(), Sessions: decide.Sessions(), OAuthIssuer: d.cfg.platformURL(hangar.PlatformAuth, https),
		Region: d.cfg.Region, Version: d.options.Version, Log: d.log,
	}
	login, err := d.cfg.loginProvider()
	if err != nil {
		return nil, err
	}
	if login != nil {
		d.opened.add(func() error { login.Close(); return nil })
		config.OpenID = login
	}
	if measured != nil {
		config.MetricsScopes, config.Series, config.Alerts = decide.Metrics(), measured.queries, decide.Alerts(measured.alerts)
	}
	return api.New(config), nil
}

// openCertificate opens the certificate of the API that the operator has named; nil: there is none.
func (d *opening) openCertificate() (*certfile.Pair, error) {
	if d.cfg.TLSCert == "" {
		return nil, nil //nolint:nilnil // it is asked for once
	}
	pair, err := certfile.Open(d.cfg.TLSCert, d.cfg.TLSKey, d.log)
	if err != nil {
		return nil, fmt.Errorf("--api-cert: %w", err)
	}
	return pair, nil
}

type findCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error)

func tlsConfig(find findCertificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: find}
}

// publicCertificate returns a finder of certificates. For every name that a client sends, it finds the
// certificate of the API's public name. A client that calls an address sends no name, and gets what
// find returns.
func publicCertificate(name hangar.Hostname, find findCertificate) findCertificate {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == "" {
			return find(hello)
		}
		named := *hello
		named.ServerName = string(name)
		return find(&named)
	}
}

// tlsBeyond speaks TLS on connections from other computers. Connections within this server stay plain,
// for the commands on it.
type tlsBeyond struct {
	net.Listener
	config *tls.Config
}

// Accept implements net.Listener.
func (l tlsBeyond) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil || staysHere(conn) {
		return conn, err
	}
	return tls.Server(conn, l.config), nil
}

// comesFromElsewhere reports whether a connection comes from another computer or a Machine.
func comesFromElsewhere(conn net.Conn) bool { return !staysHere(conn) }

// staysHere reports whether both ends of a connection are on this server. Another computer
// cannot pretend: answers to one of the server's own addresses never leave it.
func staysHere(conn net.Conn) bool {
	local, remote := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
	return local.IP.Equal(remote.IP) || local.IP.IsLoopback() && remote.IP.IsLoopback()
}

// listenInside listens where Machines reach the API in their private network, which redirects
// hangar.ServicesAddress there. It returns nil if there is no network, if the API listens at all
// addresses already, or if another program has the port.
func (d *opening) listenInside(ctx context.Context, s *server) (net.Listener, error) {
	if s.network == nil {
		return nil, nil //nolint:nilnil // it is asked for once
	}
	if at, err := netip.ParseAddrPort(d.listener.Addr().String()); err == nil && at.Addr() == netip.IPv6Unspecified() && at.Port() == hangar.ServicesAPIPort {
		return nil, nil //nolint:nilnil // as above
	}
	addr := netip.AddrPortFrom(s.network.HostAddr6(), hangar.ServicesAPIPort)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp6", addr.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		d.log.Warn("another program listens on the port of the API inside private networks: Machines reach it only over their local socket",
			"address", addr)
		return nil, nil //nolint:nilnil // as above
	}
	if err != nil {
		return nil, err
	}
	d.opened.add(func() error { _ = l.Close(); return nil }) // once served, it is closed already
	return l, nil
}

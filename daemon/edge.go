package daemon

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/listen"
	"github.com/hangar-platform/hangar/internal/hint"
	"github.com/hangar-platform/hangar/internal/ippool"
	"github.com/hangar-platform/hangar/internal/keeper"
)

// The files that say where the edge serves.
const (
	httpFile  = "http.addr"
	httpsFile = "https.addr"
)

// The defaults and the bounds of the edge.
const (
	acmeOff     = "off"
	letsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"

	defaultDrain      = 10 * time.Second
	maxDrain          = time.Hour
	defaultReplayBody = 1 << 20
	maxReplayBody     = 64 << 20
)

// validateEdge checks what is said of the edge beside its addresses.
func (c *Config) validateEdge() error {
	if _, err := c.addressPools(); err != nil {
		return err
	}
	if a, err := netip.ParseAddr(c.SharedIPv4); c.SharedIPv4 != "" && (err != nil || !a.Is4() || a.IsUnspecified()) {
		return fmt.Errorf("--shared-ipv4 %q: must be an IPv4 address of this server", c.SharedIPv4)
	}
	for _, u := range []struct{ flag, text string }{{"--acme", c.acmeDirectory()}, {"--statics-url", c.StaticsURL}} {
		if u.text == "" {
			continue
		}
		if parsed, err := url.Parse(u.text); err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http" || parsed.User != nil {
			return fmt.Errorf("%s %q: must be like https://HOST/PATH", u.flag, u.text)
		}
	}
	if c.ACMEEmail != "" {
		if a, err := mail.ParseAddress(c.ACMEEmail); err != nil || a.Address != c.ACMEEmail {
			return fmt.Errorf("--acme-email %q: must be an address like admin@example.com", c.ACMEEmail)
		}
	}
	switch {
	case c.Drain < 0 || c.Drain > maxDrain:
		return fmt.Errorf("--drain %s: must be from 0s to %s", c.Drain, maxDrain)
	case c.ClientConns < 0:
		return fmt.Errorf("--client-connections %d: must be 1 at least", c.ClientConns)
	case c.ClientHandshakes < 0:
		return fmt.Errorf("--client-handshakes %d: must be 1 at least", c.ClientHandshakes)
	case c.ReplayBody < 0 || c.ReplayBody > maxReplayBody:
		return fmt.Errorf("--replay-body %d: must be from 0 to %d", c.ReplayBody, maxReplayBody)
	case c.AutostopAfter != 0 && (c.AutostopAfter < hangar.MinAutostopAfter || c.AutostopAfter > hangar.MaxAutostopAfter):
		return fmt.Errorf("--autostop-after %s: must be from %s to %s", c.AutostopAfter, hangar.MinAutostopAfter, hangar.MaxAutostopAfter)
	}
	return nil
}

// edgeParts are what the edge is made of beside the config.
type edgeParts struct {
	host     hangar.HostID
	machines *catalog.Catalog
	routes   *catalog.Routes
	certs    hangar.CertificateFeed
	gates    hangar.MachineGates
	sockets  *keeper.Client
	platform map[hangar.Hostname]http.Handler
}

// openEdge opens the public edge. Connections wait until it runs.
func openEdge(ctx context.Context, cfg Config, parts edgeParts, log *slog.Logger, opened *closers) (*edge.Edge, error) {
	roots, err := cfg.acmeRoots()
	if err != nil {
		return nil, err
	}
	e := edge.New(edge.Options{
		Host: parts.host, Dir: filepath.Join(cfg.Dir, "edge"), HTTP: cfg.HTTP, HTTPS: cfg.HTTPS, HTTP3: cfg.HTTP3, Shared: cfg.sharedIPv4(),
		Domain: hangar.Hostname(cfg.Domain), Region: cfg.Region, Platform: parts.platform, Machines: parts.machines, Routes: parts.routes, Certificates: parts.certs,
		Gates: parts.gates, Keeper: parts.sockets, ACME: cfg.acmeDirectory(), ACMEEmail: cfg.ACMEEmail, ACMERoots: roots,
		Limits: listen.Limits{ClientConns: cfg.ClientConns, ClientRate: cfg.ClientHandshakes, NameRate: max(2*cfg.ClientHandshakes, listen.DefaultLimits().NameRate)},
		Drain:  cfg.Drain, ReplayBody: cfg.ReplayBody, Buckets: cfg.StaticsURL, Log: log,
	})
	if err := e.Open(ctx); err != nil {
		return nil, hint.With(err, "give the edge other addresses with --http and --https")
	}
	opened.add(e.Close)
	plain, secure := e.Addrs()
	for name, addr := range map[string]netip.AddrPort{httpFile: plain, httpsFile: secure} {
		if err := writeAddress(filepath.Join(cfg.Dir, name), addr.String()); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// sharedIPv4 is the address that Apps share: the one that is configured, or that the edge
// listens on, or else the loopback.
func (c *Config) sharedIPv4() netip.Addr {
	for _, text := range []string{c.SharedIPv4, hostOf(c.HTTP)} {
		if a, err := netip.ParseAddr(text); err == nil && a.Is4() && !a.IsUnspecified() {
			return a
		}
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address) // checked by validate
	return host
}

// addressPools are where the addresses of Apps come from.
func (c *Config) addressPools() (control.AddressPools, error) {
	pools := control.AddressPools{Shared: c.sharedIPv4(), V4: ippool.Loopback(instance(c.Dir)), V6: ippool.UniqueLocal(instance(c.Dir))}
	for _, p := range []struct {
		flag, text string
		family     ippool.Family
		to         *ippool.Pool
	}{{"--ipv4-pool", c.IPv4Pool, ippool.IPv4, &pools.V4}, {"--ipv6-pool", c.IPv6Pool, ippool.IPv6, &pools.V6}} {
		if p.text == "" {
			continue
		}
		pool, err := ippool.Parse(p.text, p.family)
		if err != nil {
			return pools, fmt.Errorf("%s: %s", p.flag, err)
		}
		*p.to = pool
	}
	return pools, nil
}

// acmeDirectory is the address of the ACME server, or empty.
func (c *Config) acmeDirectory() string {
	if c.ACME == acmeOff {
		return ""
	}
	return c.ACME
}

// acmeRoots are those who may sign the ACME server's own certificate; nil: the system's.
func (c *Config) acmeRoots() (*x509.CertPool, error) {
	if c.ACMERoot == "" {
		return nil, nil //nolint:nilnil // x509 takes it for the system's
	}
	raw, err := os.ReadFile(c.ACMERoot)
	if err != nil {
		return nil, fmt.Errorf("--acme-root: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("--acme-root %q: has no certificate in PEM", c.ACMERoot)
	}
	return pool, nil
}

package main

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

	"github.com/spf13/pflag"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/listen"
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

// edgeFlags are those of the public edge beside its addresses.
func (c *config) edgeFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&c.HTTP3, "http3", false, "serve HTTP/3 on the UDP port of --https, too")
	flags.StringVar(&c.SharedIPv4, "shared-ipv4", "", "IPv4 address that Apps share (default that of --http, or 127.0.0.1)")
	flags.StringVar(&c.IPv4Pool, "ipv4-pool", "", "IPv4 addresses that Apps may get, like 203.0.113.16/28 (default a /24 of the loopback)")
	flags.StringVar(&c.IPv6Pool, "ipv6-pool", "", "IPv6 addresses that Apps may get, like 2001:db8:1:2::/64 (default unique local ones)")
	flags.StringVar(&c.ACME, "acme", letsEncrypt, "directory of the ACME server that issues certificates, whose terms you agree to; off for none")
	flags.StringVar(&c.ACMEEmail, "acme-email", "", "address that the ACME server writes to")
	flags.StringVar(&c.ACMERoot, "acme-root", "", "file with the certificates that the ACME server's own is signed by (default the system's)")
	flags.DurationVar(&c.Drain, "drain", defaultDrain, "how long requests that are under way have to end when the daemon does")
	flags.IntVar(&c.ClientConns, "client-connections", listen.DefaultLimits().ClientConns, "how many connections to the edge one client may have open")
	flags.IntVar(&c.ClientHandshakes, "client-handshakes", listen.DefaultLimits().ClientRate, "how many TLS handshakes a second one client may begin")
	flags.Int64Var(&c.ReplayBody, "replay-body", defaultReplayBody, "bytes of a request that are kept in case it is replayed, at most 64 MiB; above 1 MiB on the disk")
	flags.StringVar(&c.StaticsURL, "statics-url", "", "S3 service with the public buckets of static files, like https://s3.example.com")
	flags.BoolVar(&c.TrustHostnames, "trust-hostnames", false, "serve every hostname that an App claims without a proof: for servers whose users trust each other")
	flags.DurationVar(&c.AutostopAfter, "autostop-after", hangar.DefaultAutostopAfter, "how long a Machine has to be idle before it is stopped, where its config does not say")
}

// validateEdge checks what edgeFlags are given.
func (c *config) validateEdge() error {
	if _, err := c.addressPools(); err != nil {
		return err
	}
	if a, err := netip.ParseAddr(c.SharedIPv4); c.SharedIPv4 != "" && (err != nil || !a.Is4() || a.IsUnspecified()) {
		return usageErrorf("--shared-ipv4 %q: must be an IPv4 address of this server", c.SharedIPv4)
	}
	for _, u := range []struct{ flag, text string }{{"--acme", c.acmeDirectory()}, {"--statics-url", c.StaticsURL}} {
		if u.text == "" {
			continue
		}
		if parsed, err := url.Parse(u.text); err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http" || parsed.User != nil {
			return usageErrorf("%s %q: must be like https://HOST/PATH", u.flag, u.text)
		}
	}
	if c.ACMEEmail != "" {
		if a, err := mail.ParseAddress(c.ACMEEmail); err != nil || a.Address != c.ACMEEmail {
			return usageErrorf("--acme-email %q: must be an address like admin@example.com", c.ACMEEmail)
		}
	}
	switch {
	case c.Drain < 0 || c.Drain > maxDrain:
		return usageErrorf("--drain %s: must be from 0s to %s", c.Drain, maxDrain)
	case c.ClientConns < 0:
		return usageErrorf("--client-connections %d: must be 1 at least", c.ClientConns)
	case c.ClientHandshakes < 0:
		return usageErrorf("--client-handshakes %d: must be 1 at least", c.ClientHandshakes)
	case c.ReplayBody < 0 || c.ReplayBody > maxReplayBody:
		return usageErrorf("--replay-body %d: must be from 0 to %d", c.ReplayBody, maxReplayBody)
	case c.AutostopAfter != 0 && (c.AutostopAfter < hangar.MinAutostopAfter || c.AutostopAfter > hangar.MaxAutostopAfter):
		return usageErrorf("--autostop-after %s: must be from %s to %s", c.AutostopAfter, hangar.MinAutostopAfter, hangar.MaxAutostopAfter)
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
func openEdge(ctx context.Context, cfg config, parts edgeParts, log *slog.Logger, opened *closers) (*edge.Edge, error) {
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
		return nil, withHint(err, "give the edge other addresses with --http and --https")
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
func (c *config) sharedIPv4() netip.Addr {
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
func (c *config) addressPools() (control.AddressPools, error) {
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
			return pools, usageErrorf("%s: %s", p.flag, err)
		}
		*p.to = pool
	}
	return pools, nil
}

// acmeDirectory is the address of the ACME server, or empty.
func (c *config) acmeDirectory() string {
	if c.ACME == acmeOff {
		return ""
	}
	return c.ACME
}

// acmeRoots are those who may sign the ACME server's own certificate; nil: the system's.
func (c *config) acmeRoots() (*x509.CertPool, error) {
	if c.ACMERoot == "" {
		return nil, nil //nolint:nilnil // x509 takes it for the system's
	}
	raw, err := os.ReadFile(c.ACMERoot)
	if err != nil {
		return nil, fmt.Errorf("--acme-root: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, usageErrorf("--acme-root %q: has no certificate in PEM", c.ACMERoot)
	}
	return pool, nil
}

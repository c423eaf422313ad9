package daemon

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/internal/ippool"
)

// sharedIPv4 is the address that Apps share: the configured one, the one that the edge listens on, or
// the loopback.
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

// addressPools are the pools of addresses for Apps.
func (c *Config) addressPools() (addresses.Pools, error) {
	pools := addresses.Pools{Shared: c.sharedIPv4(), V4: ippool.Loopback(instance(c.Dir)), V6: ippool.UniqueLocal(instance(c.Dir))}
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
			return pools, fmt.Errorf("%s: %w", p.flag, err)
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

// acmeRoots are the authorities of the ACME server's own certificate; nil: the system's.
func (c *Config) acmeRoots() (*x509.CertPool, error) {
	if c.ACMERoot == "" {
		return nil, nil //nolint:nilnil // x509 takes it for the system's
	}
	return readRoots("--acme-root", c.ACMERoot)
}

// readRoots reads the authorities in the file that a flag names.
func readRoots(flag, path string) (*x509.CertPool, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("%s %q: has no certificate in PEM", flag, path)
	}
	return pool, nil
}

// registryHost is the name of the built-in registry.
func (c *Config) registryHost() string {
	return string(hangar.PlatformRegistry.Hostname(hangar.Hostname(c.Domain)))
}

// oidcURL is the address below which the issuers are.
func (c *Config) oidcURL(https netip.AddrPort) string {
	if c.OIDC != "" {
		return strings.TrimRight(c.OIDC, "/")
	}
	return c.platformURL(hangar.PlatformOIDC, https)
}

// doors are the names of the platform that are not below its domain.
func (c *Config) doors() []hangar.Hostname {
	u, err := url.Parse(c.OIDC)
	if err != nil || u.Hostname() == "" {
		return nil
	}
	name, err := hangar.ParseHostname(u.Hostname())
	if err != nil { // an address, or localhost: no App can have it anyway
		return nil
	}
	return []hangar.Hostname{name}
}

// portHTTPS is the port that URLs leave out.
const portHTTPS = 443

// PublicAPI is where other computers reach the API of the daemon that runs, or ran last.
func (c *Config) PublicAPI() string {
	raw, err := os.ReadFile(filepath.Join(c.Dir, httpsFile))
	if err != nil {
		return err.Error()
	}
	https, err := netip.ParseAddrPort(strings.TrimSpace(string(raw)))
	if err != nil {
		return err.Error()
	}
	return c.platformURL(hangar.PlatformAPI, https)
}

// platformURL is where clients reach a name of the platform, with the port unless it is portHTTPS.
func (c *Config) platformURL(name hangar.PlatformName, https netip.AddrPort) string {
	host := string(name.Hostname(hangar.Hostname(c.Domain)))
	if port := https.Port(); port != portHTTPS {
		host = net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	return "https://" + host
}

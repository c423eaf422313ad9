package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/signon/openid"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/internal/hint"
	"github.com/hangar-platform/hangar/internal/publicdial"
	"github.com/hangar-platform/hangar/metrics/alerts/notify"
)

var (
	regionShape = regexp.MustCompile(`^[a-z]{3}$`)
	domainShape = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// Validate checks everything that can be checked without touching the server. An error begins
// with the flag of `hangar up` that sets what is wrong.
func (c *Config) Validate() error {
	if len(c.Dir) > maxDirBytes {
		return fmt.Errorf("--dir %s: the path must not be longer than %d bytes, so that sockets fit below it", c.Dir, maxDirBytes)
	}
	if c.Dir == "/" {
		return fmt.Errorf("--dir must not be the root directory")
	}
	for flag, addr := range map[string]string{"--api": c.API, "--http": c.HTTP, "--https": c.HTTPS} {
		if err := checkAddress(addr); err != nil {
			return fmt.Errorf("%s %q: %w", flag, addr, err)
		}
	}
	if err := c.validateAPI(); err != nil {
		return err
	}
	if !regionShape.MatchString(string(c.Region)) {
		return fmt.Errorf("--region %q: must be three letters a-z", c.Region)
	}
	if len(c.Domain) > 253 || !domainShape.MatchString(c.Domain) {
		return fmt.Errorf("--domain %q: must be a domain name in lowercase", c.Domain)
	}
	if !slices.Contains([]string{DriverGvisor, DriverFake}, c.Driver) {
		return fmt.Errorf("--driver %q: must be %s or %s", c.Driver, DriverGvisor, DriverFake)
	}
	if _, err := c.rateLimits(); err != nil {
		return err
	}
	if err := c.validateMetrics(); err != nil {
		return err
	}
	if _, err := c.loginProvider(); err != nil {
		return err
	}
	if err := c.validateOIDC(); err != nil {
		return err
	}
	if err := c.validateEdge(); err != nil {
		return err
	}
	if err := c.validateLayers(); err != nil {
		return err
	}
	if _, err := c.egress(); err != nil {
		return err
	}
	for flag, ratio := range map[string]float64{"--memory-overcommit": c.MemoryOvercommit, "--cpu-overcommit": c.CPUOvercommit} {
		if !(ratio > 0 && ratio <= maxOvercommit) { // NaN is refused, too
			return fmt.Errorf("%s %g: must be above 0 and at most %d", flag, ratio, maxOvercommit)
		}
	}
	if err := c.validateImages(); err != nil {
		return err
	}
	if _, err := hangar.ParseQuotas(c.Quotas); err != nil {
		return fmt.Errorf("--quota: %w", err)
	}
	if err := c.validateVolumes(); err != nil {
		return err
	}
	if _, _, err := c.wireguardPort(); err != nil {
		return err
	}
	if !validEndpoint(c.PeerEndpoint) {
		return fmt.Errorf("--wireguard-endpoint %q: must be a name or an address, without a port", c.PeerEndpoint)
	}
	if err := c.validateCluster(); err != nil {
		return err
	}
	for _, e := range c.Etcd {
		u, err := url.Parse(e)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("--etcd %q: must be like http://HOST:2379", e)
		}
	}
	_, err := c.acmeRoots()
	return err
}

// maxOIDCPeriod is as good as forever.
const maxOIDCPeriod = 10 * 365 * 24 * time.Hour

// mail returns how e-mail is sent; nil: it is not.
func (c *Config) mail() (*notify.Mail, error) {
	if c.SMTP == "" {
		if c.SMTPFrom != "" {
			return nil, errors.New("--smtp-from goes with --smtp")
		}
		return nil, nil //nolint:nilnil // there is none
	}
	server, err := notify.ParseMail(c.SMTP, c.SMTPFrom)
	if err != nil {
		return nil, fmt.Errorf("--smtp: %w", err)
	}
	return server, nil
}

// loginProvider is the OpenID Connect provider with which users may sign in; nil: there is none.
func (c *Config) loginProvider() (*openid.Provider, error) {
	if c.LoginOIDC == "" {
		if c.LoginOIDCClient != "" || c.LoginOIDCSecretFile != "" {
			return nil, errors.New("--login-oidc-client and --login-oidc-secret-file go with --login-oidc")
		}
		return nil, nil //nolint:nilnil // there is none
	}
	if err := openid.CheckIssuer(c.LoginOIDC); err != nil {
		return nil, fmt.Errorf("--login-oidc: %w", err)
	}
	if c.LoginOIDCClient == "" {
		return nil, errors.New("--login-oidc needs --login-oidc-client: what the provider calls this platform")
	}
	config := openid.Config{Issuer: c.LoginOIDC, ClientID: c.LoginOIDCClient}
	if c.LoginOIDCSecretFile != "" {
		secret, err := os.ReadFile(c.LoginOIDCSecretFile)
		if err != nil {
			return nil, fmt.Errorf("--login-oidc-secret-file: %w", err)
		}
		config.ClientSecret = hangar.NewSensitive(strings.TrimSpace(string(secret)))
	}
	return openid.New(config), nil
}

// validateMetrics checks where the series of organizations are kept, and for how long.
func (c *Config) validateMetrics() error {
	if c.MetricsRetention != 0 && c.MetricsRetention < 24*time.Hour {
		return fmt.Errorf("--metrics-retention %s: must be at least 24h", c.MetricsRetention)
	}
	if _, err := c.mail(); err != nil {
		return err
	}
	if c.MetricsURL == "" || c.MetricsURL == metricsOff {
		for flag, text := range map[string]string{
			"--metrics-write-url": c.MetricsWriteURL, "--metrics-ca": c.MetricsCA, "--metrics-cert": c.MetricsCert, "--metrics-key": c.MetricsKey,
		} {
			if text != "" {
				return errors.New(flag + " goes with --metrics-url")
			}
		}
		return nil
	}
	if (c.MetricsCert == "") != (c.MetricsKey == "") {
		return errors.New("--metrics-cert and --metrics-key go together")
	}
	for flag, text := range map[string]string{"--metrics-url": c.MetricsURL, "--metrics-write-url": c.MetricsWriteURL} {
		u, err := url.Parse(text)
		if text != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "") {
			return fmt.Errorf("%s %q: must be an http or https URL", flag, text)
		}
		if text != "" && u.Scheme != "https" && (c.MetricsCA != "" || c.MetricsCert != "") {
			return fmt.Errorf("%s %q: must be an https URL with --metrics-ca and --metrics-cert", flag, text)
		}
	}
	return nil
}

func (c *Config) validateOIDC() error {
	if c.OIDCPeriod < oidc.MinPeriod || c.OIDCPeriod > maxOIDCPeriod {
		return fmt.Errorf("--oidc-rotate-every %s: must be from %s to %s", c.OIDCPeriod, oidc.MinPeriod, maxOIDCPeriod)
	}
	if c.OIDC == "" {
		return nil
	}
	u, err := url.Parse(c.OIDC)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || strings.ContainsAny(c.OIDC, "?# ") {
		return fmt.Errorf("--oidc-url %q: must be like https://HOST or https://HOST/PATH", c.OIDC)
	}
	return nil
}

func (c *Config) oidcPolicy() oidc.Policy {
	p := oidc.DefaultPolicy()
	p.Period = c.OIDCPeriod
	return p
}

// rateLimits reads --rate-limits: off, public, or a multiple of public.
func (c *Config) rateLimits() (router.RateLimits, error) {
	switch c.Limits {
	case limitsOff, "":
		return 0, nil
	case limitsPublic:
		return router.PublicRateLimits, nil
	}
	n, err := strconv.ParseFloat(c.Limits, 64)
	if err != nil || !(n > 0 && n <= maxRateLimits) {
		return 0, fmt.Errorf("--rate-limits %q: must be off, public, or a number above 0 and up to %d", c.Limits, maxRateLimits)
	}
	return router.RateLimits(n), nil
}

// egress reads --allow-egress.
func (c *Config) egress() ([]netip.Prefix, error) {
	var allowed []netip.Prefix
	for _, text := range c.AllowEgress {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("--allow-egress %q: must be an address and a length, like 10.1.0.0/16 or fd12:3456::/32", text)
		case p != p.Masked():
			return nil, fmt.Errorf("--allow-egress %s: the network is %s", text, p.Masked())
		case p.Addr().Is4In6():
			return nil, fmt.Errorf("--allow-egress %s: must be written as an IPv4 network", text)
		case network.Private.Contains(p.Addr()) && p.Bits() >= network.Private.Bits():
			return nil, fmt.Errorf("--allow-egress %s: the private networks of Machines, %s, are never opened", text, network.Private)
		}
		allowed = append(allowed, p)
	}
	return allowed, nil
}

// wireguardPort reads --wireguard: off, or a port at all addresses of the server.
func (c *Config) wireguardPort() (port uint16, on bool, err error) {
	switch c.Peers {
	case wireguardOff:
		return 0, false, nil
	case "": // a config from before there were peers
		c.Peers = defaultPeers
	}
	address, text, err := net.SplitHostPort(c.Peers)
	n, failed := strconv.ParseUint(text, 10, 16)
	if err != nil || failed != nil || address != "" {
		return 0, false, fmt.Errorf("--wireguard %q: must be :PORT or off; it listens at all addresses", c.Peers)
	}
	return uint16(n), true, nil
}

// validEndpoint reports whether text can stand before a port, or is empty.
func validEndpoint(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil || text == "" || len(text) <= 253 && domainShape.MatchString(text)
}

func checkAddress(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return errors.New("must be HOST:PORT or :PORT")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("no such port %q", port)
	}
	return nil
}

// validateAPI refuses plain HTTP with other computers unless the operator allows it, because requests
// carry tokens.
func (c *Config) validateAPI() error {
	files := c.TLSCert != "" || c.TLSKey != ""
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return fmt.Errorf("--api-cert and --api-key: each needs the other")
	case files && c.APITLS:
		return fmt.Errorf("--api-tls: --api-cert names another certificate already")
	case c.APIInsecure && (files || c.APITLS):
		return fmt.Errorf("--api-insecure: the API speaks TLS")
	case !c.APIInsecure && !files && !c.APITLS && !onLoopback(c.API):
		return hint.With(fmt.Errorf("--api %s: other computers would send their tokens in plain HTTP", c.API),
			"they reach the API at https://api."+c.Domain+" already; or give it --api-tls, or --api-cert and --api-key, or --api-insecure if the network is trusted")
	}
	return nil
}

// onLoopback reports whether other computers cannot reach an address to listen on.
func onLoopback(address string) bool {
	host := hostOf(address)
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// validateEdge checks the settings of the edge, except its addresses.
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

func (c *Config) validateLayers() error {
	if c.RootfsSize < 1 || c.RootfsSize > hangar.MaxRootfsGB {
		return fmt.Errorf("--rootfs-size %d: must be from 1 to %d", c.RootfsSize, hangar.MaxRootfsGB)
	}
	return nil
}

// The bounds of an operator's settings for images.
const (
	maxImageSizeGB = 1 << 20
	maxImageRatio  = 1 << 20
	maxPullRate    = 1 << 30 // bytes a second
	minPullTimeout = 10 * time.Second
)

func (c *Config) validateImages() error {
	if _, err := c.registries(); err != nil {
		return err
	}
	if _, err := c.webhookTargets(); err != nil {
		return err
	}
	for _, f := range []struct {
		flag     string
		n, atMax int
	}{{"--image-size-gb", c.ImageSizeGB, maxImageSizeGB}, {"--image-ratio", c.ImageRatio, maxImageRatio}, {"--pull-min-rate", c.PullRate, maxPullRate}} {
		if f.n < 0 || f.n > f.atMax {
			return fmt.Errorf("%s %d: must be from 1 to %d", f.flag, f.n, f.atMax)
		}
	}
	if c.PullTimeout != 0 && (c.PullTimeout < minPullTimeout || c.PullTimeout > image.DefaultPullTime) {
		return fmt.Errorf("--pull-timeout %s: must be from %s to %s", c.PullTimeout, minPullTimeout, image.DefaultPullTime)
	}
	return nil
}

// registries reads --allow-registry.
func (c *Config) registries() ([]publicdial.Allowed, error) {
	return allowedBy("--allow-registry", c.AllowRegistry)
}

// webhookTargets reads --allow-webhook.
func (c *Config) webhookTargets() ([]publicdial.Allowed, error) {
	return allowedBy("--allow-webhook", c.AllowWebhook)
}

func allowedBy(flag string, texts []string) ([]publicdial.Allowed, error) {
	var allowed []publicdial.Allowed
	for _, text := range texts {
		a, err := publicdial.ParseAllowed(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		allowed = append(allowed, a)
	}
	return allowed, nil
}

// maxVolumes and maxOvercommit bound what an operator may allow.
const (
	maxVolumes    = 16
	maxOvercommit = 1000
)

func (c *Config) validateVolumes() error {
	if !(c.VolumeOvercommit > 0 && c.VolumeOvercommit <= maxOvercommit) { // NaN is refused, too
		return fmt.Errorf("--volume-overcommit %g: must be above 0 and at most %d", c.VolumeOvercommit, maxOvercommit)
	}
	if c.DiskReserve < 0 {
		return fmt.Errorf("--disk-reserve %d: must not be negative", c.DiskReserve)
	}
	if c.VolumesPerMachine < 1 || c.VolumesPerMachine > maxVolumes {
		return fmt.Errorf("--volumes-per-machine %d: must be from 1 to %d", c.VolumesPerMachine, maxVolumes)
	}
	if c.Snapshots == "" {
		return nil
	}
	if err := archive.CheckURL(c.Snapshots); err != nil { // its error does not repeat a password
		return fmt.Errorf("--snapshots: %w; it must be like file:///DIR or s3://BUCKET/PREFIX?endpoint=HOST&region=NAME", err)
	}
	return nil
}

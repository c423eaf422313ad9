package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/traffic"
)

// Protocols that clients ask for in a TLS handshake.
const (
	protoACME     = "acme-tls/1"
	protoHTTP2    = "h2"
	protoHTTP1    = "http/1.1"
	protoPostgres = "postgresql"
)

// suites of TLS 1.2: those with forward secrecy and authenticated encryption.
func suites() []uint16 {
	return []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	}
}

// handshakeKey is the context key of a handshake's *arrival.
type handshakeKey struct{}

// handshake terminates TLS. The App and the endpoint of the connection are known afterwards, even
// if they depend on the server name. An error is a *hangar.EdgeError.
func (l *Listeners) handshake(ctx context.Context, a *arrival) (*tlsConn, error) {
	if !l.byIP.allow(a.client, time.Now()) || !l.shakes.Take(a.client) {
		return nil, &hangar.EdgeError{Code: hangar.EdgeTLSLimit, Message: "the client begins TLS too often"}
	}
	defer l.shakes.Leave(a.client)
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, handshakeKey{}, a), l.o.Limits.Handshake)
	defer cancel()
	conn, began := tls.Server(a.conn, l.outer), time.Now()
	err := conn.HandshakeContext(ctx)
	l.countHandshake(a, conn, err, time.Since(began))
	switch {
	case err == nil:
		return &tlsConn{conn, a.conn}, nil
	case a.refused != nil:
		return nil, a.refused
	case isSilent(err):
		return nil, &hangar.EdgeError{Code: hangar.EdgeTLSHandshake, Message: "the client left before TLS was established", Err: io.EOF}
	default:
		return nil, &hangar.EdgeError{Code: hangar.EdgeTLSHandshake, Message: "TLS could not be established", Err: err}
	}
}

// countHandshake counts a handshake for the App that it was for, if it was for one.
func (l *Listeners) countHandshake(a *arrival, conn *tls.Conn, err error, took time.Duration) {
	switch {
	case a.route == nil || !a.greeted:
	case err == nil:
		l.o.Traffic.App(a.route.ID).Handshake(conn.ConnectionState().Version, took)
	default:
		l.o.Traffic.App(a.route.ID).HandshakeFailed(configuredName(a.route, a.name, l.o.Domain))
	}
}

// configuredName returns the App's hostname that matches a name: the name itself, or a wildcard;
// empty: none.
func configuredName(route *hangar.AppRoute, name, domain hangar.Hostname) hangar.Hostname {
	if name == route.App.Hostname(domain) || slices.Contains(route.Hostnames, name) {
		return name
	}
	if _, parent, ok := strings.Cut(string(name), "."); ok {
		if wildcard := hangar.Hostname("*." + parent); slices.Contains(route.Hostnames, wildcard) {
			return wildcard
		}
	}
	return ""
}

// isSilent reports whether the client has disconnected, as port scanners do.
func isSilent(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// configFor returns the TLS configuration for the first message of a client.
func (l *Listeners) configFor(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	a, ok := hello.Context().Value(handshakeKey{}).(*arrival)
	if !ok {
		return nil, errors.New("not a handshake of ours")
	}
	config, err := l.choose(hello, a)
	if err != nil {
		a.refused = err
		if unrecognized(err) {
			return nameless, nil
		}
		return nil, err
	}
	return config, nil
}

// unrecognized reports whether there is no certificate for the client's server name.
func unrecognized(e *hangar.EdgeError) bool {
	return e.Code == hangar.EdgeNoCertificate || e.Code == hangar.EdgeNoName
}

// nameless has no certificate, which makes the handshake end with the alert unrecognized_name.
//
//nolint:gochecknoglobals // it never changes
var nameless = &tls.Config{MinVersion: tls.VersionTLS12}

// choose finds the App and its endpoint, and the settings of TLS.
func (l *Listeners) choose(hello *tls.ClientHelloInfo, a *arrival) (*tls.Config, *hangar.EdgeError) {
	a.name, a.greeted = hangar.Canonical(hello.ServerName), true
	if a.name != "" && !l.byName.allow(a.name, a.client, time.Now()) {
		return nil, &hangar.EdgeError{Code: hangar.EdgeTLSNameLimit, Message: fmt.Sprintf("too many begin TLS for %s", a.name)}
	}
	if slices.Equal(hello.SupportedProtos, []string{protoACME}) {
		return l.challenge(), nil
	}
	if l.o.Platform(a.name) {
		return l.choosePlatform(a)
	}
	if a.route == nil {
		if a.name == "" && l.o.Nameless && a.port == portHTTPS {
			a.platform = true
			k := configKey{nameless: true, alpn: protoHTTP1, min: tls.VersionTLS12, max: tls.VersionTLS13}
			return l.configs.get(k, l.newConfig), nil
		}
		if a.name == "" {
			return nil, &hangar.EdgeError{Code: hangar.EdgeNoName, Message: "the client sent no server name, and the address is shared"}
		}
		route, ok := l.o.Routes.ByHostname(a.name)
		if !ok {
			return nil, &hangar.EdgeError{Code: hangar.EdgeNoCertificate, Message: fmt.Sprintf("no app is served as %s", a.name)}
		}
		a.route = route
	} else if other, ok := l.o.Routes.ByHostname(a.name); ok && other.ID != a.route.ID {
		// An App must not get what clients say to another because a client was misled here.
		return nil, &hangar.EdgeError{Code: hangar.EdgeNoCertificate, Message: fmt.Sprintf("%s is the name of another app", a.name)}
	}
	if a.endpoint == nil {
		endpoint, ok := l.o.Balancer.Endpoint(a.route, false, a.port)
		if !ok || !endpoint.Handling.TLS {
			return nil, &hangar.EdgeError{Code: hangar.EdgeNoneHealthy, Message: fmt.Sprintf("the app has no service that takes TLS on port %d", a.port)}
		}
		a.endpoint = endpoint
	}
	if e := l.charge(a); e != nil {
		return nil, e
	}
	return l.configs.get(newConfigKey(a.endpoint), l.newConfig), nil
}

// choosePlatform is choose for a name of the platform. No App gets what clients say to the
// platform, whichever of its addresses and ports they reached.
func (l *Listeners) choosePlatform(a *arrival) (*tls.Config, *hangar.EdgeError) {
	if a.route != nil || a.port != portHTTPS {
		return nil, &hangar.EdgeError{Code: hangar.EdgeNoCertificate, Message: fmt.Sprintf("%s is a name of the platform, which is not served here", a.name)}
	}
	a.platform = true
	k := configKey{platform: a.name, alpn: protoHTTP2 + " " + protoHTTP1, min: tls.VersionTLS12, max: tls.VersionTLS13}
	return l.configs.get(k, l.newConfig), nil
}

// portHTTPS is the public port of names of the platform, whatever the port of HTTPS is here.
const portHTTPS = 443

// challenge returns the configuration for an ACME server that validates a name.
func (l *Listeners) challenge() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{protoACME}, SessionTicketsDisabled: true,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return l.o.Certificate(hello, false) },
	}
}

// configKey is everything in which configurations differ.
type configKey struct {
	app        hangar.AppID
	name       hangar.AppName  // of app
	platform   hangar.Hostname // instead of an App
	nameless   bool            // instead of both
	alpn       string          // separated by spaces
	min, max   uint16
	selfSigned bool
}

func newConfigKey(e *balance.Endpoint) configKey {
	k := configKey{app: e.Route.ID, name: e.Route.App, min: tls.VersionTLS12, max: tls.VersionTLS13}
	switch {
	case e.Handling.HTTP:
		k.alpn = protoHTTP2 + " " + protoHTTP1
	case e.Handling.PgTLS:
		k.alpn = protoPostgres
	}
	if e.Options == nil || e.Options.TLS == nil {
		return k
	}
	o := e.Options.TLS
	if len(o.ALPN) > 0 {
		k.alpn = strings.Join(o.ALPN, " ")
	}
	if len(o.Versions) > 0 {
		twelve, thirteen := slices.Contains(o.Versions, "TLSv1.2"), slices.Contains(o.Versions, "TLSv1.3")
		if twelve && !thirteen {
			k.max = tls.VersionTLS12
		}
		if thirteen && !twelve {
			k.min = tls.VersionTLS13
		}
	}
	k.selfSigned = o.DefaultSelfSigned != nil && *o.DefaultSelfSigned
	return k
}

// owner names the owner of TLS sessions. No session is resumed for another owner.
func (k *configKey) owner() string {
	switch {
	case k.nameless:
		return "nameless"
	case k.platform != "":
		return "platform " + string(k.platform)
	}
	return "app " + string(k.app)
}

// newConfig makes a configuration.
func (l *Listeners) newConfig(k configKey) *tls.Config {
	config := &tls.Config{
		MinVersion: k.min, MaxVersion: k.max, CipherSuites: suites(), NextProtos: strings.Fields(k.alpn),
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return l.certificate(hello, k)
		},
	}
	config.SetSessionTicketKeys(l.keys.of(k.owner()))
	return config
}

// certificate finds the certificate for a client; without a server name, that of the App's own
// name.
func (l *Listeners) certificate(hello *tls.ClientHelloInfo, k configKey) (*tls.Certificate, error) {
	ctx := hello.Context()
	if hello.ServerName == "" && !k.nameless {
		named := *hello
		named.ServerName = string(k.name.Hostname(l.o.Domain))
		hello = &named
	}
	found, err := l.o.Certificate(hello, k.selfSigned || k.nameless)
	if err == nil {
		return found, nil
	}
	refused, ok := errors.AsType[*hangar.EdgeError](err)
	if !ok {
		refused = &hangar.EdgeError{Code: hangar.EdgeNoCertificate, Message: "there is no certificate for " + hello.ServerName, Err: err}
	}
	if a, ok := ctx.Value(handshakeKey{}).(*arrival); ok {
		a.refused = refused
		if unrecognized(refused) {
			return nil, nil //nolint:nilnil // none, which becomes the alert unrecognized_name
		}
	}
	return nil, refused
}

// maxConfigs is how many configurations are kept.
const maxConfigs = 10_000

// configs caches configurations.
type configs struct {
	mu   sync.RWMutex
	made map[configKey]*tls.Config
}

func (c *configs) get(k configKey, build func(configKey) *tls.Config) *tls.Config {
	c.mu.RLock()
	config := c.made[k]
	c.mu.RUnlock()
	if config != nil {
		return config
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil || len(c.made) >= maxConfigs {
		c.made = map[configKey]*tls.Config{}
	}
	if c.made[k] == nil {
		c.made[k] = build(k) // under the lock, so that its keys are not replaced meanwhile
	}
	return c.made[k]
}

// clear empties the cache, because session keys have changed.
func (c *configs) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made = nil
}

// tlsConn is a connection over which TLS was established.
type tlsConn struct {
	*tls.Conn
	tcp *traffic.Conn
}

// Abort ends the connection so that the client sees a failure.
func (c *tlsConn) Abort(cause error) { c.tcp.Abort(cause) }

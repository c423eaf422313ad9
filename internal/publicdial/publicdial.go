// Package publicdial connects to the public internet on behalf of tenants, and to nothing else.
//
// A Dialer checks the address of each connection after the DNS has answered, so that neither a name
// that changes its addresses nor a redirect bypasses the check. It refuses loopback, private,
// link-local, carrier, multicast and reserved addresses, those of metadata services, the forms of all
// these within IPv6, and the platform's own addresses according to Options.Own. It uses no proxy. The
// operator may make exceptions (Allowed), and requests of administrators are not refused
// (WithAdministrator).
//
// An error names the host and the reason of the failure. It never contains an address from the DNS or
// text of the other side, so tenants may see it. Describe does the same for the errors of HTTP and
// TLS.
//
// All methods may be called from many goroutines. A Transport separates the connections of
// administrators from those of tenants.
package publicdial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	dialTimeout   = 10 * time.Second
	headerTimeout = 30 * time.Second
	idleTimeout   = 90 * time.Second
	idlePerHost   = 8
	maxHeader     = 64 << 10 // bytes of the header of an answer
	maxRedirects  = 10
	maxHost       = 253 // bytes of a name (RFC 1035)
)

// Options of a Dialer. The zero value allows the public internet.
type Options struct {
	// Allow are the exceptions of the operator.
	Allow []Allowed
	// Own reports whether an address is one of the platform's own, which are refused like those of a
	// private network; optional. It is called for each connection. It always receives IPv4 addresses
	// in IPv4 form.
	Own func(netip.Addr) bool
	// Resolver resolves names; nil: the system's resolver.
	Resolver *net.Resolver
}

// OnThisServer reports whether an address is one of this server's.
func OnThisServer(a netip.Addr) bool {
	interfaces, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(interfaces, func(i net.Addr) bool {
		n, ok := i.(*net.IPNet)
		return ok && n.IP.Equal(a.AsSlice())
	})
}

// Dialer connects to hosts that tenants name.
type Dialer struct{ opts Options }

// New returns a Dialer.
func New(o Options) *Dialer { return &Dialer{o} }

// Error is the reason why a host was not reached.
type Error struct {
	Host string // as passed to the Dialer, or to the Transport before redirects
	// Rule describes the refused address, such as "a loopback address"; empty if the host is
	// allowed and connecting failed.
	Rule string
	Err  error // the cause, which contains addresses; nil with a Rule

	redirected bool
}

// Error names the host and the rule, or the failure to connect, but no address.
func (e *Error) Error() string { return fmt.Sprintf("host %.*q %s", maxHost, e.Host, e.problem()) }

// Unwrap returns the cause, whose text must not be shown to tenants.
func (e *Error) Unwrap() error { return e.Err }

func (e *Error) problem() string {
	switch {
	case e.Rule != "" && e.redirected:
		return "redirects to " + e.Rule + ", which is not allowed"
	case e.Rule != "":
		return "leads to " + e.Rule + ", which is not allowed"
	case e.redirected:
		return "redirects to a host that cannot be reached: " + connectProblem(e.Err)
	default:
		return "cannot be reached: " + connectProblem(e.Err)
	}
}

func connectProblem(err error) string {
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.Canceled):
		return "the attempt was canceled"
	case errors.As(err, &dns) && dns.IsNotFound:
		return "there is no such name"
	case errors.As(err, &dns):
		return "the name cannot be looked up"
	case timedOut(err):
		return "no answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no way to it"
	default:
		return "connecting failed"
	}
}

func timedOut(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}

type administratorKey struct{}

// WithAdministrator returns a context for connections of an administrator, for whom no address is
// refused.
func WithAdministrator(ctx context.Context) context.Context {
	return context.WithValue(ctx, administratorKey{}, true)
}

func forAdministrator(ctx context.Context) bool {
	is, _ := ctx.Value(administratorKey{}).(bool)
	return is
}

// DialContext connects to address, host:port, over tcp, tcp4 or tcp6. Errors are *Error.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil && network != "tcp" && network != "tcp4" && network != "tcp6" {
		err = net.UnknownNetworkError(network)
	}
	if err != nil {
		return nil, &Error{Host: address, Err: err}
	}
	// Names below localhost are this host (RFC 6761), even if no resolver knows them.
	if name := strings.ToLower(strings.TrimSuffix(host, ".")); name == "localhost" || strings.HasSuffix(name, ".localhost") {
		address = net.JoinHostPort("localhost", port)
	}
	dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second, Resolver: d.opts.Resolver}
	if !forAdministrator(ctx) {
		dialer.ControlContext = func(_ context.Context, _, dialled string, _ syscall.RawConn) error {
			return d.check(host, dialled)
		}
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if err == nil {
		return conn, nil
	}
	if refused, ok := errors.AsType[*Error](err); ok {
		return nil, refused
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return nil, &Error{Host: host, Err: err}
}

// check returns an error if the address must not be dialled for a host.
func (d *Dialer) check(host, dialled string) error {
	at, err := netip.ParseAddrPort(dialled)
	if err != nil {
		return &Error{Host: host, Rule: "an unknown address"}
	}
	for _, a := range d.opts.Allow {
		if a.covers(host, at) {
			return nil
		}
	}
	if rule := rangeOf(at.Addr()); rule != "" {
		return &Error{Host: host, Rule: rule}
	}
	if d.opts.Own != nil && d.opts.Own(plain(at.Addr())) {
		return &Error{Host: host, Rule: "an address of this platform"}
	}
	return nil
}

// Transport is an http.RoundTripper over a Dialer. It does not decompress, and bounds the header of a
// response and the wait for it. The caller must bound the body.
type Transport struct{ tenants, administrators *http.Transport }

// Transport returns a Transport that keeps connections for further requests.
func (d *Dialer) Transport() *Transport {
	transport := func() *http.Transport {
		return &http.Transport{
			DialContext: d.DialContext, ForceAttemptHTTP2: true, DisableCompression: true,
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: headerTimeout, IdleConnTimeout: idleTimeout,
			MaxIdleConnsPerHost: idlePerHost, MaxResponseHeaderBytes: maxHeader,
		}
	}
	return &Transport{tenants: transport(), administrators: transport()}
}

// RoundTrip implements http.RoundTripper. An *Error names the host before redirects.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	pool := t.tenants
	if forAdministrator(req.Context()) {
		pool = t.administrators
	}
	resp, err := pool.RoundTrip(req)
	if err == nil {
		return resp, nil
	}
	first := req
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	if e, ok := errors.AsType[*Error](err); ok && first != req {
		return nil, &Error{Host: first.URL.Hostname(), Rule: e.Rule, Err: e.Err, redirected: true}
	}
	return nil, err
}

// CloseIdleConnections closes unused connections.
func (t *Transport) CloseIdleConnections() {
	t.tenants.CloseIdleConnections()
	t.administrators.CloseIdleConnections()
}

// errRedirects ends a chain of redirects.
var errRedirects = errors.New("too many redirects")

// CheckRedirect is for http.Client. It bounds the number of redirects, and refuses those from TLS to
// plain HTTP.
func CheckRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects || req.URL.Scheme != "https" && via[0].URL.Scheme == "https" {
		return errRedirects
	}
	return nil
}

// Describe explains the failure of a request, or of reading its response, without text of the other
// side. The text is made to follow the name of the host, and tenants may see it.
func Describe(err error) string {
	var (
		unreached   *Error
		certificate *tls.CertificateVerificationError
		authority   x509.UnknownAuthorityError
		hostname    x509.HostnameError
		invalid     x509.CertificateInvalidError
		notTLS      tls.RecordHeaderError
	)
	switch {
	case err == nil:
		return ""
	case errors.As(err, &unreached):
		return unreached.problem()
	case errors.Is(err, errRedirects):
		return "redirects too often, or away from TLS"
	case errors.Is(err, context.Canceled):
		return "was not waited for"
	case timedOut(err):
		return "does not answer in time"
	case errors.As(err, &certificate), errors.As(err, &authority), errors.As(err, &hostname), errors.As(err, &invalid):
		return "has a certificate that is not trusted"
	case errors.As(err, &notTLS), errors.Is(err, http.ErrSchemeMismatch):
		return "does not speak TLS"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "ended the connection early"
	default:
		return "does not answer as HTTP wants it"
	}
}

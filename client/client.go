package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	dialTimeout = 10 * time.Second
	// maxAnswerBytes bounds what a server can make the client hold in memory.
	maxAnswerBytes = 256 << 20
	// readAttempts is how often a read is tried when connections are lost.
	readAttempts = 3
	retryDelay   = 50 * time.Millisecond
	maxRedirects = 5
)

// Client is a connection to one server.
type Client struct {
	base  string // without a trailing slash
	token string
	agent string
	http  *http.Client
	date  atomic.Pointer[time.Time] // of the last answer
}

// The interfaces that a Client offers.
var (
	_ hangar.OrgService        = (*Client)(nil)
	_ hangar.TokenService      = (*Client)(nil)
	_ hangar.AppService        = (*Client)(nil)
	_ hangar.MachineService    = (*Client)(nil)
	_ hangar.LogService        = (*Client)(nil)
	_ hangar.ImageService      = (*Client)(nil)
	_ hangar.PlatformService   = (*Client)(nil)
	_ hangar.SecretService     = (*Client)(nil)
	_ hangar.SecretKeyService  = (*Client)(nil)
	_ hangar.RegistryService   = (*Client)(nil)
	_ hangar.EncryptionService = (*Client)(nil)
	_ hangar.IdentityService   = (*Client)(nil)
	_ hangar.SigningKeyService = (*Client)(nil)
	_ hangar.PeerService       = (*Client)(nil)
	_ hangar.VolumeService     = (*Client)(nil)
)

// Option changes a Client that New makes.
type Option func(*Client)

// WithUserAgent sets the User-Agent header.
func WithUserAgent(agent string) Option { return func(c *Client) { c.agent = agent } }

// WithHTTPClient makes requests through h. Its Timeout must be zero, because it would cut streams. For
// a unix:// address, its Transport must dial the socket.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithRootCAs accepts only certificates of the server that are signed by roots; nil: by the authorities
// of the system.
func WithRootCAs(roots *x509.CertPool) Option {
	return func(c *Client) {
		if t, ok := c.http.Transport.(*http.Transport); ok && roots != nil {
			t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		}
	}
}

// sameOrigin refuses to follow a redirect to another scheme or host, which would receive the token.
func sameOrigin(to *http.Request, from []*http.Request) error {
	if first := from[0].URL; to.URL.Scheme != first.Scheme || to.URL.Host != first.Host {
		return errors.New("the server redirects to another address")
	}
	if len(from) >= maxRedirects {
		return errors.New("the server redirects too often")
	}
	return nil
}

// New returns a Client of the server at address: "http://…", "https://…", "unix:///path/of/socket" or
// "host:port". It does not connect, so the first call reports an invalid address.
func New(address, token string, opts ...Option) *Client {
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
	}
	c := &Client{token: token, agent: "hangar", http: &http.Client{Transport: transport, CheckRedirect: sameOrigin}}
	switch path, isUnix := strings.CutPrefix(address, "unix://"); {
	case isUnix:
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
		c.base = "http://localhost"
	case strings.Contains(address, "://"):
		c.base = strings.TrimRight(address, "/")
	default:
		c.base = "http://" + strings.TrimRight(address, "/")
	}
	for _, opt := range opts {
		opt(c)
	}
	return c
}

// Close closes idle connections. Calls under way continue.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// ServerTime returns the clock of the server at its last answer, in whole seconds. It is zero before the first one.
func (c *Client) ServerTime() time.Time {
	if at := c.date.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// call is one request to the API.
type call struct {
	method string
	path   string
	query  url.Values
	in     any // sent as JSON unless nil
}

func get(path string) call { return call{method: http.MethodGet, path: path} }

// do makes a call and decodes the answer into out, unless that is nil.
func (c *Client) do(ctx context.Context, in call, out any) error {
	res, err := c.send(ctx, in)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body := io.LimitReader(res.Body, maxAnswerBytes)
	if out == nil {
		_, err = io.Copy(io.Discard, body)
	} else if err = json.NewDecoder(body).Decode(out); err == nil {
		// The connection can be reused only when the body has been read to its end.
		_, err = io.Copy(io.Discard, body)
	}
	if err != nil {
		return lost(ctx, in, err)
	}
	return nil
}

// send makes a call and returns an answer that is not an error.
func (c *Client) send(ctx context.Context, in call) (*http.Response, error) {
	var body []byte
	if in.in != nil {
		var err error
		if body, err = json.Marshal(in.in); err != nil {
			return nil, hangar.Errorf(hangar.CodeInvalid, "", "encode the request: %w", err)
		}
	}
	for attempt := 1; ; attempt++ {
		req, err := c.request(ctx, in, body)
		if err != nil {
			return nil, err
		}
		res, err := c.http.Do(req)
		if err == nil {
			if at, err := http.ParseTime(res.Header.Get("Date")); err == nil {
				c.date.Store(&at)
			}
		}
		switch {
		case err == nil && res.StatusCode < http.StatusBadRequest:
			return res, nil
		case err == nil:
			defer res.Body.Close()
			return nil, errorFrom(res)
		case in.method != http.MethodGet || attempt == readAttempts || !connectionLost(err):
			return nil, lost(ctx, in, err)
		}
		if err := pause.For(ctx, time.Duration(attempt)*retryDelay); err != nil {
			return nil, lost(ctx, in, err)
		}
	}
}

func (c *Client) request(ctx context.Context, in call, body []byte) (*http.Request, error) {
	address := c.base + in.path
	if len(in.query) > 0 {
		address += "?" + in.query.Encode()
	}
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, in.method, address, r)
	if err != nil {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "bad address of the server: %w", err)
	}
	req.Header = c.header()
	if nonce := hangar.LeaseNonceFrom(ctx); nonce != "" {
		req.Header.Set(hangar.HeaderLeaseNonce.Neutral, nonce)
		req.Header.Set(hangar.HeaderLeaseNonce.Original, nonce)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

func (c *Client) header() http.Header {
	h := http.Header{"User-Agent": {c.agent}, "Accept": {"application/json"}}
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
	return h
}

// connectionLost reports whether a request may have failed only because a
// connection that was kept open is gone.
func connectionLost(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// lost is the error of a call without an answer. It keeps the context's own error, so that a deadline
// is a timeout and not an unreachable server.
func lost(ctx context.Context, in call, err error) error {
	cause := ctx.Err()
	// A dial is given up at the deadline, which ctx may report a little later.
	if deadline, ok := ctx.Deadline(); cause == nil && ok && !time.Now().Before(deadline) {
		cause = context.DeadlineExceeded
	}
	if cause != nil {
		return fmt.Errorf("%s %s: %w", in.method, in.path, cause)
	}
	if uerr, ok := errors.AsType[*url.Error](err); ok {
		err = uerr.Err
	}
	return hangar.Errorf(hangar.CodeUnavailable, "", "no answer from the server: %w", err)
}

// pathOf joins segments to a path of the API, escaping each.
func pathOf(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

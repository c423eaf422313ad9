package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image/registry"
)

// source is one repository of one registry. Its errors carry hangar codes.
type source interface {
	// digest resolves a tag or digest without transferring the manifest; it answers
	// "" if the registry does not say.
	digest(ctx context.Context, identifier string) (string, error)
	// manifest answers at most limit bytes, not yet checked against a digest.
	manifest(ctx context.Context, identifier string, limit int64) ([]byte, error)
	// blob answers a stream that is not yet checked.
	blob(ctx context.Context, digest string) (io.ReadCloser, error)
}

// open returns the source of a reference.
func (s *Store) open(ctx context.Context, ref reference) (source, error) {
	if named(ref.repository.RegistryStr(), s.opts.Local) {
		return localSource{s.registry, ref.repository.RepositoryStr()}, nil
	}
	base := transport.NewRetry(transport.NewUserAgent(guard{s.client}, "hangar"))
	auth := s.authenticator(ctx, ref.registryName())
	as := loginOf(auth)
	rt, err := transport.NewWithContext(ctx, ref.repository.Registry, auth, base, []string{ref.repository.Scope(transport.PullScope)})
	if err != nil {
		return nil, remoteError(ctx, err, as)
	}
	return &remoteSource{
		client: &http.Client{Transport: rt, CheckRedirect: checkRedirect},
		as:     as,
		base:   fmt.Sprintf("%s://%s/v2/%s/", ref.repository.Scheme(), ref.repository.RegistryStr(), ref.repository.RepositoryStr()),
	}, nil
}

// localSource reads the built-in registry in process.
type localSource struct {
	registry   *registry.Registry
	repository string
}

func (l localSource) digest(_ context.Context, identifier string) (string, error) {
	m, err := l.registry.Manifest(l.repository, identifier)
	return m.Digest, localError(err)
}

func (l localSource) manifest(_ context.Context, identifier string, limit int64) ([]byte, error) {
	m, err := l.registry.Manifest(l.repository, identifier)
	if err == nil && int64(len(m.Raw)) > limit {
		return nil, badImage("manifest is larger than %d bytes", limit)
	}
	return m.Raw, localError(err)
}

func (l localSource) blob(_ context.Context, digest string) (io.ReadCloser, error) {
	f, err := l.registry.OpenBlob(l.repository, digest)
	if err != nil {
		return nil, localError(err)
	}
	return f, nil
}

func localError(err error) error {
	if errors.Is(err, registry.ErrNotFound) {
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "request failed: not found")
	}
	return err
}

// remoteSource speaks the OCI distribution API.
type remoteSource struct {
	client *http.Client
	as     string // who is signed in, for messages
	base   string // URL of the repository, with a slash at the end
}

// manifestTypes are what a registry may answer with. Schema 1 is asked for by
// nobody; a registry that has nothing else says that it has nothing.
const manifestTypes = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, " +
	"application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"

func (r *remoteSource) failure(ctx context.Context, err error) error {
	return remoteError(ctx, err, r.as)
}

func (r *remoteSource) request(ctx context.Context, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(path, "manifests/") {
		req.Header.Set("Accept", manifestTypes)
	} else {
		req.Header.Set("Accept-Encoding", "identity") // the digest is of what is stored
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, r.failure(ctx, err)
	}
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		_ = resp.Body.Close()
		return nil, r.failure(ctx, err)
	}
	return resp, nil
}

func (r *remoteSource) digest(ctx context.Context, identifier string) (string, error) {
	resp, err := r.request(ctx, http.MethodHead, "manifests/"+identifier)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if digest := resp.Header.Get("Docker-Content-Digest"); digestPattern.MatchString(digest) {
		return digest, nil
	}
	return "", nil
}

func (r *remoteSource) manifest(ctx context.Context, identifier string, limit int64) ([]byte, error) {
	resp, err := r.request(ctx, http.MethodGet, "manifests/"+identifier)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, r.failure(ctx, err)
	}
	if int64(len(raw)) > limit {
		return nil, badImage("manifest is larger than %d bytes", limit)
	}
	return raw, nil
}

func (r *remoteSource) blob(ctx context.Context, digest string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	resp, err := r.request(ctx, http.MethodGet, "blobs/"+digest) //nolint:bodyclose // closed by body.Close
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return &body{ctx: ctx, cancel: cancel, rc: resp.Body, as: r.as, idle: time.AfterFunc(idleTimeout, func() { cancel(errIdle) })}, nil
}

// idleTimeout ends a transfer in which nothing arrives.
const idleTimeout = time.Minute

var errIdle = errors.New("nothing arrived for a minute")

// body is a transfer that ends when it stalls.
type body struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	rc     io.ReadCloser
	as     string
	idle   *time.Timer
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.rc.Read(p)
	b.idle.Reset(idleTimeout)
	if err != nil && !errors.Is(err, io.EOF) {
		if cause := context.Cause(b.ctx); cause != nil {
			err = cause
		}
		err = remoteError(b.ctx, err, b.as)
	}
	return n, err
}

func (b *body) Close() error {
	b.idle.Stop()
	b.cancel(nil)
	return b.rc.Close()
}

// remoteError gives what a registry, or the way to it, answers to somebody a code.
func remoteError(ctx context.Context, err error, as string) error {
	var answer *transport.Error
	switch {
	case err == nil || hangar.ReasonOf(err) != "":
		return err
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return err
	case !errors.As(err, &answer):
		return hangar.Errorf(hangar.CodeUnavailable, reasonUnreachable, "registry does not answer: %w", err)
	}
	switch answer.StatusCode {
	case http.StatusNotFound:
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "request failed: not found")
	case http.StatusUnauthorized, http.StatusForbidden:
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "request failed: not found, or access denied %s", as)
	case http.StatusTooManyRequests:
		return hangar.Errorf(hangar.CodeUnavailable, "registry_rate_limited", "registry answers that there were too many requests: %w", err)
	default:
		return hangar.Errorf(hangar.CodeUnavailable, reasonUnreachable, "registry answers with status %d: %w", answer.StatusCode, err)
	}
}

// reasonUnreachable: the registry could not be asked; trying again may help.
const reasonUnreachable = "registry_unreachable"

// guard keeps credentials and images off the open network: plain HTTP goes to this
// host only.
type guard struct{ next http.RoundTripper }

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !plainAllowed(req.URL.Host) {
		return nil, fmt.Errorf("registry %s does not speak TLS", req.URL.Host)
	}
	return g.next.RoundTrip(req)
}

// checkRedirect keeps a registry from making this host ask its own services or the
// metadata service of its cloud.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("too many redirects")
	}
	if addr, err := netip.ParseAddr(req.URL.Hostname()); err == nil && req.URL.Hostname() != via[0].URL.Hostname() {
		if addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsUnspecified() {
			return fmt.Errorf("redirect to the private address %s", addr)
		}
	}
	return nil
}

// newTransport returns the connections that all pulls of a store share.
func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		// Names below localhost are this host (RFC 6761) even where no resolver knows.
		if host, port, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(host, ".localhost") {
			address = net.JoinHostPort("localhost", port)
		}
		return dialer.DialContext(ctx, network, address)
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dial, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 8, DisableCompression: true,
	}
}

// readBlob reads a small blob and checks it.
func readBlob(ctx context.Context, src source, digest string, size, limit int64) ([]byte, error) {
	if size < 0 || size > limit {
		return nil, badImage("config is larger than %d bytes", limit)
	}
	rc, err := src.blob(ctx, digest)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rc.Close() }()
	raw, err := io.ReadAll(io.LimitReader(rc, size+1))
	if err != nil {
		return nil, err
	}
	if got := digestOf(raw); int64(len(raw)) != size || got != digest {
		return nil, badImage("config has the digest %s, not %s", got, digest)
	}
	return raw, nil
}

func digestOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func badImage(format string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadImage, format, args...)
}

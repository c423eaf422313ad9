package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image/registry"
	"github.com/hangar-platform/hangar/internal/minrate"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

// source is one repository of one registry. Its errors carry hangar codes.
type source interface {
	// digest resolves a tag or digest without transferring the manifest. It returns "" if the registry
	// does not report it.
	digest(ctx context.Context, identifier string) (string, error)
	// manifest returns at most limit bytes, not yet verified.
	manifest(ctx context.Context, identifier string, limit int64) ([]byte, error)
	// blob returns a stream that is not yet verified.
	blob(ctx context.Context, digest string) (io.ReadCloser, error)
	// has reports whether the source has a blob. The blob did exist once, and a manifest of the
	// repository that was just read names it.
	has(digest string) bool
}

// open returns the source of a reference, if the puller may use it.
func (s *Store) open(ctx context.Context, who Puller, ref reference) (source, error) {
	if named(ref.repository.RegistryStr(), s.opts.Local) {
		repository, ok := who.repository(ref)
		if !ok {
			return nil, errNotFound()
		}
		return &pushedSource{registry: s.registry, repository: repository, whose: "pull " + string(who.Org)}, nil
	}
	host := ref.registryName()
	base := transport.NewRetry(transport.NewUserAgent(bounded{guard{s.client}, s.opts.Limits}, "hangar"))
	auth := s.authenticator(ctx, host)
	as := "without credentials"
	if auth != authn.Anonymous {
		as = "to the credentials that the platform has for it"
	}
	rt, err := transport.NewWithContext(ctx, ref.repository.Registry, auth, base, []string{ref.repository.Scope(transport.PullScope)})
	if err != nil {
		return nil, remoteError(ctx, err, host, as)
	}
	return &remoteSource{
		client: &http.Client{Transport: rt, CheckRedirect: publicdial.CheckRedirect}, registry: host, as: as,
		base: fmt.Sprintf("%s://%s/v2/%s/", ref.repository.Scheme(), ref.repository.RegistryStr(), ref.repository.RepositoryStr()),
	}, nil
}

// pushedSource reads the built-in registry, in process or from another host that has the content.
type pushedSource struct {
	registry   *registry.Registry
	repository string
	whose      string      // limitKey of its reads from other hosts
	remote     atomic.Bool // the manifest came from another host, which has all its blobs
}

func (p *pushedSource) digest(ctx context.Context, identifier string) (string, error) {
	m, err := p.registry.Lookup(ctx, p.repository, identifier)
	return m.Digest, pushedError(err)
}

func (p *pushedSource) manifest(ctx context.Context, identifier string, limit int64) ([]byte, error) {
	m, err := p.registry.Manifest(ctx, p.repository, identifier, p.whose)
	if err == nil && int64(len(m.Raw)) > limit {
		return nil, badImage("manifest is larger than %d bytes", limit)
	}
	if m.Remote {
		p.remote.Store(true)
	}
	return m.Raw, pushedError(err)
}

func (p *pushedSource) blob(ctx context.Context, digest string) (io.ReadCloser, error) {
	b, err := p.registry.Blob(ctx, p.repository, digest, p.whose)
	if err != nil {
		return nil, pushedError(err)
	}
	return b, nil
}

// has implements source. A host refuses a manifest without its blobs, so the host of a manifest has
// them all.
func (p *pushedSource) has(digest string) bool {
	return p.remote.Load() || p.registry.Has(p.repository, digest)
}

func pushedError(err error) error {
	if errors.Is(err, registry.ErrNotFound) {
		return errNotFound()
	}
	return err
}

func errNotFound() error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "request failed: not found")
}

// remoteSource speaks the OCI distribution API.
type remoteSource struct {
	client   *http.Client
	registry string // as in the reference
	as       string // the user that is logged in, for messages
	base     string // URL of the repository, with a trailing slash
}

// manifestTypes are the accepted media types, without schema 1. A registry that only has schema 1
// reports the image as missing.
const manifestTypes = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, " +
	"application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"

func (r *remoteSource) failure(ctx context.Context, err error) error {
	return remoteError(ctx, err, r.registry, r.as)
}

func (r *remoteSource) request(ctx context.Context, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, http.NoBody)
	if err != nil {
		return nil, r.failure(ctx, err)
	}
	if strings.HasPrefix(path, "manifests/") {
		req.Header.Set("Accept", manifestTypes)
	} else {
		req.Header.Set("Accept-Encoding", "identity") // the digest is that of the stored bytes
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
	resp, err := r.request(context.WithValue(ctx, largeKey{}, true), http.MethodGet, "blobs/"+digest) //nolint:bodyclose // closed by blobBody
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return &blobBody{ctx: ctx, cancel: cancel, rc: resp.Body, source: r}, nil
}

// has implements source. The registry is trusted to keep the blobs of its manifests.
func (r *remoteSource) has(string) bool { return true }

// blobBody is the transfer of a blob. It translates errors with remoteError.
type blobBody struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	rc     io.ReadCloser
	source *remoteSource
}

func (b *blobBody) Read(p []byte) (int, error) {
	n, err := b.rc.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.source.failure(b.ctx, err)
	}
	return n, err
}

func (b *blobBody) Close() error {
	b.cancel(nil)
	return b.rc.Close()
}

// remoteError gives a registry or network failure a code and a text of our own. It does not use the
// registry's text, because anyone may have written it.
func remoteError(ctx context.Context, err error, host, as string) error {
	var answer *transport.Error
	var unreached *publicdial.Error
	switch {
	case err == nil || hangar.ReasonOf(err) != "":
		return err
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, minrate.ErrTooSlow):
		return hangar.Errorf(hangar.CodeUnavailable, reasonUnreachable, "registry %s sends too slowly", host)
	case errors.As(err, &unreached) && unreached.Rule != "":
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonRegistryNotAllowed, "registry %s %s", host, publicdial.Describe(err))
	case errors.Is(err, errPlain):
		return hangar.Errorf(hangar.CodeUnavailable, reasonUnreachable, "registry %s does not speak TLS", host)
	case !errors.As(err, &answer):
		return hangar.Errorf(hangar.CodeUnavailable, reasonUnreachable, "registry %s %s", host, publicdial.Describe(err))
	}
	switch answer.StatusCode {
	case http.StatusNotFound:
		return errNotFound()
	case http.StatusUnauthorized, http.StatusForbidden:
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "request failed: not found, or access denied %s", as)
	case http.StatusTooManyRequests:
		return hangar.Errorf(hangar.CodeUnavailable, "registry_rate_limited", "registry %s refuses for now: too many requests", host)
	default:
		return hangar.Errorf(hangar.CodeUnavailable, reasonUnreachable, "registry %s answers with status %d", host, answer.StatusCode)
	}
}

// reasonUnreachable means that the registry gave no usable answer; a retry may help.
const reasonUnreachable = "registry_unreachable"

// guard keeps credentials and images off unencrypted networks: it allows plain HTTP to this host
// only.
type guard struct{ next http.RoundTripper }

var errPlain = errors.New("registry does not speak TLS")

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !plainAllowed(req.URL.Host) {
		return nil, errPlain
	}
	return g.next.RoundTrip(req)
}

// readBlob reads a small blob and verifies it.
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
	if got := registry.Digest(raw); int64(len(raw)) != size || got != digest {
		return nil, badImage("config has the digest %s, not %s", got, digest)
	}
	return raw, nil
}

func badImage(format string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadImage, format, args...)
}

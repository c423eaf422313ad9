package ociimage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/hangar-platform/hangar"
)

// Registry has the settings of a registry's client.
type Registry struct {
	// Plain selects HTTP only; otherwise only HTTPS is used. So the token never crosses a network
	// unencrypted by accident.
	Plain bool
	Roots *x509.CertPool // authorities for its certificate; nil: the system's authorities
	Token string         // the password; empty: none
}

// Push sends an image to a registry and returns its digest. ref is registry/repository[:tag].
// progress, which may be nil, receives the number of bytes sent and the total, and must not block.
// Push does not send layers again that the registry has. If the registry refuses, the error has a
// code: CodeUnauthenticated, CodeNotFound, CodeForbidden, CodeExhausted or CodeUnavailable.
func Push(ctx context.Context, img v1.Image, ref string, to Registry, progress func(done, total int64)) (v1.Hash, error) {
	tag, err := name.NewTag(ref, to.scheme()...)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("reference %q: %w", ref, err)
	}
	options, end := to.options(ctx)
	defer end()
	if progress != nil {
		updates := make(chan v1.Update, 64) // closed by remote.Write
		options = append(options, remote.WithProgress(updates))
		heard := make(chan struct{})
		go func() {
			defer close(heard)
			for u := range updates {
				if u.Error == nil {
					progress(u.Complete, u.Total)
				}
			}
		}()
		defer func() { <-heard }()
	}
	if err := remote.Write(tag, img, options...); err != nil {
		return v1.Hash{}, refusal("push "+ref, err)
	}
	return img.Digest()
}

// Pushed is a tag of a repository.
type Pushed struct {
	Repository string `json:"repository"`
	Tag        string `json:"tag"`
	Digest     string `json:"digest"` // of the manifest, or of the index
}

// List returns the tags of all repositories of a registry, by name. Errors are those of Push.
func List(ctx context.Context, host string, from Registry) ([]Pushed, error) {
	registry, err := name.NewRegistry(host, from.scheme()...)
	if err != nil {
		return nil, err
	}
	options, end := from.options(ctx)
	defer end()
	repositories, err := remote.Catalog(ctx, registry, options...)
	if err != nil {
		return nil, refusal("list the repositories of "+host, err)
	}
	var list []Pushed
	for _, path := range repositories {
		repository := registry.Repo(path)
		tags, err := remote.List(repository, options...)
		if gone(err) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, refusal("list the tags of "+path, err)
		}
		slices.Sort(tags)
		for _, tag := range tags {
			manifest, err := remote.Head(repository.Tag(tag), options...)
			if gone(err) {
				continue
			}
			if err != nil {
				return nil, refusal("read "+path+":"+tag, err)
			}
			list = append(list, Pushed{path, tag, manifest.Digest.String()})
		}
	}
	return list, nil
}

// Delete removes a tag from a registry or, with a digest, a manifest and its tags. ref is
// registry/repository:tag or registry/repository@digest. Errors are those of Push.
func Delete(ctx context.Context, ref string, from Registry) error {
	target, err := name.ParseReference(ref, from.scheme()...)
	if err != nil {
		return hangar.Errorf(hangar.CodeInvalid, "", "reference %q: %w", ref, err)
	}
	options, end := from.options(ctx)
	defer end()
	if err := remote.Delete(target, options...); err != nil {
		return refusal("remove "+ref, err)
	}
	return nil
}

func gone(err error) bool {
	refused, ok := errors.AsType[*transport.Error](err)
	return ok && refused.StatusCode == http.StatusNotFound
}

func (r Registry) scheme() []name.Option {
	if r.Plain {
		return []name.Option{name.Insecure}
	}
	return nil
}

// options are the options of a client of the registry. end closes its connections.
func (r Registry) options(ctx context.Context) (_ []remote.Option, end func()) {
	conns := newTransport(r.Roots)
	options := []remote.Option{remote.WithContext(ctx), remote.WithTransport(oneScheme{conns, r.Plain}), remote.WithUserAgent("hangar")}
	if r.Token != "" {
		options = append(options, remote.WithAuth(authn.FromConfig(authn.AuthConfig{Username: "hangar", Password: r.Token})))
	}
	return options, conns.CloseIdleConnections
}

// refusal gives an error of the registry the code for its status.
func refusal(what string, err error) error {
	codes := map[int]hangar.Code{
		http.StatusUnauthorized: hangar.CodeUnauthenticated, http.StatusForbidden: hangar.CodeForbidden,
		http.StatusTooManyRequests: hangar.CodeExhausted, http.StatusServiceUnavailable: hangar.CodeUnavailable,
		http.StatusInsufficientStorage: hangar.CodeExhausted, http.StatusNotFound: hangar.CodeNotFound,
	}
	if refused, ok := errors.AsType[*transport.Error](err); ok && codes[refused.StatusCode] != "" {
		return hangar.Errorf(codes[refused.StatusCode], "", "%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// oneScheme refuses requests with the other scheme: the library tries both for registries that it
// considers private.
type oneScheme struct {
	*http.Transport
	plain bool
}

// RoundTrip implements http.RoundTripper.
func (t oneScheme) RoundTrip(r *http.Request) (*http.Response, error) {
	if (r.URL.Scheme == "http") != t.plain {
		return nil, fmt.Errorf("%s is not spoken to this registry", r.URL.Scheme)
	}
	return t.Transport.RoundTrip(r)
}

// newTransport connects to names below localhost on this host (RFC 6761), whether or not a resolver
// knows them.
func newTransport(roots *x509.CertPool) *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 8,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if host, port, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(host, ".localhost") {
				address = net.JoinHostPort("localhost", port)
			}
			return dialer.DialContext(ctx, network, address)
		},
	}
}

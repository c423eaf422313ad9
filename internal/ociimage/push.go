package ociimage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/hangar-platform/hangar"
)

// Registry is where and how an image is pushed.
type Registry struct {
	// Plain is for a registry that speaks HTTP. Nothing else is spoken to it then, and
	// nothing but HTTPS otherwise: the token never crosses a network in the clear unasked.
	Plain bool
	Roots *x509.CertPool // authorities for its certificate; nil: the system's authorities
	Token string         // the password; empty: none
}

// Push sends an image to a registry and returns its digest. ref is registry/repository[:tag].
// progress, which may be nil, receives the bytes done and in all, and must not block. Layers that
// the registry has are not sent again. A refusal by the registry has a code: CodeUnauthenticated,
// CodeForbidden, CodeExhausted or CodeUnavailable.
func Push(ctx context.Context, img v1.Image, ref string, to Registry, progress func(done, total int64)) (v1.Hash, error) {
	var insecure []name.Option
	if to.Plain {
		insecure = append(insecure, name.Insecure)
	}
	tag, err := name.NewTag(ref, insecure...)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("reference %q: %w", ref, err)
	}
	conns := newTransport(to.Roots)
	defer conns.CloseIdleConnections()
	options := []remote.Option{remote.WithContext(ctx), remote.WithTransport(oneScheme{conns, to.Plain}), remote.WithUserAgent("hangar")}
	if to.Token != "" {
		options = append(options, remote.WithAuth(authn.FromConfig(authn.AuthConfig{Username: "hangar", Password: to.Token})))
	}
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
		return v1.Hash{}, pushError(ref, err)
	}
	return img.Digest()
}

// pushError gives a refusal by the registry the code of its status.
func pushError(ref string, err error) error {
	codes := map[int]hangar.Code{
		http.StatusUnauthorized: hangar.CodeUnauthenticated, http.StatusForbidden: hangar.CodeForbidden,
		http.StatusTooManyRequests: hangar.CodeExhausted, http.StatusServiceUnavailable: hangar.CodeUnavailable,
		http.StatusInsufficientStorage: hangar.CodeExhausted,
	}
	if refused, ok := errors.AsType[*transport.Error](err); ok && codes[refused.StatusCode] != "" {
		return hangar.Errorf(codes[refused.StatusCode], "", "push %s: %w", ref, err)
	}
	return fmt.Errorf("push %s: %w", ref, err)
}

// oneScheme refuses requests by the other of HTTP and HTTPS: the library tries both where
// it takes the registry for a private one, and follows what answers.
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

// newTransport reaches names below localhost on this host (RFC 6761), whether or
// not a resolver knows them.
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

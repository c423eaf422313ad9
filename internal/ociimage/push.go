package ociimage

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Push sends an image to a registry and answers the reference to use, pinned by its
// digest. ref is registry/repository[:tag]; token is the password, empty for none.
// progress, which may be nil, hears bytes done and of all, and must not block.
// Layers that the registry has are not sent again. Plain HTTP is spoken to names of
// this host and to private addresses only.
func Push(ctx context.Context, img v1.Image, ref, token string, progress func(done, total int64)) (string, error) {
	tag, err := name.NewTag(ref)
	if err != nil {
		return "", fmt.Errorf("reference %q: %w", ref, err)
	}
	transport := newTransport()
	defer transport.CloseIdleConnections()
	options := []remote.Option{remote.WithContext(ctx), remote.WithTransport(transport), remote.WithUserAgent("hangar")}
	if token != "" {
		options = append(options, remote.WithAuth(authn.FromConfig(authn.AuthConfig{Username: "hangar", Password: token})))
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
		return "", fmt.Errorf("push %s: %w", ref, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return "", err
	}
	return tag.Name() + "@" + digest.String(), nil
}

// newTransport reaches names below localhost on this host (RFC 6761), whether or
// not a resolver knows them.
func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true,
		IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 8,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if host, port, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(host, ".localhost") {
				address = net.JoinHostPort("localhost", port)
			}
			return dialer.DialContext(ctx, network, address)
		},
	}
}

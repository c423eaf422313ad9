package image

import (
	"context"
	"io"
	"net/http"

	"github.com/hangar-platform/hangar/internal/minrate"
)

// bounded is a transport to registries whose answers have a least rate and, except for blobs that
// are streamed, a largest size. It is below all requests to registries, also for tokens.
type bounded struct {
	next   http.RoundTripper
	limits Limits
}

// largeKey is the key of a context in which the body of an answer may have any size.
type largeKey struct{}

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	resp, err := b.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	// A redirect is recognized by the request that was sent.
	resp.Request = req
	body := minrate.New(ctx, cancel, resp.Body, b.limits.MinRate, b.limits.RateWindow)
	resp.Body = body
	if large, _ := req.Context().Value(largeKey{}).(bool); !large || resp.StatusCode != http.StatusOK {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(body, b.limits.ManifestBytes+1), body}
	}
	return resp, nil
}

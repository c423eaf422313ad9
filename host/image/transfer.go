package image

import (
	"context"
	"io"
	"net/http"

	"github.com/hangar-platform/hangar/internal/minrate"
)

// bounded is a transport to registries. It enforces a minimum rate and, except for streamed blobs, a
// maximum size of responses. All requests to registries use it, including those for tokens.
type bounded struct {
	next   http.RoundTripper
	limits Limits
}

// largeKey is the context key that lifts the size limit of an answer.
type largeKey struct{}

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	resp, err := b.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	// The registry client recognizes a redirect by the request that was sent.
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

package image

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

var errTooSlow = errors.New("the transfer is too slow")

// bounded is a way to registries whose answers have a least rate and, but for blobs that are
// streamed, a largest size. It is below all that talks to registries, also for tokens.
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
	// Redirects are told by the request that was sent.
	resp.Request = req
	body := &pacedBody{
		rc: resp.Body, ctx: ctx, cancel: cancel, window: b.limits.RateWindow,
		need: int64(float64(b.limits.MinRate) * b.limits.RateWindow.Seconds()), left: b.limits.ManifestBytes + 1,
	}
	if large, _ := req.Context().Value(largeKey{}).(bool); large && resp.StatusCode == http.StatusOK {
		body.left = -1
	}
	body.timer = time.AfterFunc(time.Hour, func() { cancel(errTooSlow) })
	body.timer.Stop()
	resp.Body = body
	return resp, nil
}

// pacedBody ends a transfer that does not bring need bytes in each window. What the reader
// does between its reads does not count.
type pacedBody struct {
	rc     io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	window time.Duration
	need   int64
	left   int64 // bytes that are handed on; negative: all

	got    int64 // in this window
	waited time.Duration
}

func (p *pacedBody) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	if p.left > 0 && int64(len(b)) > p.left {
		b = b[:p.left]
	}
	began := time.Now()
	p.timer.Reset(max(p.window-p.waited, 0))
	n, err := p.rc.Read(b)
	p.timer.Stop()
	p.got, p.waited = p.got+int64(n), p.waited+time.Since(began)
	if p.got >= p.need {
		p.got, p.waited = 0, 0
	}
	if p.left > 0 {
		p.left -= int64(n)
	}
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(p.ctx), errTooSlow) {
		err = errTooSlow
	}
	return n, err
}

func (p *pacedBody) Close() error {
	p.timer.Stop()
	p.cancel(nil)
	return p.rc.Close()
}

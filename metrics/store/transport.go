package store

import (
	"context"
	"errors"
	"io"
	"net/http"
)

// errClosed is the cause of a request's failure after Close.
var errClosed = errors.New("the metrics store is closed")

// errResting is the cause of a request's failure while Rest ends the child.
var errResting = errors.New("the metrics store is stopping, because another server takes over its task")

// RoundTrip sends a request to the child. It implements http.RoundTripper for Client.
func (s *Store) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.startSupervisor()
	away, epoch := s.away, s.epoch
	s.mu.Unlock()
	if s.workers.Context.Err() != nil {
		away = errClosed
	}
	if away != nil {
		closeBody(r)
		return nil, unavailable(away)
	}
	// A request in the queue of the listener must not wait for a child that does not start.
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(epoch, func() { cancel(context.Cause(epoch)) })
	done := func() { stop(); cancel(nil) }
	resp, err := s.transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		done()
		if r.Context().Err() != nil {
			return nil, err
		}
		return nil, unavailable(err)
	}
	resp.Body = &body{ReadCloser: resp.Body, request: r.Context(), done: done}
	return resp, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close() // required of a RoundTripper; the error does not matter
	}
}

// body is the body of a response. If it breaks off because the child has ended, its error says so.
type body struct {
	io.ReadCloser
	request context.Context //nolint:containedctx // of the request that it answers
	done    func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && b.request.Err() == nil {
		err = unavailable(err)
	}
	return n, err
}

func (b *body) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

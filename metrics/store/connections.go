package store

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// connections sends requests over a unix socket, each in the goroutine of its caller. It avoids the
// switches between goroutines and processors of http.Transport, which has two goroutines for each
// connection: these took a fifth of the time of a query of half a millisecond. It speaks HTTP/1.1 to
// a server of this program, which sends at most an error before it has read a request. It does not
// support proxies, compression, trailers and interim responses.
type connections struct {
	address string // of the socket
	most    int    // idle connections that are kept

	mu     sync.Mutex // guards what follows
	idle   []*connection
	closer *time.Timer // closes idle connections; nil: none
}

// idleTime is how long an idle connection is kept.
const idleTime = time.Minute

// connection has one request at a time.
type connection struct {
	net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
	used bool // for an earlier request
	any  bool // a part of the response was read
	free time.Time
}

const (
	readRoom  = 16 << 10 // bytes of a response that are read at a time
	writeRoom = 16 << 10 // largest request in one write, in bytes
)

// Read records that a part of the response was read.
func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.any = c.any || n > 0
	return n, err
}

// RoundTrip implements http.RoundTripper. If the server has closed an idle connection meanwhile, it
// sends the request again over another one, if the body can be read again.
func (p *connections) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		c, err := p.take(r.Context())
		if err != nil {
			closeBody(r)
			if ctx := r.Context(); ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
		resp, err := p.exchange(c, r)
		if err == nil {
			return resp, nil
		}
		if !c.used || c.any || r.Context().Err() != nil {
			return nil, err
		}
		if r.Body != nil && r.Body != http.NoBody {
			if r.GetBody == nil {
				return nil, err
			}
			again := *r
			if again.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
			r = &again
		}
	}
}

// take returns the idle connection that was used last, or a new one.
func (p *connections) take(ctx context.Context) (*connection, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		c.used, c.any = true, false
		return c, nil
	}
	p.mu.Unlock()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", p.address)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn}
	c.in, c.out = bufio.NewReaderSize(c, readRoom), bufio.NewWriterSize(conn, writeRoom)
	return c, nil
}

// exchange sends a request and returns the header of the response. From then on the connection
// belongs to the response. On an error it is closed.
func (p *connections) exchange(c *connection, r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // the next read returns the error
	err := r.Write(c.out)
	if err == nil {
		err = c.out.Flush()
	}
	unsent := err
	resp, err := http.ReadResponse(c.in, r) // the server may have responded before it has read everything
	if err != nil {
		err = errors.Join(unsent, err)
		stop()
		_ = c.Close() // the error above matters
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	body := &answerBody{from: resp.Body, ctx: ctx, ended: func(whole bool) {
		if stop() && whole && unsent == nil && !resp.Close && c.in.Buffered() == 0 {
			p.keep(c)
		} else {
			_ = c.Close() // the response is complete, or its rest is not needed
		}
	}}
	if resp.Body == http.NoBody {
		body.end(true)
	}
	resp.Body = body
	return resp, nil
}

// answerBody is the body of a response. Its connection can be reused after the body was read to its
// end.
type answerBody struct {
	from  io.Reader
	ctx   context.Context  //nolint:containedctx // of the request that it answers
	ended func(whole bool) // nil after the first call
}

func (b *answerBody) Read(p []byte) (int, error) {
	if b.ended == nil {
		return 0, io.EOF
	}
	n, err := b.from.Read(p)
	if err != nil {
		if !errors.Is(err, io.EOF) && b.ctx.Err() != nil {
			err = context.Cause(b.ctx)
		}
		b.end(errors.Is(err, io.EOF))
	}
	return n, err
}

// Close discards the unread rest.
func (b *answerBody) Close() error {
	b.end(false)
	return nil
}

func (b *answerBody) end(whole bool) {
	if b.ended != nil {
		b.ended(whole)
		b.ended = nil
	}
}

// keep keeps a connection for the next request.
func (p *connections) keep(c *connection) {
	c.free = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) >= p.most {
		_ = c.Close() // it has no request
		return
	}
	p.idle = append(p.idle, c)
	if p.closer == nil {
		p.closer = time.AfterFunc(idleTime, p.closeOld)
	}
}

// closeOld closes the connections that were idle for idleTime.
func (p *connections) closeOld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := 0
	for old < len(p.idle) && time.Since(p.idle[old].free) >= idleTime {
		old++
	}
	p.closeFirst(old)
	if p.closer = nil; len(p.idle) > 0 {
		p.closer = time.AfterFunc(idleTime-time.Since(p.idle[0].free), p.closeOld)
	}
}

// closeFirst closes the connections that were idle longest. p.mu is held.
func (p *connections) closeFirst(n int) {
	for i, c := range p.idle[:n] {
		_ = c.Close() // it has no request
		p.idle[i] = nil
	}
	p.idle = append(p.idle[:0], p.idle[n:]...)
	clear(p.idle[len(p.idle):cap(p.idle)])
}

// CloseIdleConnections closes the idle connections.
func (p *connections) CloseIdleConnections() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeFirst(len(p.idle))
	if p.closer != nil {
		p.closer.Stop()
		p.closer = nil
	}
}

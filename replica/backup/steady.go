package backup

import (
	"context"
	"errors"
	"io"
	"time"
)

// requestTime is how long a request of the store may make no progress.
const requestTime = 10 * time.Minute

// errSilent is the cause of the end of a request.
var errSilent = errors.New("the store has made no progress for " + requestTime.String())

// steady is a Store whose requests end when they make no progress.
type steady struct{ Store }

// patience ends a request that makes no progress.
type patience struct {
	ctx   context.Context //nolint:containedctx // of one request
	end   context.CancelCauseFunc
	timer *time.Timer
}

func newPatience(ctx context.Context) *patience {
	ctx, end := context.WithCancelCause(ctx)
	return &patience{ctx, end, time.AfterFunc(requestTime, func() { end(errSilent) })}
}

// progress starts the time again.
func (p *patience) progress() { p.timer.Reset(requestTime) }

// because adds the cause to the error of a request that was ended.
func (p *patience) because(err error) error {
	if cause := context.Cause(p.ctx); err != nil && errors.Is(cause, errSilent) {
		return errors.Join(cause, err)
	}
	return err
}

func (p *patience) stop() {
	p.timer.Stop()
	p.end(nil)
}

// List implements Store.
func (s steady) List(ctx context.Context, prefix string, each func(name string, size int64) error) error {
	p := newPatience(ctx)
	defer p.stop()
	return p.because(s.Store.List(p.ctx, prefix, func(name string, size int64) error {
		p.progress()
		return each(name, size)
	}))
}

// content is what objects are made of. A bucket reads parts of it.
type content interface {
	io.ReadSeeker
	io.ReaderAt
}

// read is content whose reads are progress.
type read struct {
	content

	p *patience
}

// Read implements io.Reader.
func (r read) Read(b []byte) (int, error) {
	r.p.progress()
	return r.content.Read(b)
}

// ReadAt implements io.ReaderAt.
func (r read) ReadAt(b []byte, off int64) (int, error) {
	r.p.progress()
	return r.content.ReadAt(b, off)
}

// Put implements Store.
func (s steady) Put(ctx context.Context, name string, r io.Reader, size int64) error {
	p := newPatience(ctx)
	defer p.stop()
	if c, ok := r.(content); ok {
		r = read{c, p}
	}
	return p.because(s.Store.Put(p.ctx, name, r, size))
}

// Get implements Store.
func (s steady) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	p := newPatience(ctx)
	r, err := s.Store.Get(p.ctx, name)
	p.timer.Stop()
	if err != nil {
		err = p.because(err)
		p.stop()
		return nil, err
	}
	return body{r, p}, nil
}

// body is an object that is read. Between reads, time does not count.
type body struct {
	io.ReadCloser

	p *patience
}

// Read implements io.Reader.
func (b body) Read(to []byte) (int, error) {
	b.p.progress()
	n, err := b.ReadCloser.Read(to)
	b.p.timer.Stop()
	return n, b.p.because(err)
}

// Close implements io.Closer.
func (b body) Close() error {
	b.p.stop()
	return b.ReadCloser.Close()
}

// Remove implements Store.
func (s steady) Remove(ctx context.Context, name string) error {
	p := newPatience(ctx)
	defer p.stop()
	return p.because(s.Store.Remove(p.ctx, name))
}

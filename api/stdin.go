package api

import (
	"context"
	"io"
	"sync"
)

// stdin is the input of a command: what the client has sent and the command has not read yet, up to a
// limit. Unlike an io.Pipe it reads ahead, so that new sizes and the end of the connection are noticed
// while a command does not read.
type stdin struct {
	limit int

	mu     sync.Mutex // guards what follows
	buf    []byte
	closed bool
	moved  chan struct{} // closed and replaced whenever the above changes
}

func newStdin(limit int) *stdin { return &stdin{limit: limit, moved: make(chan struct{})} }

// changed wakes all waiters. The caller holds mu.
func (i *stdin) changed() {
	close(i.moved)
	i.moved = make(chan struct{})
}

// put adds p, waiting for room. It reports false when ctx ended first. After close it drops p.
func (i *stdin) put(ctx context.Context, p []byte) bool {
	for {
		i.mu.Lock()
		if i.closed {
			i.mu.Unlock()
			return true
		}
		if len(i.buf)+len(p) <= i.limit || len(i.buf) == 0 {
			i.buf = append(i.buf, p...)
			i.changed()
			i.mu.Unlock()
			return true
		}
		moved := i.moved
		i.mu.Unlock()
		select {
		case <-ctx.Done():
			return false
		case <-moved:
		}
	}
}

// Read implements io.Reader. After close it returns what is left, then io.EOF.
func (i *stdin) Read(p []byte) (int, error) {
	for {
		i.mu.Lock()
		if len(i.buf) > 0 {
			n := copy(p, i.buf)
			i.buf = i.buf[n:]
			if len(i.buf) == 0 {
				i.buf = nil
			}
			i.changed()
			i.mu.Unlock()
			return n, nil
		}
		closed, moved := i.closed, i.moved
		i.mu.Unlock()
		if closed || len(p) == 0 {
			return 0, endOf(closed)
		}
		<-moved
	}
}

func endOf(closed bool) error {
	if closed {
		return io.EOF
	}
	return nil
}

// close ends the input. It may be repeated.
func (i *stdin) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.closed {
		i.closed = true
		i.changed()
	}
}

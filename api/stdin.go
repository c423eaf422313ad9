package api

import (
	"context"
	"sync"
)

// stdin is the input of a command: what the client has sent and the command has not read yet, up to a
// limit. Unlike an io.Pipe it reads ahead, so that new sizes and the end of the connection are noticed
// while a command does not read.
type stdin struct {
	limit int

	mu    sync.Mutex // guards what follows
	buf   []byte
	end   error         // io.EOF, or why the input is not complete; nil: it goes on
	moved chan struct{} // closed and replaced whenever the above changes
}

func newStdin(limit int) *stdin { return &stdin{limit: limit, moved: make(chan struct{})} }

// changed wakes all waiters. The caller holds mu.
func (i *stdin) changed() {
	close(i.moved)
	i.moved = make(chan struct{})
}

// put adds p, waiting for room. It reports false when ctx ended first. After finish it drops p.
func (i *stdin) put(ctx context.Context, p []byte) bool {
	for {
		i.mu.Lock()
		if i.end != nil {
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

// Read implements io.Reader. After finish it returns what is left, then the error of that.
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
		end, moved := i.end, i.moved
		i.mu.Unlock()
		if end != nil || len(p) == 0 {
			return 0, end
		}
		<-moved
	}
}

// finish ends the input, with io.EOF if it is complete. Only the first call counts.
func (i *stdin) finish(end error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.end == nil {
		i.end = end
		i.changed()
	}
}

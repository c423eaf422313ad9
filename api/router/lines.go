package router

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// Lines writes JSON values to a client as they come, one per line.
type Lines struct {
	ctx     context.Context //nolint:containedctx // of the request, whose writes they are
	mu      sync.Mutex      // guards all that follows, and w
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
	err     error // the first error of a write; nothing is written after it

	stop    chan struct{} // closed by End
	stopped chan struct{} // closed when beat has ended
	hurry   func()        // keeps the end of ctx from shortening deadlines
}

// NewLines starts the keepalives. The caller must call End.
func NewLines(ctx context.Context, w http.ResponseWriter) *Lines {
	l := &Lines{ctx: ctx, w: w, control: http.NewResponseController(w), stop: make(chan struct{}), stopped: make(chan struct{})}
	go l.beat()
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(hurried)
		l.bound()
	})
	l.hurry = func() {
		if !stop() {
			<-hurried
		}
	}
	return l
}

// bound bounds the time of a write, including one that is under way. A client that does not read must
// not hold up an end.
func (l *Lines) bound() {
	_ = l.control.SetWriteDeadline(time.Now().Add(StreamTimeout))
	if l.ctx.Err() != nil {
		_ = l.control.SetWriteDeadline(time.Now().Add(EndTimeout))
	}
}

// Send writes a value as one line.
func (l *Lines) Send(v any) error {
	raw, err := encode(v)
	if err != nil {
		return err
	}
	return l.sendRaw(raw)
}

func (l *Lines) sendRaw(raw []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/x-ndjson")
		l.w.Header().Set("Cache-Control", "no-store")
		l.w.WriteHeader(http.StatusOK)
	}
	l.bound()
	if _, l.err = l.w.Write(raw); l.err == nil {
		l.err = l.control.Flush()
	}
	return l.err
}

// Begin makes the client see that the stream is open.
func (l *Lines) Begin() error { return l.sendRaw([]byte("\n")) }

func (l *Lines) beat() {
	defer close(l.stopped)
	t := time.NewTicker(Heartbeat)
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-t.C:
			if l.sendRaw([]byte("\n")) != nil {
				return
			}
		}
	}
}

// End stops the keepalives. If nothing was written yet, it returns err for the caller to answer.
// Otherwise it writes err as the last line.
func (l *Lines) End(err error) error {
	close(l.stop)
	<-l.stopped
	defer l.hurry()
	l.mu.Lock()
	begun := l.begun
	l.mu.Unlock()
	if err != nil && begun {
		// An error is of no use to a client that is gone.
		_ = l.Send(Describe(EndedBy(l.ctx, err)))
		return nil
	}
	if err == nil && !begun {
		_ = l.Begin()
	}
	return err
}

package api

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/view"
)

// answer is what a handler wants written.
type answer struct {
	status int    // 0: 200
	body   any    // nil: none
	page   []byte // HTML instead of a body
	raw    []byte // instead of a body: what is sent as media
	media  string
	header http.Header
}

func ok(body any) (answer, error) { return answer{body: body}, nil }

// doneView is the answer of verbs that have nothing to tell.
type doneView struct {
	OK bool `json:"ok"`
}

// done is the answer of verbs.
func done() (answer, error) {
	return ok(doneView{true})
}

// write sends an answer.
func (s *server) write(w http.ResponseWriter, r *http.Request, a answer) {
	status := a.status
	if status == 0 {
		status = http.StatusOK
	}
	switch {
	case a.page != nil:
		// The page needs its own style and nothing from anywhere.
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'")
		s.writeRaw(w, status, mediaHTML+"; charset=utf-8", a.page)
		return
	case a.raw != nil:
		s.writeRaw(w, status, a.media, a.raw)
		return
	case a.body == nil:
		w.WriteHeader(status)
		return
	}
	buffer := buffers.Get().(*bytes.Buffer)
	defer release(buffer)
	if err := view.Encode(buffer, a.body); err != nil {
		s.writeError(w, r, hangar.Errorf(hangar.CodeInternal, "", "encode the answer: %w", err))
		return
	}
	s.writeRaw(w, status, mediaJSON, buffer.Bytes())
}

func (s *server) writeBody(w http.ResponseWriter, status int, body errorBody) {
	raw, err := encode(body)
	if err != nil {
		raw, status = []byte(`{"error":"internal error","code":"internal"}`), http.StatusInternalServerError
	}
	s.writeRaw(w, status, mediaJSON, raw)
}

// writeRaw is the one place from which plain answers leave.
func (s *server) writeRaw(w http.ResponseWriter, status int, media string, raw []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout))
	w.Header().Set("Content-Type", media)
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// A client that is gone cannot be told.
	_, _ = w.Write(raw) //nolint:gosec // JSON or escaped HTML, and sent as nothing else
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := view.Encode(&b, v)
	return b.Bytes(), err
}

// buffers are for answers, which are copied when they are sent.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// keptBuffer bounds a buffer that is kept for the next answer: one of a list of some
// thousand Machines.
const keptBuffer = 4 << 20

func release(b *bytes.Buffer) {
	if b.Cap() <= keptBuffer {
		b.Reset()
		buffers.Put(b)
	}
}

// lines writes JSON values to a client as they come, one per line.
type lines struct {
	ctx     context.Context //nolint:containedctx // of the request, whose writes they are
	mu      sync.Mutex      // guards all that follows, and w
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
	err     error // the first error of a write; nothing is written after it

	stop    chan struct{} // closed by end
	stopped chan struct{} // closed when the signs of life have ended
	hurry   func()        // ends the haste that the end of ctx causes
}

// newLines starts the signs of life. The caller calls end.
func newLines(ctx context.Context, w http.ResponseWriter) *lines {
	l := &lines{ctx: ctx, w: w, control: http.NewResponseController(w), stop: make(chan struct{}), stopped: make(chan struct{})}
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

// bound bounds the time of a write, also of one that is under way: a client that does
// not read must not hold what has to end.
func (l *lines) bound() {
	_ = l.control.SetWriteDeadline(time.Now().Add(streamTimeout))
	if l.ctx.Err() != nil {
		_ = l.control.SetWriteDeadline(time.Now().Add(endTimeout))
	}
}

// send writes a value as one line.
func (l *lines) send(v any) error {
	raw, err := encode(v)
	if err != nil {
		return err
	}
	return l.sendRaw(raw)
}

func (l *lines) sendRaw(raw []byte) error {
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

// begin makes the client see that the stream is open.
func (l *lines) begin() error { return l.sendRaw([]byte("\n")) }

func (l *lines) beat() {
	defer close(l.stopped)
	t := time.NewTicker(heartbeat)
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

// end stops the signs of life. An error that nothing was written before is the
// caller's to answer; after that, it is the last line.
func (l *lines) end(err error) error {
	close(l.stop)
	<-l.stopped
	defer l.hurry()
	l.mu.Lock()
	begun := l.begun
	l.mu.Unlock()
	if err != nil && begun {
		// A client that is gone cannot be told.
		_ = l.send(describe(endedBy(l.ctx, err)))
		return nil
	}
	if err == nil && !begun {
		_ = l.begin()
	}
	return err
}

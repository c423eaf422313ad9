package router

import (
	"bytes"
	"cmp"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/view"
)

// Answer is what a handler wants written.
type Answer struct {
	Status int    // 0: 200
	Body   any    // nil: none
	Page   []byte // HTML instead of a body
	Policy string // Content-Security-Policy of Page; empty: the policy of a page without scripts
	Raw    []byte // instead of a body: what is sent as Media
	Media  string
	Header http.Header
}

// OK answers with a body.
func OK(body any) (Answer, error) { return Answer{Body: body}, nil }

// DoneAnswer is the answer of verbs without a result.
type DoneAnswer struct {
	OK bool `json:"ok"`
}

// Done is the answer of verbs.
func Done(err error) (Answer, error) { return AnswerOf(DoneAnswer{true}, err) }

// NoContent is the answer without a body.
func NoContent(err error) (Answer, error) { return Answer{Status: http.StatusNoContent}, err }

// AnswerOf answers with the result of a call.
func AnswerOf[T any](v T, err error) (Answer, error) {
	if err != nil {
		return Answer{}, err
	}
	return OK(v)
}

// Created is AnswerOf for a call that has created something.
func Created[T any](v T, err error) (Answer, error) {
	a, err := AnswerOf(v, err)
	a.Status = http.StatusCreated
	return a, err
}

// SecretHeader keeps an answer out of caches.
func SecretHeader() http.Header { return http.Header{"Cache-Control": {"no-store"}} }

// pagePolicy lets a page have its own style and load nothing.
const pagePolicy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"

// Write sends an answer.
func (rt *Router) Write(w http.ResponseWriter, r *http.Request, a Answer) {
	status := a.Status
	if status == 0 {
		status = http.StatusOK
	}
	switch {
	case a.Page != nil:
		w.Header().Set("Content-Security-Policy", cmp.Or(a.Policy, pagePolicy))
		rt.writeRaw(w, status, MediaHTML+"; charset=utf-8", a.Page)
		return
	case a.Raw != nil:
		rt.writeRaw(w, status, a.Media, a.Raw)
		return
	case a.Body == nil:
		w.WriteHeader(status)
		return
	}
	buffer := buffers.Get().(*bytes.Buffer)
	defer release(buffer)
	if err := view.Encode(buffer, a.Body); err != nil {
		rt.WriteError(w, r, hangar.Errorf(hangar.CodeInternal, "", "encode the answer: %w", err))
		return
	}
	rt.writeRaw(w, status, MediaJSON, buffer.Bytes())
}

func (rt *Router) writeBody(w http.ResponseWriter, status int, body Error) {
	raw, err := encode(body)
	if err != nil {
		raw, status = []byte(`{"error":"internal error","code":"internal"}`), http.StatusInternalServerError
	}
	rt.writeRaw(w, status, MediaJSON, raw)
}

// writeRaw writes all answers but streams.
func (rt *Router) writeRaw(w http.ResponseWriter, status int, media string, raw []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout))
	w.Header().Set("Content-Type", media)
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// An error is of no use to a client that is gone.
	_, _ = w.Write(raw) //nolint:gosec // JSON or escaped HTML, and sent as nothing else
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := view.Encode(&b, v)
	return b.Bytes(), err
}

// buffers are reused, because net/http copies an answer when it is sent.
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

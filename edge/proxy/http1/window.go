package http1

import (
	"bytes"
	"errors"
	"sync"
)

// Sizes of pooled buffers, in bytes.
const (
	windowSize = 4 << 10
	copySize   = 32 << 10
)

var (
	windows = sync.Pool{New: func() any { return new([windowSize]byte) }}
	copies  = sync.Pool{New: func() any { return new([copySize]byte) }}
)

// source supplies a window's bytes: a connection with its deadlines.
type source interface {
	readConn(p []byte) (int, error)
}

// window holds bytes that were read from a connection and not yet consumed. It has a buffer only
// while it holds bytes, or is about to.
type window struct {
	pooled  *[windowSize]byte
	buf     []byte
	at, end int

	// Position of head in the window: bytes seen, start of the current line, and complete lines.
	seen, line, lines int
}

func (w *window) held() []byte { return w.buf[w.at:w.end] }
func (w *window) size() int    { return w.end - w.at }

// take consumes n bytes from the front. An emptied buffer that has grown is dropped.
func (w *window) take(n int) {
	if w.at += n; w.at == w.end && w.pooled == nil {
		w.buf, w.at, w.end = nil, 0, 0
	}
}

// open makes sure that there is a buffer.
func (w *window) open() {
	if w.buf == nil {
		w.pooled = windows.Get().(*[windowSize]byte)
		w.buf = w.pooled[:]
		w.at, w.end = 0, 0
	}
}

// release returns the buffer, with its content.
func (w *window) release() {
	if w.pooled != nil {
		windows.Put(w.pooled)
	}
	*w = window{}
}

// room makes space for at least one more byte and returns it, as long as fewer than most bytes are
// held. The buffer is never larger than most, or windowSize.
func (w *window) room(most int) []byte {
	w.open()
	if w.at == w.end {
		w.at, w.end = 0, 0
	}
	if w.end == len(w.buf) {
		if w.at > 0 {
			w.end = copy(w.buf, w.buf[w.at:w.end])
			w.at = 0
		} else {
			grown := make([]byte, max(windowSize, min(most, 4*len(w.buf))))
			copy(grown, w.buf)
			if w.pooled != nil {
				windows.Put(w.pooled)
				w.pooled = nil
			}
			w.buf = grown
		}
	}
	return w.buf[w.end:]
}

// fill reads once, unless most bytes are held. It allocates the room even if nothing comes.
func (w *window) fill(from source, most int) error {
	n, err := from.readConn(w.room(most))
	w.end += n
	if n > 0 {
		return nil
	}
	return err
}

// push puts a byte in front of an empty window.
func (w *window) push(b byte) {
	w.room(windowSize)[0] = b
	w.end++
}

var (
	errHeadIncomplete = errors.New("http1: the head is incomplete")
	errLineTooLong    = errors.New("http1: the first line is too long")
	errHeadTooLarge   = errors.New("http1: the header is too large")
)

// head finds the lines up to the first empty one, and returns their total length and number. It
// refuses a line that does not end with CR LF as soon as it sees it, and an incomplete head if
// limit bytes are held. After an incomplete head it continues where it stopped.
func (w *window) head(limit int) (length, lines int, err error) {
	b := w.held()
	for {
		i := bytes.IndexByte(b[w.seen:], '\n')
		if i < 0 {
			w.seen = len(b)
			switch {
			case w.lines == 0 && (len(b) > MaxRequestLine || len(b) >= limit):
				return 0, 0, errLineTooLong
			case len(b) >= limit:
				return 0, 0, errHeadTooLarge
			}
			return 0, 0, errHeadIncomplete
		}
		i += w.seen
		switch {
		case i == w.line || b[i-1] != '\r':
			return 0, 0, malformed("a line ends with a bare line feed")
		case w.lines == 0 && i > min(MaxRequestLine, limit):
			return 0, 0, errLineTooLong
		case w.lines > MaxFields || i >= limit:
			return 0, 0, errHeadTooLarge
		}
		empty := i-1 == w.line
		w.line, w.seen = i+1, i+1
		if empty {
			length, lines = i+1, w.lines
			w.line, w.seen, w.lines = 0, 0, 0
			return length, lines, nil
		}
		w.lines++
	}
}

package http1

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// hole is how many bytes are reserved between the fields of a header and the body, for the fields
// that depend on the body. They are written when the body is complete or too large to be held.
const hole = 192

// answer is the state of an exchange's answer.
type answer struct {
	header      http.Header
	mu          sync.Mutex // guards decided, and serializes answers 1xx
	decided     bool       // nothing more is sent before the final answer
	wroteHeader bool
	committed   bool // the header is complete
	chunked     bool
	hasType     bool // or does not need one
	hasDate     bool
	trailers    []string // names that were announced
	anyTrailers bool     // announced, or in the header with http.TrailerPrefix
	status      int
	headEnd     int   // in out: start of the hole
	length      int64 // as set by the handler; -1: not set
	written     int64 // bytes of the body
	sniffed     string
	connection  []string
}

func (x *exchange) Header() http.Header {
	if x.header == nil {
		x.header = make(http.Header)
	}
	return x.header
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// WriteHeader writes the header as it is now, or an answer 1xx at once.
func (x *exchange) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic("http1: status " + strconv.Itoa(status) + " is not one of HTTP")
	}
	if x.c.hijacked || x.wroteHeader {
		if x.c.srv.Log != nil {
			x.c.srv.Log.Debug("superfluous WriteHeader", "status", status)
		}
		return
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.interim(status)
		return
	}
	x.wroteHeader = true
	x.status = status
	x.writeFields()
	if !bodyAllowed(status) || x.anyTrailers || x.hasType && x.length >= 0 {
		x.commit(false)
	}
}

// mayHaveBody reports whether bytes of a body are sent.
func (x *exchange) mayHaveBody() bool { return !x.head && bodyAllowed(x.status) }

// interim sends an answer 1xx.
func (x *exchange) interim(status int) {
	if x.isOld {
		return
	}
	if status == http.StatusContinue {
		if !x.body.expects.CompareAndSwap(true, false) {
			return
		}
	}
	b := appendStatus(x.c.openOut(), false, status)
	var room [32]string
	for _, name := range sortedNames(x.header, room[:]) {
		if isToken(name) && name != "Content-Length" && name != "Transfer-Encoding" {
			for _, v := range x.header[name] {
				b = appendField(b, name, v)
			}
		}
	}
	x.c.out = append(b, "\r\n"...)
	x.fail(x.c.flushOut())
}

// sendContinue sends 100 Continue, unless the answer has begun.
func (x *exchange) sendContinue() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.decided || !x.body.expects.CompareAndSwap(true, false) {
		return
	}
	x.c.writeWithin()
	_, err := io.WriteString(x.c.conn, "HTTP/1.1 100 Continue\r\n\r\n")
	x.fail(err)
}

// fail records that the client cannot be written to any more.
func (x *exchange) fail(err error) {
	if err != nil {
		x.ctx.cancelled()
	}
}

func appendStatus(b []byte, isOld bool, status int) []byte {
	if isOld {
		b = append(b, "HTTP/1.0 "...)
	} else {
		b = append(b, "HTTP/1.1 "...)
	}
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	if text := http.StatusText(status); text != "" {
		b = append(b, text...)
	} else {
		b = append(b, "status code "...)
		b = strconv.AppendInt(b, int64(status), 10)
	}
	return append(b, "\r\n"...)
}

// writeFields writes the fields that do not depend on the body.
func (x *exchange) writeFields() {
	b := appendStatus(x.c.openOut(), x.isOld, x.status)
	var room [32]string
	coded := false
	for _, name := range sortedNames(x.header, room[:]) {
		values := x.header[name]
		switch name {
		case "Content-Length":
			if len(values) > 0 {
				if n, ok := parseLength(trimSpace(values[0])); ok && bodyAllowed(x.status) {
					x.length = n
				}
			}
			continue
		case "Transfer-Encoding": // set by the engine only
			coded = coded || len(values) > 0
			continue
		case "Connection":
			x.connection = values
			for _, v := range values {
				if hasWord(v, "close") {
					x.close = true
				}
			}
			continue
		case "Date":
			x.hasDate = true
		case "Content-Type":
			x.hasType = true
			if x.status == http.StatusNotModified {
				continue
			}
		case "Content-Encoding":
			x.hasType = x.hasType || len(values) > 0 && values[0] != ""
		case "Trailer":
			x.announce(values)
			if x.isOld {
				continue
			}
		default:
			if strings.HasPrefix(name, http.TrailerPrefix) {
				x.anyTrailers = true
				continue
			}
		}
		if !isToken(name) {
			continue
		}
		for _, v := range values {
			b = appendField(b, name, v)
		}
	}
	x.hasType = x.hasType || coded || !x.mayHaveBody()
	if coded {
		x.length = -1
	}
	x.headEnd = len(b)
	x.c.out = b
}

// announce records which fields of the header are trailers.
func (x *exchange) announce(lists []string) {
	for _, list := range lists {
		for name := range strings.SplitSeq(list, ",") {
			if c, ok := canonical(trimSpace(name)); ok && !notInTrailers(c) {
				x.trailers = append(x.trailers, c)
			}
		}
	}
	x.anyTrailers = true
}

// commit completes the header. Held bytes of the body follow it; whole means that they are the
// whole body.
func (x *exchange) commit(whole bool) {
	if x.committed {
		return
	}
	x.committed = true
	x.mu.Lock()
	x.decided = true
	if x.body.expects.CompareAndSwap(true, false) { // whether the next bytes are a body is unknown
		x.close = true
	}
	x.mu.Unlock()
	c := x.c
	held := max(0, len(c.out)-x.headEnd-hole)
	length := x.length
	switch {
	case length >= 0 || x.anyTrailers && !x.isOld:
	case x.head:
		if whole && x.written > 0 {
			length = x.written
		}
	case whole && bodyAllowed(x.status):
		length = int64(held)
	}
	if length < 0 && x.mayHaveBody() {
		if x.isOld {
			x.close = true
		} else {
			x.chunked = true
		}
	}
	c.outAt = 0
	var room [hole]byte
	tail := x.appendTail(room[:0], length)
	if x.chunked && held > 0 {
		tail = append(appendHex(tail, held), "\r\n"...)
	}
	if len(c.out) == x.headEnd { // there is no hole
		c.out = append(c.out, tail...)
		return
	}
	if len(tail) > hole {
		c.out = append(append(c.out[:x.headEnd:x.headEnd], tail...), c.out[x.headEnd+hole:]...)
		if x.chunked && held > 0 {
			c.out = append(c.out, "\r\n"...)
		}
		return
	}
	gap := hole - len(tail)
	copy(c.out[gap:], c.out[:x.headEnd])
	copy(c.out[gap+x.headEnd:], tail)
	c.outAt = gap
	if x.chunked && held > 0 {
		c.out = append(c.out, "\r\n"...)
	}
}

// appendTail writes the fields that depend on the body, and the end of the header.
func (x *exchange) appendTail(b []byte, length int64) []byte {
	if x.sniffed != "" {
		b = appendField(b, "Content-Type", x.sniffed)
	}
	if length >= 0 {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, length, 10)
		b = append(b, "\r\n"...)
	} else if x.chunked {
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	if !x.hasDate {
		b = append(b, x.c.srv.dateLine(time.Now())...)
	}
	if x.c.srv.draining.Load() {
		x.close = true
	}
	switching := x.status == http.StatusSwitchingProtocols
	for _, v := range x.connection {
		if !x.close || switching {
			b = appendField(b, "Connection", v)
		}
	}
	switch {
	case switching:
	case x.close:
		if !x.isOld {
			b = append(b, "Connection: close\r\n"...)
		}
	case x.wantsKeepAlive && len(x.connection) == 0:
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	return append(b, "\r\n"...)
}

// Write writes a part of the body.
func (x *exchange) Write(p []byte) (int, error) { return x.write(p, "") }

// WriteString writes a part of the body.
func (x *exchange) WriteString(s string) (int, error) { return x.write(nil, s) }

func (x *exchange) write(p []byte, s string) (int, error) {
	c := x.c
	n := len(p) + len(s)
	switch {
	case c.hijacked:
		return 0, http.ErrHijacked
	case x.ended.Load():
		return 0, net.ErrClosed
	}
	if !x.wroteHeader {
		x.WriteHeader(http.StatusOK)
	}
	if n == 0 {
		return 0, nil
	}
	if !bodyAllowed(x.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if x.length >= 0 && x.written+int64(n) > x.length {
		return 0, http.ErrContentLength
	}
	if c.wErr != nil {
		return 0, c.wErr
	}
	x.written += int64(n)
	if x.head {
		return n, nil
	}
	if !x.committed && x.place(p, s) {
		return n, nil
	}
	if err := x.put(p, s); err != nil {
		x.fail(err)
		return 0, err
	}
	return n, nil
}

// place holds back part of the body while the header is incomplete, if there is room.
func (x *exchange) place(p []byte, s string) bool {
	c := x.c
	if !x.hasType {
		x.hasType = true
		if s != "" {
			x.sniffed = http.DetectContentType([]byte(s[:min(len(s), 512)]))
		} else {
			x.sniffed = http.DetectContentType(p)
		}
	}
	if x.length >= 0 {
		x.commit(false)
		return false
	}
	if len(c.out) == x.headEnd {
		if len(c.out)+hole+len(p)+len(s)+chunkRoom > cap(c.out) {
			x.commit(false)
			return false
		}
		c.out = c.out[:len(c.out)+hole]
	}
	if len(c.out)+len(p)+len(s)+chunkRoom > cap(c.out) {
		x.commit(false)
		return false
	}
	c.out = append(append(c.out, p...), s...)
	return true
}

// chunkRoom is more than the framing of a chunk and the last chunk.
const chunkRoom = 32

// put writes a part of the body after the header.
func (x *exchange) put(p []byte, s string) error {
	c := x.c
	n := len(p) + len(s)
	b := c.openOut()
	if x.chunked {
		b = append(appendHex(b, n), "\r\n"...)
	}
	if len(b)+n+chunkRoom <= cap(b) {
		b = append(append(b, p...), s...)
		if x.chunked {
			b = append(b, "\r\n"...)
		}
		c.out = b
		return nil
	}
	c.out = b
	if s != "" {
		p = []byte(s)
	}
	if err := c.flushWith(p); err != nil {
		return err
	}
	if x.chunked {
		c.out = append(c.openOut(), "\r\n"...)
	}
	return nil
}

// Flush implements http.Flusher.
func (x *exchange) Flush() { _ = x.FlushError() } // the next write fails, too

// FlushError is Flush for http.ResponseController.
func (x *exchange) FlushError() error {
	switch {
	case x.c.hijacked:
		return http.ErrHijacked
	case x.ended.Load():
		return net.ErrClosed
	}
	if !x.wroteHeader {
		x.WriteHeader(http.StatusOK)
	}
	return x.flush()
}

func (x *exchange) flush() error {
	x.commit(false)
	err := x.c.flushOut()
	x.fail(err)
	return err
}

// endAnswer writes the rest of the answer.
func (x *exchange) endAnswer() {
	c := x.c
	if !x.wroteHeader {
		x.WriteHeader(http.StatusOK)
	}
	for name := range x.header { // what was not announced is known only now
		x.anyTrailers = x.anyTrailers || strings.HasPrefix(name, http.TrailerPrefix)
	}
	x.commit(true)
	if x.chunked {
		b := append(c.openOut(), "0\r\n"...)
		if x.anyTrailers {
			b = x.appendTrailers(b)
		}
		c.out = append(b, "\r\n"...)
	}
	if x.length >= 0 && x.written < x.length && x.mayHaveBody() || x.status == http.StatusSwitchingProtocols {
		x.close = true
	}
	x.fail(c.flushOut())
}

func (x *exchange) appendTrailers(b []byte) []byte {
	for _, name := range x.trailers {
		for _, v := range x.header[name] {
			b = appendField(b, name, v)
		}
	}
	var room [32]string
	for _, key := range sortedNames(x.header, room[:]) {
		name, ok := strings.CutPrefix(key, http.TrailerPrefix)
		if !ok {
			continue
		}
		if name, ok = canonical(name); !ok || notInTrailers(name) {
			continue
		}
		for _, v := range x.header[key] {
			b = appendField(b, name, v)
		}
	}
	return b
}

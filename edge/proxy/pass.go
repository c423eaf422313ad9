package proxy

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/proxy/compress"
)

// bufferSize is how much of an answer is forwarded at once.
const bufferSize = 32 << 10

// large is the size from which the kernel copies a body, where it can.
const large = 256 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// informational forwards an interim answer.
func (x *exchange) informational(code int, h http.Header) {
	if !x.sent.ProtoAtLeast(1, 1) || code < 102 || code > 199 {
		return // the client gets 100 when its body is read
	}
	to := x.w.Header()
	if h["Connection"] != nil {
		dropNominated(h)
	}
	for key, values := range h {
		if !hopByHop(key) {
			to[key] = values
		}
	}
	x.w.WriteHeader(code)
	clear(to)
}

// pass forwards a Machine's answer to the client.
func (x *exchange) pass(a *answer) {
	if a.StatusCode == http.StatusSwitchingProtocols {
		x.tunnel(a)
		return
	}
	w, end := x.w, error(nil)
	closing := func() error { return nil }
	if o := x.ep.Options.HTTP; o != nil && o.Compress != nil && *o.Compress {
		w, closing = compress.Writer(w, x.sent)
	}
	h := w.Header()
	x.setAnswerHeaders(h, a.Response)
	cleanTrailers(a.Trailer)
	announced := len(a.Trailer)
	if announced > 0 {
		names := make([]string, 0, announced)
		for name := range a.Trailer {
			names = append(names, name)
		}
		slices.Sort(names)
		h["Trailer"] = names
		if x.sent.ProtoMajor == 1 {
			delete(h, "Content-Length") // trailers need a chunked body
		}
	}
	x.answered(a.StatusCode)
	w.WriteHeader(a.StatusCode)
	if x.sent.ProtoMajor == 3 && x.sent.Method == http.MethodHead && a.ContentLength < 0 {
		_ = http.NewResponseController(w).Flush() // otherwise the library tells a length of 0
	}
	if end = x.stream(w, a); end == nil {
		cleanTrailers(a.Trailer)
		trail(h, a.Trailer, announced)
		end = closing()
	}
	if end == nil {
		a.done(x.p.pool)
		return
	}
	a.drop()
	var lost *machineError
	if errors.As(end, &lost) && x.sent.Context().Err() == nil {
		x.report(&hangar.EdgeError{Code: hangar.EdgeIncomplete, Status: a.StatusCode, Message: "the machine did not complete its answer", Err: lost.error})
	}
	panic(http.ErrAbortHandler) // so that the client does not take a partial body for complete
}

// trail writes the trailers of an answer. Unannounced ones have to be marked as trailers.
func trail(h, trailers http.Header, announced int) {
	if len(trailers) == announced {
		maps.Copy(h, trailers)
		return
	}
	for name, values := range trailers {
		h[http.TrailerPrefix+name] = values
	}
}

// machineError is an error on the Machine's side while its answer is forwarded.
type machineError struct{ error }

func (e *machineError) Unwrap() error { return e.error }

// stream forwards the body of an answer as it arrives.
func (x *exchange) stream(w http.ResponseWriter, a *answer) error {
	if a.Body == nil || a.Body == http.NoBody || a.ContentLength == 0 || x.sent.Method == http.MethodHead {
		return nil
	}
	if to, ok := w.(io.ReaderFrom); ok && a.ContentLength >= large && a.h2 == nil {
		n, err := to.ReadFrom(a.Body)
		x.bytes = n
		if err == nil && n < a.ContentLength {
			err = &machineError{io.ErrUnexpectedEOF}
		}
		return err
	}
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	var flusher http.Flusher
	left := a.ContentLength // negative: unknown
	if left < 0 {
		flusher, _ = w.(http.Flusher)
		if quiet, ok := a.Body.(interface{ AtHand() int }); flusher != nil && (!ok || quiet.AtHand() == 0) {
			flusher.Flush() // the header, because the body may take long
		}
	}
	for {
		a.touch()
		n, err := a.Body.Read(buf[:])
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return werr
			}
			x.bytes += int64(n)
			if left > 0 {
				left -= int64(n)
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return &machineError{err}
		case left == 0:
			continue // only the end is left
		case n == len(buf):
			continue // more is available
		}
		if more, ok := a.Body.(interface{ Ready() bool }); ok && more.Ready() {
			continue
		}
		if flusher == nil {
			flusher, _ = w.(http.Flusher)
		}
		if flusher != nil {
			flusher.Flush()
		}
	}
}

// touch records progress of an exchange over HTTP/2.
func (a *answer) touch() {
	if a.stallTimer != nil {
		a.stallTimer.Reset(a.stallTimeout)
	}
}

// redirectHTTPS redirects the client to the same URL over https.
func (x *exchange) redirectHTTPS() {
	host := x.sent.Host
	if name := hangar.Canonical(host); name != "" {
		host = string(name)
	} else {
		host = hostOnly(host)
	}
	port := 443
	if x.client.Route == nil && x.p.options.HTTPSPort != 0 {
		port = x.p.options.HTTPSPort
	}
	if port != 443 {
		host += ":" + strconv.Itoa(port)
	}
	h := x.w.Header()
	h["Location"] = []string{"https://" + host + strings.TrimPrefix(x.sent.URL.RequestURI(), "*")}
	h["Content-Length"] = []string{"0"}
	h["Server"] = product
	requestIDs.set(h, []string{x.id})
	x.answered(http.StatusMovedPermanently)
	x.w.WriteHeader(http.StatusMovedPermanently)
}

// hostOnly is a Host header without its port.
func hostOnly(host string) string {
	if ap, err := netip.ParseAddrPort(host); err == nil {
		if host = ap.Addr().String(); ap.Addr().Is6() {
			host = "[" + host + "]"
		}
	}
	return host
}

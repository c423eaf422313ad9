package scrape

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
)

const (
	dialTimeout  = 2500 * time.Millisecond // for each of two addresses
	largeTimeout = 3 * time.Second         // for the bytes after the first SmallBody
	maxHeader    = 64 << 10                // bytes of a response's header
	maxInterim   = 5                       // interim responses (1xx)
	firstBody    = 16 << 10                // initial room for a response, in bytes
)

// accept prefers the text format, which has everything that is kept of OpenMetrics and is shorter.
const accept = "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1"

// request returns the request to a target. It does not request compression, which would cost
// processor time of the Machine for bytes that do not leave the host.
func request(t *Target, addr net.Addr) ([]byte, error) {
	u, err := url.ParseRequestURI(t.Path)
	if err != nil || !strings.HasPrefix(t.Path, "/") {
		return nil, failure{kind: kindPath, text: "the path is not valid"}
	}
	return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: hangar-metrics\r\nAccept: %s\r\n"+
		"Accept-Encoding: identity\r\nX-Prometheus-Scrape-Timeout-Seconds: %d\r\n\r\n", u.RequestURI(), addr, accept, timeout/time.Second), nil
}

// boundedReader reads at most left bytes from a connection.
type boundedReader struct {
	conn io.Reader
	left int64
	any  bool // something was read
}

var errBound = errors.New("more than may be read")

func (r *boundedReader) Read(b []byte) (int, error) {
	if r.left <= 0 {
		return 0, errBound
	}
	n, err := r.conn.Read(b[:min(int64(len(b)), r.left)])
	r.left -= int64(n)
	r.any = r.any || n > 0
	return n, err
}

// fetch reads the response of a target into sc.body, and reports whether it is OpenMetrics. The
// context must have a deadline. Call release after the last use of sc.
func (s *Scraper) fetch(ctx context.Context, t *target, sc *scratch) (openMetrics bool, release func(), err error) {
	sc.body, sc.cost = sc.body[:0], 0
	release = func() {}
	for {
		again := t.conn != nil
		if !again {
			if err := s.connect(ctx, t); err != nil {
				return false, release, err
			}
		}
		a := answer{s: s, t: t, sc: sc, release: release}
		openMetrics, err = a.read(ctx)
		if err == nil || !again || a.in.any || ctx.Err() != nil {
			return openMetrics, a.release, err
		}
		// The Machine has closed the connection since the last scrape.
	}
}

// connect opens a connection to a target, by the IPv4 address if it answers.
func (s *Scraper) connect(ctx context.Context, t *target) error {
	networks := [...]string{"tcp4", "tcp6"}
	if t.network == "tcp6" {
		networks = [...]string{"tcp6", "tcp4"}
	}
	var conn net.Conn
	var first error
	for _, network := range networks {
		bounded, cancel := context.WithTimeout(ctx, dialTimeout)
		var err error
		conn, err = s.o.Dial(bounded, t.scraped.Machine, network, t.scraped.Port)
		cancel()
		if err == nil {
			t.network = network
			break
		}
		if first == nil {
			first = err
		}
	}
	if conn == nil {
		return connectFailure(first)
	}
	if t.scraped.HTTPS {
		//nolint:gosec // G402: a Machine has the certificate that its owner likes, and nothing secret is sent
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close() // the error of the handshake matters
			return readFailure(err, kindTLS, "the port does not speak TLS as it should")
		}
		conn = secure
	}
	b, err := request(&t.scraped, conn.RemoteAddr())
	if err != nil {
		_ = conn.Close() // nothing was sent
		return err
	}
	t.conn, t.request = conn, b
	return nil
}

// answer is one response of a target.
type answer struct {
	s       *Scraper
	t       *target
	sc      *scratch
	in      boundedReader
	whole   bool // read to its end, so that another request may follow
	release func()
	large   bool
}

func (a *answer) read(ctx context.Context) (openMetrics bool, err error) {
	defer func() {
		if err != nil || !a.whole {
			a.t.hangUp()
		}
	}()
	conn, sc, limits := a.t.conn, a.sc, &a.s.limits
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline) // the next read returns the error
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write(a.t.request); err != nil {
		return false, readFailure(err, kindHTTP, "")
	}
	a.in = boundedReader{conn: conn, left: maxHeader}
	sc.reader.Reset(&a.in)
	defer sc.reader.Reset(nil)
	resp, err := a.header() //nolint:bodyclose // Close would read the rest; the connection is closed, or the body was read to its end
	if err != nil {
		return false, err
	}
	a.in.left = limits.Body + limits.Body/4 + maxHeader // chunks may be short
	allowed := a.in.left
	defer func() { sc.cost = costOf(int64(len(sc.body)), allowed-a.in.left) }()
	body := io.Reader(resp.Body)
	hint := resp.ContentLength
	switch encoding := resp.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		if hint > limits.Body {
			return false, tooLarge(limits)
		}
	case "gzip":
		hint = 0
		a.in.left = limits.Body/4 + maxHeader
		allowed = a.in.left // also bounds the number of empty members
		if err := sc.inflate.Reset(resp.Body); err != nil {
			return false, readFailure(err, kindHTTP, "the answer is not compressed as it says")
		}
		body = &sc.inflate
	default:
		return false, failure{kind: kindHTTP, text: "the answer has an encoding that was not asked for"}
	}
	if err := a.fill(ctx, body, hint); err != nil {
		return false, err
	}
	a.whole = !resp.Close && sc.reader.Buffered() == 0
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return kind == "application/openmetrics-text", nil
}

// framingCost is how many bytes of a body cost as much as one byte of framing: very short chunks take
// far more time than their content.
const framingCost = 8

// costOf is how many bytes of Limits.OrgBytes a response counts as.
func costOf(body, received int64) int64 { return body + framingCost*max(0, received-body) }

// header reads the response up to its body, after interim responses.
func (a *answer) header() (*http.Response, error) {
	for range maxInterim {
		resp, err := http.ReadResponse(a.sc.reader, nil)
		switch {
		case errors.Is(err, errBound):
			return nil, failure{kind: kindHTTP, text: "the header of the answer is too long", penalty: true}
		case err != nil:
			return nil, readFailure(err, kindHTTP, "the port does not answer as HTTP wants it")
		case resp.StatusCode/100 == 1 && resp.StatusCode != http.StatusSwitchingProtocols:
			continue
		case resp.StatusCode == http.StatusOK:
			return resp, nil
		}
		text := "the answer has the status " + strconv.Itoa(resp.StatusCode)
		if resp.StatusCode/100 == 3 {
			text += "; redirects are not followed"
		}
		return nil, failure{kind: kindStatus, text: text}
	}
	return nil, failure{kind: kindHTTP, text: "the port does not answer as HTTP wants it", penalty: true}
}

func tooLarge(l *Limits) failure {
	return failure{kind: kindSize, text: fmt.Sprintf("the answer is larger than %d MiB", l.Body>>20), penalty: true}
}

// fill reads a body to its end. hint is its length, if positive.
func (a *answer) fill(ctx context.Context, body io.Reader, hint int64) error {
	sc, limit := a.sc, int(a.s.limits.Body)
	for {
		if len(sc.body) == cap(sc.body) {
			if len(sc.body) > limit {
				return tooLarge(&a.s.limits)
			}
			room := min(max(firstBody, 2*len(sc.body), int(hint)+1), limit+1)
			if err := a.grow(ctx, room); err != nil {
				return err
			}
		}
		n, err := body.Read(sc.body[len(sc.body):cap(sc.body)])
		sc.body = sc.body[:len(sc.body)+n]
		switch {
		case len(sc.body) > limit, errors.Is(err, errBound):
			return tooLarge(&a.s.limits)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && a.large && errors.Is(err, os.ErrDeadlineExceeded):
			return failure{kind: kindTimeout, text: fmt.Sprintf("the answer was not complete %s after its first %d KiB", largeTimeout, SmallBody>>10), penalty: true}
		case err != nil:
			return readFailure(err, kindHTTP, "the answer is not complete")
		}
	}
}

// grow makes room for a body. A large body waits for its turn.
func (a *answer) grow(ctx context.Context, room int) error {
	if room > SmallBody && !a.large {
		release, err := a.s.large.Acquire(ctx, a.t.scraped.Tenant.Org)
		if err != nil {
			return failure{kind: kindBusy, text: "too many large answers are being read at the same time"}
		}
		a.large, a.release = true, release
		if deadline, ok := ctx.Deadline(); ok {
			_ = a.t.conn.SetDeadline(earlier(deadline, time.Now().Add(largeTimeout))) // as above
		}
	}
	body := make([]byte, len(a.sc.body), room)
	copy(body, a.sc.body)
	a.sc.body = body
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// connectFailure describes a failed connection in words of our own.
func connectFailure(err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) || hangar.ReasonOf(err) == hangar.ReasonConnectionRefused {
		return failure{kind: kindConnect, text: "nothing listens on the port; it has to listen on 0.0.0.0 or the private address"}
	}
	return readFailure(err, kindConnect, "the port cannot be reached")
}

// readFailure describes a failure of a connection in words of our own.
func readFailure(err error, kind, otherwise string) error {
	var timed interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timed) && timed.Timeout():
		return failure{kind: kindTimeout, text: fmt.Sprintf("there was no complete answer within %s", timeout)}
	case otherwise == "", errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return failure{kind: kind, text: "the connection ended before the answer was complete"}
	default:
		return failure{kind: kind, text: otherwise}
	}
}

// scratch is the memory of a scrape.
type scratch struct {
	limits  Limits
	reader  *bufio.Reader
	inflate gzip.Reader
	body    []byte
	cost    int64 // of the answer; see costOf
	parser  parser
	samples []metrics.Sample
	labels  []metrics.Label
}

// keptSeries is how many series an unused scratch keeps room for.
const keptSeries = 2000

func newScratch(l Limits) *scratch {
	return &scratch{limits: l, reader: bufio.NewReaderSize(nil, 4<<10), parser: newParser(l)}
}

// shrink frees the room that a large response has taken.
func (sc *scratch) shrink() {
	if cap(sc.body) > SmallBody {
		sc.body = nil
	}
	if p := &sc.parser; cap(p.text) > SmallBody || cap(p.values) > keptSeries || len(p.seen) > keptSeries || cap(p.escaped) > SmallBody || cap(p.labels) > keptSeries {
		*p = newParser(sc.limits)
	}
	if cap(sc.labels) > 64*samplesAtOnce {
		sc.labels = nil
	}
}

package proxy

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"time"

	"golang.org/x/net/http2"
)

// headerClock is a client's HTTP/2 connection with a time limit for the header of a request, from
// its first byte to its last. It parses only the headers of frames.
type headerClock struct {
	net.Conn
	within time.Duration

	preface int     // remaining bytes before the first frame
	frame   [9]byte // header of the current frame, as far as known: length, type and flags
	known   int     // bytes of it
	left    int     // remaining bytes of its payload
	open    bool    // the header continues in the next frame
	timed   bool    // a deadline is set
}

type connectionStater interface{ ConnectionState() tls.ConnectionState }

// bounded wraps a connection on which the client has sent nothing yet.
func bounded(conn net.Conn, within time.Duration) net.Conn {
	clock := &headerClock{Conn: conn, within: within, preface: len(http2.ClientPreface)}
	secure, ok := conn.(connectionStater)
	if !ok {
		return clock
	}
	return struct { // so that HTTP/2 detects TLS
		*headerClock
		connectionStater
	}{clock, secure}
}

func (c *headerClock) Read(p []byte) (int, error) {
	if begun := c.begun(); begun != c.timed {
		by := time.Time{}
		if begun {
			by = time.Now().Add(c.within)
		}
		if err := c.SetReadDeadline(by); err != nil {
			return 0, err
		}
		c.timed = begun
	}
	n, err := c.Conn.Read(p)
	c.follow(p[:n])
	return n, err
}

// begun reports whether part of a header has arrived, or part of a frame that may be one.
func (c *headerClock) begun() bool {
	return c.open || c.known > 0 && c.known < len(c.frame) || c.left > 0 && c.isHeader()
}

func (c *headerClock) isHeader() bool {
	t := http2.FrameType(c.frame[3])
	return t == http2.FrameHeaders || t == http2.FrameContinuation
}

// follow parses arriving bytes.
func (c *headerClock) follow(b []byte) {
	skip := min(c.preface, len(b))
	c.preface -= skip
	for b = b[skip:]; len(b) > 0; {
		if c.left > 0 {
			skip = min(c.left, len(b))
			c.left -= skip
			b = b[skip:]
			continue
		}
		if c.known == len(c.frame) {
			c.known = 0
		}
		skip = copy(c.frame[c.known:], b)
		c.known += skip
		if b = b[skip:]; c.known == len(c.frame) {
			c.left = int(binary.BigEndian.Uint32(c.frame[:4]) >> 8)
			c.open = c.isHeader() && !http2.Flags(c.frame[4]).Has(http2.FlagHeadersEndHeaders)
		}
	}
}

package http1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// greedyConn sends endlessly, in the largest pieces that the reader accepts, and records how large
// a buffer for everything would have to be.
type greedyConn struct {
	net.Conn
	first, more string
	sent        int
	buffer      int
}

func (c *greedyConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, io.ErrShortBuffer // there is no end to that
	}
	c.buffer = max(c.buffer, c.sent+len(p))
	for i := range p {
		if c.sent < len(c.first) {
			p[i] = c.first[c.sent]
		} else {
			p[i] = c.more[(c.sent-len(c.first))%len(c.more)]
		}
		c.sent++
	}
	return len(p), nil
}

// TestBuffersAreBounded: the buffer of an endless header is no larger than its limit.
func TestBuffersAreBounded(t *testing.T) {
	for _, limit := range []int{100, windowSize, windowSize + 1, 20_000, DefaultMaxHeaderBytes, 100_000} {
		for name, more := range map[string]string{"few long fields": "X: " + strings.Repeat("x", 5000) + "\r\n", "one line": "x"} {
			t.Run(fmt.Sprint(name, " ", limit), func(t *testing.T) {
				client, server := net.Pipe()
				defer client.Close()
				go io.Copy(io.Discard, client)
				c := &greedyConn{Conn: server, first: "GET / HTTP/1.1\r\n" + h11, more: more}
				refused := 0
				s := &Server{MaxHeaderBytes: limit, Refuse: func(_ http.ResponseWriter, status int, _ error) { refused = status }}
				s.ServeConn(context.Background(), c)
				if refused != http.StatusRequestHeaderFieldsTooLarge {
					t.Errorf("refused with %d", refused)
				}
				if most := max(limit, windowSize); c.buffer > most {
					t.Errorf("the server holds %d bytes", c.buffer)
				}

				client, machine := net.Pipe()
				defer client.Close()
				go io.Copy(io.Discard, client)
				c = &greedyConn{Conn: machine, first: "HTTP/1.1 200 OK\r\n", more: more}
				conn := NewConn(c)
				conn.MaxAnswerBytes = limit
				if _, err := conn.RoundTrip(context.Background(), newRequest(t, http.MethodGet, nil), RoundTripOptions{}); err == nil {
					t.Error("an answer without end is one")
				}
				if most := max(limit, windowSize); c.buffer > most {
					t.Errorf("the client holds %d bytes", c.buffer)
				}
			})
		}
	}
}

// TestHeadersUpToTheLimit: the limit itself is allowed, in any pieces, and one byte more is not.
func TestHeadersUpToTheLimit(t *testing.T) {
	const limit = 20_000
	head := get("")
	for _, piece := range []int{1, 999, windowSize, limit} {
		for _, more := range []int{0, 1} {
			pad := limit - len(head) - len("X: \r\n") + more
			b := []byte(get("X: " + strings.Repeat("x", pad) + "\r\n"))
			w, src := &window{}, &bytesSource{b, piece}
			length, err := 0, errHeadIncomplete
			for errors.Is(err, errHeadIncomplete) {
				if err = w.fill(src, limit); err == nil {
					length, _, err = w.head(limit)
				}
			}
			if more == 0 && (err != nil || length != limit) || more == 1 && !errors.Is(err, errHeadTooLarge) {
				t.Errorf("%d bytes in pieces of %d: %d, %v", len(b), piece, length, err)
			}
			if len(w.buf) > limit {
				t.Errorf("the buffer has %d bytes", len(w.buf))
			}
			if err == nil {
				if w.take(length); w.buf != nil {
					t.Error("the buffer is kept")
				}
			}
		}
	}
}

// Package http1 is a strict and lean engine for HTTP/1.0 and HTTP/1.1, a Server and the
// client side of a connection, which speaks the types of net/http.
//
// It promises that a message is understood in one way or refused: what two programs could read
// differently (two lengths, a bare line feed, a folded line, a coding other than chunked, a space
// before a colon) ends in an error and in the end of the connection, on both sides. A handler
// sees a normalised request: the target in origin form, the Host checked, the body without its
// framing. Messages are written from these parsed parts, never copied.
//
// A server's connection has one goroutine, its caller's, and none for its requests; while idle it
// holds no buffer. The context of a request starts to watch its client at the first call of Done,
// which costs a goroutine; a handler that only needs a time limit should use deadlines
// (RoundTripOptions.IdleTimeout, http.ResponseController). A Conn starts a goroutine only for a
// request body that is not at hand.
//
// It is not a pool of connections, not HTTP/2, and does not know what it proxies.
package http1

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Bounds of input.
const (
	DefaultMaxHeaderBytes = 64 << 10 // of a Server's requests
	DefaultMaxAnswerBytes = 256 << 10
	MaxFields             = 256      // header fields of a message, and trailer fields
	MaxRequestLine        = 16 << 10 // bytes
	MaxDrain              = 256 << 10
	maxChunkLine          = 512 // bytes of a chunk's size and its extensions
)

// A ProtocolError says why a message was refused. Status is what a server answers with.
type ProtocolError struct {
	Status int
	Reason string
}

func (e *ProtocolError) Error() string { return "http1: " + e.Reason }

// malformed is the error of most messages that are refused.
func malformed(reason string) *ProtocolError {
	return &ProtocolError{Status: http.StatusBadRequest, Reason: reason}
}

// ErrBusy is the error of a RoundTrip on a Conn that is not Reusable.
var ErrBusy = errors.New("http1: the connection has an answer that was not read to its end, or is spent")

// A RoundTripError says how far a request without an answer came.
type RoundTripError struct {
	Wrote bool // a byte of the request may have reached the peer
	Read  bool // a byte of an answer was read
	Err   error
}

func (e *RoundTripError) Error() string {
	return fmt.Sprintf("http1: no answer (request written: %t, answer begun: %t): %v", e.Wrote, e.Read, e.Err)
}

func (e *RoundTripError) Unwrap() error { return e.Err }

// RoundTripOptions are about one request. The zero value is fine.
type RoundTripOptions struct {
	// Informational is called with each answer 1xx that comes before the final one, other than
	// 100 and 101.
	Informational func(code int, h http.Header)
	// HeaderTimeout is how long after the request was written the header of the answer may take,
	// up to twice as long if its body took its time; 0: any time.
	HeaderTimeout time.Duration
	// IdleTimeout is for how long no byte may go in either direction; 0: any time.
	IdleTimeout time.Duration
}

// AtHand is implemented by request bodies that know how many bytes Read returns without waiting.
// A body that is whole at hand is sent together with its header.
type AtHand interface{ AtHand() int }

// Package wsmux carries several byte streams over one WebSocket.
//
// Every message is binary: one byte names the stream, the rest is its payload. A payload has at most
// MaxPayload bytes; longer writes are split. The two ends must agree on the meaning of payloads, and
// on whether an empty one ends its stream.
//
// Send may be called from many goroutines, Receive from one at a time. The package has no flow
// control of its own: a peer that does not read blocks Send until the context of the call ends.
package wsmux

import (
	"context"
	"fmt"
	"io"

	"github.com/coder/websocket"
)

// MaxPayload is the most bytes of a stream in one message.
const MaxPayload = 32 << 10

// The streams of an exec; package api documents the protocol.
const (
	Stdin byte = iota
	Stdout
	Stderr
	Resize
	Exit
)

// Conn is one end of a connection.
type Conn struct{ ws *websocket.Conn }

// New takes ownership of ws. It limits the messages of the peer to MaxPayload.
func New(ws *websocket.Conn) *Conn {
	ws.SetReadLimit(MaxPayload + 1)
	return &Conn{ws: ws}
}

// Send writes payload to a stream. An empty payload is sent, too.
func (c *Conn) Send(ctx context.Context, stream byte, payload []byte) error {
	for {
		piece := payload[:min(len(payload), MaxPayload)]
		message := make([]byte, 0, len(piece)+1)
		message = append(append(message, stream), piece...)
		if err := c.ws.Write(ctx, websocket.MessageBinary, message); err != nil {
			return err
		}
		if payload = payload[len(piece):]; len(payload) == 0 {
			return nil
		}
	}
}

// Receive returns the next payload of any stream.
func (c *Conn) Receive(ctx context.Context) (stream byte, payload []byte, err error) {
	kind, message, err := c.ws.Read(ctx)
	switch {
	case err != nil:
		return 0, nil, err
	case kind != websocket.MessageBinary || len(message) == 0:
		return 0, nil, fmt.Errorf("message of %d bytes is not binary or names no stream", len(message))
	default:
		return message[0], message[1:], nil
	}
}

// Writer returns a writer that sends to a stream. It does not send empty writes.
func (c *Conn) Writer(ctx context.Context, stream byte) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		if len(p) == 0 {
			return 0, nil
		}
		if err := c.Send(ctx, stream, p); err != nil {
			return 0, err
		}
		return len(p), nil
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

package remote

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A request and its answer are sequences of frames: a kind, the length of the payload as four
// bytes, the most significant first, and the payload. An answer ends with kindResult or kindError;
// one without was cut off.

// kind says what a frame is.
type kind byte

const (
	kindCall   kind = 'c' // the first of every request: a call
	kindResult kind = 'r' // the last of an answer: what the method returns
	kindError  kind = 'e' // the last of an answer: a fault
	kindValue  kind = 'v' // one of a stream of values

	kindOpen  kind = 'o' // the first of the answer of a connection, which is open
	kindData  kind = 'd' // bytes of a connection, or one datagram
	kindEnd   kind = 'h' // this direction of a connection has ended
	kindClose kind = 'x' // this end of the connection is closed

	kindStdin  kind = '0' // bytes for the command; none: the end of its input
	kindStdout kind = '1'
	kindStderr kind = '2'
	kindResize kind = 's' // of the terminal

	kindRead kind = 'p' // asks for a part of a file

	kindEnter   kind = 'i' // asks to be let into a Machine
	kindEntered kind = 'a'
	kindRefused kind = 'n'
	kindLeave   kind = 'l'
	kindLog     kind = 't' // a line for the log of a Machine
)

// The bounds of frames, in bytes.
const (
	frameHeader = 5
	maxPiece    = 32 << 10  // of a connection, a command or a file
	maxCall     = 16 << 20  // a config with its secrets is far smaller
	maxAnswer   = 256 << 20 // all Machines of a host
	firstBuffer = 64 << 10
)

// writeFrame writes a frame with one Write.
func writeFrame(w io.Writer, k kind, payload []byte) error {
	_, err := w.Write(appendFrame(make([]byte, 0, frameHeader+len(payload)), k, payload))
	return err
}

// appendFrame appends a frame to others.
func appendFrame(to []byte, k kind, payload []byte) []byte {
	to = append(to, byte(k))
	to = binary.BigEndian.AppendUint32(to, uint32(len(payload))) // no payload has 4 GiB
	return append(to, payload...)
}

// readFrame reads a frame of at most limit bytes. It returns io.EOF before the first byte of a
// frame and io.ErrUnexpectedEOF within one. Memory grows with what arrives, not with the claimed
// length.
func readFrame(r io.Reader, limit int) (kind, []byte, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	n := int64(binary.BigEndian.Uint32(header[1:]))
	if n > int64(limit) {
		return 0, nil, fmt.Errorf("frame %q of %d bytes, more than the %d that are allowed", header[0], n, limit)
	}
	if n <= firstBuffer {
		payload := make([]byte, n)
		_, err := io.ReadFull(r, payload)
		return kind(header[0]), payload, within(err)
	}
	var payload bytes.Buffer
	payload.Grow(firstBuffer)
	_, err := io.CopyN(&payload, r, n)
	return kind(header[0]), payload.Bytes(), within(err)
}

// within turns an end within a frame into an error.
func within(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

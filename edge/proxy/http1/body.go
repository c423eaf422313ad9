package http1

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

// ending is how a body ends.
type ending uint8

const (
	noBody ending = iota
	byLength
	byChunks
	byClose // of the connection
)

// Positions in a chunk.
const (
	chunkSize = iota
	chunkData
	chunkEnd
)

// bodyReader reads a body from a connection.
type bodyReader struct {
	from    source
	in      *window
	ending  ending
	at      uint8 // position in a chunk
	done    bool  // the body was read to its end
	left    int64 // bytes of the body or of the chunk
	limit   int64 // of a chunked body; 0: any size
	total   int64
	extra   int64 // bytes of framing
	maxHead int   // bytes of the trailer section
	trailer http.Header
}

// read fills p with available bytes. After the last byte, or with it, the error is io.EOF. Other
// errors are final and make the connection useless.
func (b *bodyReader) read(p []byte) (int, error) {
	if b.done {
		return 0, io.EOF
	}
	switch b.ending {
	case byLength:
		return b.readLength(p)
	case byChunks:
		return b.readChunks(p)
	case byClose:
		n, err := b.data(p)
		b.done = errors.Is(err, io.EOF)
		return n, err
	default:
		b.done = true
		return 0, io.EOF
	}
}

func (b *bodyReader) readLength(p []byte) (int, error) {
	if b.left == 0 {
		b.done = true
		return 0, io.EOF
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.data(p)
	if b.left -= int64(n); b.left == 0 {
		b.done = true
		return n, io.EOF
	}
	return n, noEOF(err)
}

// data reads bytes of the body itself, from the window or the connection.
func (b *bodyReader) data(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if b.in.size() == 0 {
		if len(p) >= windowSize {
			return b.from.readConn(p)
		}
		if err := b.in.fill(b.from, windowSize); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.in.held())
	b.in.take(n)
	return n, nil
}

func (b *bodyReader) readChunks(p []byte) (n int, err error) {
	for {
		switch b.at {
		case chunkSize, chunkEnd:
			if n > 0 && bytes.IndexByte(b.in.held(), '\n') < 0 {
				return n, nil // the rest would block
			}
			if b.at == chunkEnd {
				err = b.endChunk()
			} else {
				err = b.nextChunk()
			}
			if err != nil {
				return n, err
			}
		default:
			if n == len(p) || n > 0 && b.in.size() == 0 {
				return n, nil
			}
			q := p[n:]
			if int64(len(q)) > b.left {
				q = q[:b.left]
			}
			m, err := b.data(q)
			n += m
			if b.left -= int64(m); b.left == 0 {
				b.at = chunkEnd
			} else if err != nil {
				return n, noEOF(err)
			}
		}
	}
}

// line returns the next line, without its line end.
func (b *bodyReader) line() ([]byte, error) {
	for {
		held := b.in.held()
		i := bytes.IndexByte(held, '\n')
		switch {
		case i > maxChunkLine || i < 0 && len(held) > maxChunkLine:
			return nil, malformed("the line of a chunk is too long")
		case i == 0 || i > 0 && held[i-1] != '\r':
			return nil, malformed("the line of a chunk ends with a bare line feed")
		case i > 0:
			b.in.take(i + 1)
			b.extra += int64(i + 1)
			return held[:i-1], nil
		}
		if err := b.in.fill(b.from, windowSize); err != nil {
			return nil, noEOF(err)
		}
	}
}

func (b *bodyReader) endChunk() error {
	line, err := b.line()
	if err != nil {
		return err
	}
	if len(line) > 0 {
		return malformed("a chunk is longer than it says")
	}
	b.at = chunkSize
	return nil
}

func (b *bodyReader) nextChunk() error {
	line, err := b.line()
	if err != nil {
		return err
	}
	if b.left, err = parseChunkSize(line); err != nil {
		return err
	}
	if b.left > 0 {
		if b.total += b.left; b.limit > 0 && b.total > b.limit {
			return &http.MaxBytesError{Limit: b.limit}
		}
		b.at = chunkData
		return nil
	}
	return b.readTrailer()
}

// parseChunkSize parses the first line of a chunk. Extensions are checked and dropped.
func parseChunkSize(line []byte) (int64, error) {
	size, n := int64(0), 0
	for n < len(line) && class[line[n]]&inHex != 0 {
		if n == 15 {
			return 0, malformed("the size of a chunk is too large")
		}
		d := line[n]
		switch {
		case d <= '9':
			d -= '0'
		case d <= 'F':
			d -= 'A' - 10
		default:
			d -= 'a' - 10
		}
		size = size<<4 | int64(d)
		n++
	}
	if n == 0 || n < len(line) && line[n] != ';' {
		return 0, malformed("the size of a chunk is not a hexadecimal number")
	}
	for _, c := range line[n:] {
		if class[c]&inValue == 0 {
			return 0, malformed("an extension of a chunk has a control character")
		}
	}
	return size, nil
}

func (b *bodyReader) readTrailer() error {
	for {
		length, lines, err := b.in.head(b.maxHead)
		switch {
		case err == nil:
			s := string(b.in.held()[:length-2])
			b.in.take(length)
			b.extra += int64(length)
			if lines > 0 {
				h, err := parseFields(s, lines, nil)
				if err != nil {
					return err
				}
				for name := range h {
					if notInTrailers(name) {
						return malformed("a trailer field changes what came before it")
					}
				}
				b.trailer = h
			}
			b.done = true
			return io.EOF
		case errors.Is(err, errHeadIncomplete):
		case errors.Is(err, errLineTooLong), errors.Is(err, errHeadTooLarge):
			return malformed("the trailer section is too large")
		default:
			return err
		}
		if err := b.in.fill(b.from, b.maxHead); err != nil {
			return noEOF(err)
		}
	}
}

// atHand is how many bytes of the body are in the window, as far as that is known without parsing.
func (b *bodyReader) atHand() int {
	switch {
	case b.done || b.ending == noBody:
		return 0
	case b.ending == byLength, b.ending == byChunks && b.at == chunkData:
		return int(min(b.left, int64(b.in.size())))
	default:
		return b.in.size()
	}
}

// noEOF converts an io.EOF that came too early.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

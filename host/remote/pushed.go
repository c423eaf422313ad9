package remote

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hangar-platform/hangar"
)

// maxContentPiece is how many bytes of a blob are sent in one frame. The reader takes them as they
// come, so that it needs no buffer for them.
const maxContentPiece = 256 << 10

// content serves a blob or manifest of the built-in registry: a kindOpen with its size, its bytes in
// frames of kindData, and a result.
func (h *Handler) content(x *served) {
	ctx, cancel := x.call.context(x.r.Context())
	defer cancel()
	in, err := argument[hangar.PushedRead](&x.call, 0)
	if err == nil && h.pushed == nil {
		err = errOtherVersion(x.name, "it has no %s")
	}
	var content hangar.PushedContent
	if err == nil {
		content, err = h.pushed.OpenPushed(ctx, in)
	}
	if err != nil {
		h.answer(x, nil, err)
		return
	}
	defer content.Close()
	if sent, err := sendContent(x.out, content); err != nil || !sent {
		h.answer(x, nil, err)
		return
	}
	h.answer(x, struct{}{}, nil)
}

// sendContent reports whether all was sent. The error is one of the content, and not of the caller.
func sendContent(out *frameWriter, content hangar.PushedContent) (bool, error) {
	opened, err := json.Marshal(openedFile{Size: content.Size()})
	if err != nil {
		return false, err
	}
	if out.write(kindOpen, opened) != nil {
		return false, nil //nolint:nilerr // the caller has gone
	}
	frame := make([]byte, frameHeader+maxContentPiece)
	frame[0] = byte(kindData)
	for {
		n, err := io.ReadFull(content, frame[frameHeader:])
		if n > 0 {
			binary.BigEndian.PutUint32(frame[1:], uint32(n)) // at most maxContentPiece
			if out.raw(frame[:frameHeader+n]) != nil {
				return false, nil //nolint:nilerr // the caller has gone
			}
		}
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return true, nil
		case err != nil:
			return false, fmt.Errorf("read content for another host: %w", err)
		}
	}
}

// pushedReader reads what another host holds of the built-in registry.
type pushedReader struct{ *peer }

// Pushed implements hangar.PushedReaders. It finds no reader of this host, which has one itself.
func (d *Directory) Pushed(id hangar.HostID) (hangar.PushedReader, error) {
	k := d.hosts.Load()
	m := k.byID[id]
	if m == nil && !k.synced {
		return nil, hangar.Errorf(hangar.CodeUnavailable, "", "host %s is not known yet", id)
	}
	if m == nil || m.peer == nil {
		return nil, hangar.Errorf(hangar.CodeNotFound, "", "unknown host %q", id)
	}
	if err := m.away(); err != nil {
		return nil, err
	}
	return pushedReader{m.peer}, nil
}

// OpenPushed implements hangar.PushedReader.
func (p pushedReader) OpenPushed(ctx context.Context, in hangar.PushedRead) (hangar.PushedContent, error) {
	call, err := encodeCall(ctx, []any{in})
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	if err := writeFrame(&body, kindCall, call); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	answer, err := p.exchange(ctx, "OpenPushed", &body)
	if err != nil {
		cancel()
		return nil, err
	}
	c := &content{ctx: ctx, cancel: cancel, p: p.peer, answer: answer}
	if err := c.open(); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// content is what another host sends of a blob or manifest.
type content struct {
	ctx    context.Context
	cancel context.CancelFunc
	p      *peer
	answer io.ReadCloser
	size   int64

	left int   // bytes of the frame that is being read
	end  error // of the answer
}

func (c *content) open() error {
	k, payload, err := readFrame(c.answer, maxCall)
	var opened openedFile
	switch {
	case err != nil:
		return c.p.failure(c.ctx, lostError{err})
	case k == kindError:
		return rebuilt(payload)
	case k == kindOpen:
		err = json.Unmarshal(payload, &opened)
	default:
		err = fmt.Errorf("unexpected frame %q", k)
	}
	if err == nil && opened.Size < 0 {
		err = fmt.Errorf("content of %d bytes", opened.Size)
	}
	if err != nil {
		return c.p.unreachable(err)
	}
	c.size = opened.Size
	return nil
}

// Size implements hangar.PushedContent.
func (c *content) Size() int64 { return c.size }

// Read implements io.Reader. It answers io.EOF after the whole alone.
func (c *content) Read(b []byte) (int, error) {
	for c.left == 0 && c.end == nil {
		c.end = c.next()
	}
	if c.left == 0 {
		return 0, c.end
	}
	n, err := c.answer.Read(b[:min(len(b), c.left)])
	c.left -= n
	if err != nil && c.left > 0 {
		c.left, c.end = 0, c.p.failure(c.ctx, lostError{within(err)})
		if n == 0 {
			return 0, c.end
		}
	}
	return n, nil
}

// next reads the header of a frame of content, or the end of the answer.
func (c *content) next() error {
	var header [frameHeader]byte
	if _, err := io.ReadFull(c.answer, header[:]); err != nil {
		return c.p.failure(c.ctx, lostError{within(err)})
	}
	n := binary.BigEndian.Uint32(header[1:])
	if kind(header[0]) == kindData && n <= maxContentPiece {
		c.left = int(n)
		return nil
	}
	if n > maxCall {
		return c.p.unreachable(fmt.Errorf("frame %q of %d bytes", header[0], n))
	}
	payload := make([]byte, min(n, firstBuffer))
	if _, err := io.ReadFull(c.answer, payload); err != nil {
		return c.p.failure(c.ctx, lostError{within(err)})
	}
	switch kind(header[0]) {
	case kindResult:
		return io.EOF
	case kindError:
		return rebuilt(payload)
	default:
		return c.p.unreachable(fmt.Errorf("unexpected frame %q", header[0]))
	}
}

// Close implements io.Closer. It may be repeated.
func (c *content) Close() error {
	c.cancel()
	return c.answer.Close()
}

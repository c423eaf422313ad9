// Package nbd reads a remote block device by the NBD protocol, as far as QEMU's storage
// daemon speaks it: the fixed newstyle handshake, structured replies, block status.
//
// A Client sends concurrent requests and matches the answers by their cookies, so that methods may be
// called from many goroutines. After the first failure of the connection, or when the server is
// silent for Patience, every call fails; an error from the server fails one call only.
// https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md specifies the protocol.
package nbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar/internal/extent"
)

// Allocation is the context that shows where the data is.
const Allocation = "base:allocation"

// DirtyBitmap is the context that shows the set bits of a dirty bitmap of QEMU.
func DirtyBitmap(name string) string { return "qemu:dirty-bitmap:" + name }

// Flags of the status of a range. A dirty bitmap has only FlagDirty.
const (
	FlagHole  = 1 // of Allocation: nothing is allocated
	FlagZero  = 2 // of Allocation: it reads as zeros
	FlagDirty = 1 // of a DirtyBitmap
)

// maxRead bounds the bytes of one read request: servers may refuse more than 32 MiB, and several
// small responses arrive sooner.
const maxRead = 1 << 20

// maxStatus bounds the range of one status request; its length has 32 bits.
const maxStatus = 1 << 30

// Patience is how long a server may take for its next answer before the connection counts as broken.
const Patience = 30 * time.Second

// Client is a connection to an export. Dial makes it.
type Client struct {
	conn     net.Conn
	size     int64
	contexts map[string]uint32 // ids that the server assigned

	send sync.Mutex // locked while a request is written

	mu      sync.Mutex // guards the fields below
	last    uint64
	waiting map[uint64]*request
	broken  error
	done    chan struct{} // closed when the goroutine has ended
}

// request is a request in flight.
type request struct {
	into   []byte // buffer of a read
	offset int64
	status func(context uint32, extents []status)
	err    error // from the server
	done   chan error
}

type status struct {
	length, flags uint32
}

// Dial connects to an export through a Unix socket. For a context that the server does not know,
// Status returns errors.ErrUnsupported.
func Dial(ctx context.Context, socket, export string, contexts ...string) (*Client, error) {
	conn, err := (&net.Dialer{Timeout: Patience}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	return newClient(conn, export, contexts)
}

func newClient(conn net.Conn, export string, contexts []string) (*Client, error) {
	c := &Client{
		conn: conn, contexts: map[string]uint32{}, waiting: map[uint64]*request{}, done: make(chan struct{}),
	}
	err := conn.SetDeadline(time.Now().Add(Patience))
	if err == nil {
		err = c.negotiate(export, contexts)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open export %s: %w", export, err), conn.Close())
	}
	go c.receive()
	return c, nil
}

// renewDeadline renews Patience if any request is in flight. c.mu is held.
func (c *Client) renewDeadline() {
	deadline := time.Time{}
	if len(c.waiting) > 0 {
		deadline = time.Now().Add(Patience)
	}
	_ = c.conn.SetDeadline(deadline) // fails once the connection is closed
}

// Size is the size of the export, in bytes.
func (c *Client) Size() int64 { return c.size }

// Close ends the connection. Calls in flight fail.
func (c *Client) Close() error {
	c.send.Lock()
	_, _ = c.conn.Write(encode(cmdDisconnect, 0, 0, 0))
	c.send.Unlock()
	err := c.conn.Close()
	<-c.done
	return err
}

// ReadAt reads len(b) bytes. It splits a large read into concurrent requests.
func (c *Client) ReadAt(b []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, fmt.Errorf("read at %d: %w", offset, syscall.EINVAL)
	}
	n := min(int64(len(b)), max(c.size-offset, 0))
	var pending []*request
	for at := int64(0); at < n; at += maxRead {
		part := b[at:min(at+maxRead, n)]
		pending = append(pending, c.start(cmdRead, offset+at, int64(len(part)), &request{into: part, offset: offset + at}))
	}
	var err error
	for _, r := range pending {
		if e := <-r.done; e != nil && err == nil {
			err = fmt.Errorf("read at %d: %w", r.offset, e)
		}
	}
	switch {
	case err != nil:
		return 0, err
	case n < int64(len(b)):
		return int(n), io.EOF
	default:
		return int(n), nil
	}
}

// Status returns the ranges whose flags, in a context, satisfy want.
func (c *Client) Status(ctx context.Context, name string, want func(flags uint32) bool) (extent.List, error) {
	id, ok := c.contexts[name]
	if !ok {
		return nil, fmt.Errorf("status %s: %w", name, errors.ErrUnsupported)
	}
	var found []extent.Extent
	for at := int64(0); at < c.size; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		from := at
		r := &request{offset: at, status: func(context uint32, parts []status) {
			if context != id {
				return
			}
			for _, p := range parts {
				if want(p.flags) {
					found = append(found, extent.Extent{Offset: at, Length: min(int64(p.length), c.size-at)})
				}
				at += int64(p.length)
			}
		}}
		if err := <-c.start(cmdBlockStatus, at, min(maxStatus, c.size-at), r).done; err != nil {
			return nil, fmt.Errorf("status %s at %d: %w", name, from, err)
		}
		if at == from {
			return nil, fmt.Errorf("status %s at %d: the server returned no status", name, from)
		}
	}
	return extent.Of(found...), nil
}

// start sends a request. Its channel receives the result.
func (c *Client) start(command uint16, offset, length int64, r *request) *request {
	r.done = make(chan error, 1)
	c.mu.Lock()
	if c.broken != nil {
		c.mu.Unlock()
		r.done <- c.broken
		return r
	}
	c.last++
	cookie := c.last
	c.waiting[cookie] = r
	c.renewDeadline()
	c.mu.Unlock()

	c.send.Lock()
	_, err := c.conn.Write(encode(command, cookie, offset, uint32(length)))
	c.send.Unlock()
	if err != nil {
		_ = c.conn.Close() // receive then fails all requests in flight
	}
	return r
}

// receive dispatches responses until the connection ends.
func (c *Client) receive() {
	defer close(c.done)
	var err error
	for err == nil {
		err = c.answer()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = fmt.Errorf("connection to the server: %w", err)
	for cookie, r := range c.waiting {
		delete(c.waiting, cookie)
		r.done <- c.broken
	}
}

// answer reads one reply. It returns connection errors only.
func (c *Client) answer() error {
	var magic [4]byte
	if _, err := io.ReadFull(c.conn, magic[:]); err != nil {
		return err
	}
	switch binary.BigEndian.Uint32(magic[:]) {
	case magicSimple:
		var h simpleReply
		if err := binary.Read(c.conn, binary.BigEndian, &h); err != nil {
			return err
		}
		r := c.request(h.Cookie)
		if r == nil {
			return fmt.Errorf("answer to %d, which was not requested", h.Cookie)
		}
		r.fail(h.Error, "")
		if h.Error == 0 && r.into != nil {
			if _, err := io.ReadFull(c.conn, r.into); err != nil {
				return err
			}
		}
		c.finish(h.Cookie, r)
		return nil
	case magicStructured:
		var h chunk
		if err := binary.Read(c.conn, binary.BigEndian, &h); err != nil {
			return err
		}
		r := c.request(h.Cookie)
		if r == nil || h.Length > maxChunk {
			return fmt.Errorf("answer of %d bytes to %d", h.Length, h.Cookie)
		}
		if err := r.take(c.conn, h); err != nil {
			return err
		}
		if h.Flags&chunkLast != 0 {
			c.finish(h.Cookie, r)
		}
		return nil
	default:
		return fmt.Errorf("reply begins with %x", magic)
	}
}

func (c *Client) request(cookie uint64) *request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting[cookie]
}

func (c *Client) finish(cookie uint64, r *request) {
	c.mu.Lock()
	delete(c.waiting, cookie)
	c.renewDeadline()
	c.mu.Unlock()
	r.done <- r.err
}

// fail records an error from the server; the first one wins.
func (r *request) fail(code uint32, text string) {
	if code == 0 || r.err != nil {
		return
	}
	r.err = os.NewSyscallError("nbd", syscall.Errno(code))
	if text != "" {
		r.err = fmt.Errorf("%w: %s", r.err, text)
	}
}

package traffic

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// Flow counts a client's connection. It counts for one App at a time, which gets the bytes since
// the connection began or its App changed.
type Flow struct {
	table   *Table
	measure func() (in, out uint64, ok bool) // bytes since the beginning
	stream  bool                             // it is TCP, whose connections are counted

	app atomic.Pointer[App] // changed with mu held

	mu      sync.Mutex // guards what follows
	in, out uint64     // bytes that are accounted for
	ended   bool
}

// NewFlow returns the Flow of a connection that is not TCP, which the caller ends. measure
// returns how many bytes came and went since the connection began.
func (t *Table) NewFlow(measure func() (in, out uint64)) *Flow {
	return &Flow{table: t, measure: func() (uint64, uint64, bool) { in, out := measure(); return in, out, true }}
}

// For has the connection count for an App from now on, and returns the App's counts.
func (f *Flow) For(id hangar.AppID) *App {
	if a := f.app.Load(); a != nil && a.id == id {
		return a
	}
	return f.change(id)
}

func (f *Flow) change(id hangar.AppID) *App {
	a := f.table.App(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.app.Load()
	if f.ended || before == a {
		return a
	}
	if before != nil {
		f.accountLocked()
		f.disconnect(before)
	}
	f.app.Store(a)
	if f.stream {
		a.connects.Add(1)
	}
	f.table.mu.Lock()
	f.table.flows[f] = struct{}{}
	f.table.mu.Unlock()
	return a
}

func (f *Flow) disconnect(a *App) {
	if f.stream {
		a.disconnects.Add(1)
	}
}

// End accounts for the last bytes of a connection. It may be repeated.
func (f *Flow) End() {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.app.Load()
	if f.ended || a == nil {
		f.ended = true
		return
	}
	f.accountLocked()
	f.ended = true
	f.disconnect(a)
	f.table.mu.Lock()
	delete(f.table.flows, f)
	f.table.mu.Unlock()
}

// account gives the App the bytes that have passed.
func (f *Flow) account() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.accountLocked()
}

func (f *Flow) accountLocked() {
	a := f.app.Load()
	if f.ended || a == nil {
		return
	}
	in, out, ok := f.measure()
	if !ok {
		return
	}
	// The kernel's count may go back by some bytes when it sends some again.
	if in > f.in {
		a.in.Add(in - f.in)
		f.in = in
	}
	if out > f.out {
		a.out.Add(out - f.out)
		f.out = out
	}
}

// Conn is a client's TCP connection that is counted. It is closed by Close alone, before which
// it asks the kernel for its bytes.
type Conn struct {
	*net.TCPConn
	flow    Flow
	ended   atomic.Bool // the client has sent the end of its direction, and that was read
	closing atomic.Bool
}

// Count returns a connection that is counted.
func (t *Table) Count(conn *net.TCPConn) *Conn {
	c := &Conn{TCPConn: conn}
	c.flow.table, c.flow.stream, c.flow.measure = t, true, c.passed
	return c
}

// Flow is the count of the connection.
func (c *Conn) Flow() *Flow { return &c.flow }

// TCP returns the connection itself, for splicing. It must not be closed.
func (c *Conn) TCP() *net.TCPConn { return c.TCPConn }

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if errors.Is(err, io.EOF) {
		c.Ended()
	}
	return n, err
}

// Ended notes that the end of what the client sends was read, for a caller that reads by TCP.
func (c *Conn) Ended() { c.ended.Store(true) }

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.closing.Store(true)
	c.flow.End()
	return c.TCPConn.Close()
}

// Abort closes the connection so that the client does not take it for an orderly end.
func (c *Conn) Abort(error) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// passed is how many bytes the peer has sent, and how many were written for it.
func (c *Conn) passed() (in, out uint64, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		in, out, ok = info.Bytes_received, info.Bytes_sent-info.Bytes_retrans+uint64(info.Notsent_bytes), true
		// The kernel counts the end of a direction as a byte: when it has come, and until it is sent.
		// A connection that is over does not tell whether its client has ended or broken it. The reader knows.
		over := info.State == tcpClose
		if over && !c.ended.Load() && !c.closing.Load() {
			ok = false
		}
		if in > 0 && (finReceived(info.State) || over && c.ended.Load()) {
			in--
		}
		if info.Notsent_bytes > 0 && finQueued(info.State) {
			out--
		}
	})
	return in, out, ok && err == nil
}

// States of TCP in which a direction has ended, as in the kernel's include/net/tcp_states.h.
const (
	tcpFinWait1  = 4
	tcpTimeWait  = 6
	tcpClose     = 7
	tcpCloseWait = 8
	tcpLastAck   = 9
	tcpClosing   = 11
)

func finQueued(state uint8) bool {
	return state == tcpFinWait1 || state == tcpLastAck || state == tcpClosing
}

func finReceived(state uint8) bool {
	return state == tcpCloseWait || state == tcpLastAck || state == tcpClosing || state == tcpTimeWait
}

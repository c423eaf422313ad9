// Package localapi serves the API to Machines over a socket in a directory inside each of them,
// which identifies the Machine.
//
// A socket is in the directory complete or not at all, and stays the Machine's until Close or End;
// the next process puts its own in its place. It is for root alone, until the Machine gives it
// another mode or owner, which the sockets that take its place have, too. Connections from before
// Run wait and are not refused.
//
// The Machine may write in the directory, at any time. Nothing in it is followed, opened or waited
// for: the socket is made beside the directory, out of the Machine's reach, and renamed into it. A
// Machine that puts a directory where its socket belongs has none.
//
// Each Machine may have maxConns connections; more wait until one of those ends. One that rests
// for restTime is closed. Requests carry the Machine in their context, see hangar.AsMachine; the
// handler decides what they may ask.
//
// Connections do not survive a suspend of their Machine. Settle waits until every request has its
// answer, and the Machine has read it.
//
// All methods may be called from many goroutines. There is one goroutine per socket, and
// net/http's one per connection; Close and the end of Run end them.
package localapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/finish"
)

// SocketName is the name of the socket in its directory.
const SocketName = "api"

// The bounds of a Machine's use of the server.
const (
	maxConns = 64
	restTime = 30 * time.Second
	// backlog is how many connections may wait to be accepted.
	backlog = 128
	// drainTime is how long requests that are under way may take once Run ends.
	drainTime = 2 * time.Second
)

// The bounds of Settle.
const (
	answerPatience = 250 * time.Millisecond // for requests under way
	readPatience   = time.Second            // for unread answers
	look           = time.Millisecond       // the kernel sends no event when an answer was read
)

// Sockets are the sockets of the Machines of a server.
type Sockets struct {
	log *slog.Logger

	mu     sync.Mutex
	open   map[hangar.MachineID]*socket // guarded by mu
	server *http.Server                 // while Run runs; guarded by mu
	served sync.WaitGroup               // the goroutines of sockets
}

// New returns Sockets without any.
func New(log *slog.Logger) *Sockets {
	return &Sockets{log: log, open: make(map[hangar.MachineID]*socket)}
}

// Open makes the socket of a Machine in dir, which exists, by way of the directory that dir
// is in. It may be repeated.
func (s *Sockets) Open(dir string, org hangar.OrgSlug, orgID hangar.OrgID, ref hangar.MachineRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[ref.ID] != nil {
		return nil
	}
	l, err := listen(dir)
	if err != nil {
		return fmt.Errorf("make the socket of machine %s: %w", ref.ID, err)
	}
	k := &socket{
		listener: l, org: org, orgID: orgID, ref: ref, free: make(chan struct{}, maxConns), closed: make(chan struct{}), conns: make(map[*conn]bool),
	}
	s.open[ref.ID] = k
	if s.server != nil {
		s.serve(k)
	}
	return nil
}

// serve answers the requests of a socket. s.mu is held.
func (s *Sockets) serve(k *socket) {
	server := s.server
	s.served.Go(func() {
		if err := server.Serve(k); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			s.log.Error("local API of a machine ended", "machine", k.ref.ID, "error", err)
		}
	})
}

// Close removes the socket of a Machine, with its connections. It may be repeated.
func (s *Sockets) Close(id hangar.MachineID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.open[id]; k != nil {
		delete(s.open, id)
		k.close()
	}
}

// Run answers requests with server until ctx ends, which the requests see, too. The
// sockets then refuse connections.
func (s *Sockets) Run(ctx context.Context, server *http.Server) error {
	server.IdleTimeout = restTime
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		k := c.(*conn).of
		return hangar.AsMachine(ctx, k.org, k.orgID, k.ref)
	}
	server.ConnState = func(c net.Conn, state http.ConnState) { c.(*conn).turned(state) }
	s.mu.Lock()
	s.server = server
	for _, k := range s.open {
		s.serve(k)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.server = nil
	s.mu.Unlock()
	bounded, cancel := finish.Within(ctx, drainTime)
	defer cancel()
	err := server.Shutdown(bounded)
	if err != nil {
		err = server.Close()
	}
	s.served.Wait()
	return errors.Join(err, ctx.Err())
}

// End closes every socket of this process. Their names stay in the directories, for the
// next process to put its own in their place.
func (s *Sockets) End() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, k := range s.open {
		delete(s.open, id)
		k.close()
	}
	return nil
}

// Settle returns when the Machine waits for no answer any more, or after a limit. Later requests
// may go unanswered if its memory is written to disk.
func (s *Sockets) Settle(ctx context.Context, id hangar.MachineID) {
	s.mu.Lock()
	k := s.open[id]
	s.mu.Unlock()
	if k == nil || k.settled(0) {
		return
	}
	began := time.Now()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if k.settled(time.Since(began)) {
			return
		}
	}
}

// socket is the socket of a Machine. It is the listener that net/http accepts from.
type socket struct {
	listener *net.UnixListener
	org      hangar.OrgSlug
	orgID    hangar.OrgID
	ref      hangar.MachineRef
	free     chan struct{} // holds a value per connection
	closed   chan struct{} // closed by close

	mu      sync.Mutex
	conns   map[*conn]bool // whether a request of it is under way; guarded by mu
	parting sync.WaitGroup // connections that the Machine has yet to read from
}

// Accept implements net.Listener.
func (k *socket) Accept() (net.Conn, error) {
	select {
	case k.free <- struct{}{}:
	case <-k.closed:
		return nil, net.ErrClosed
	}
	c, err := k.listener.AcceptUnix()
	if err != nil {
		<-k.free
		return nil, err
	}
	accepted := &conn{UnixConn: c, of: k}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended() {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	k.conns[accepted] = false
	return accepted, nil
}

// Addr implements net.Listener.
func (k *socket) Addr() net.Addr { return k.listener.Addr() }

// Close implements net.Listener.
func (k *socket) Close() error { return k.listener.Close() }

// close ends the socket and its connections.
func (k *socket) close() {
	_ = k.listener.Close()
	k.mu.Lock()
	close(k.closed)
	conns := make([]*conn, 0, len(k.conns))
	for c := range k.conns {
		conns = append(conns, c)
	}
	k.mu.Unlock()
	for _, c := range conns {
		c.end()
	}
	k.parting.Wait()
}

// ended reports whether close was called.
func (k *socket) ended() bool {
	select {
	case <-k.closed:
		return true
	default:
		return false
	}
}

// settled reports whether no request has waited for an answer within the patience.
func (k *socket) settled(waited time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c, busy := range k.conns {
		if busy && waited < answerPatience || waited < readPatience && c.unread() {
			return false
		}
	}
	return true
}

// conn is a connection of a Machine.
type conn struct {
	*net.UnixConn
	of   *socket
	once sync.Once
}

// turned records the state of the connection in net/http.
func (c *conn) turned(state http.ConnState) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if _, ok := c.of.conns[c]; ok {
		c.of.conns[c] = state == http.StateActive
	}
}

// Close ends the connection once the Machine has read all of the output, or after a limit: Settle
// still waits for that after the last request of a connection.
func (c *conn) Close() error {
	if !c.part() {
		c.end()
	}
	return nil
}

// part begins to end the connection after the Machine, if that has something to read.
func (c *conn) part() bool {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if _, ok := c.of.conns[c]; !ok || c.of.ended() || !c.unread() {
		return false
	}
	c.of.conns[c] = false
	if c.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(readPatience)) != nil {
		return false
	}
	c.of.parting.Go(func() {
		defer c.end()
		_, _ = io.Copy(io.Discard, c.UnixConn) // ends when the Machine closes its side
	})
	return true
}

func (c *conn) end() {
	c.once.Do(func() {
		_ = c.UnixConn.Close()
		c.of.mu.Lock()
		delete(c.of.conns, c)
		c.of.mu.Unlock()
		<-c.of.free
	})
}

// unread reports whether there are bytes that the Machine has not read.
func (c *conn) unread() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var n int
	err = errors.Join(raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }), err)
	return err == nil && n > 0
}

// listen makes the socket beside the directory first, on the same file system: in the
// directory it appears with the permissions that it is to have, in the place of one that a
// process before has left. It is bound by the descriptor of the place, because the name of
// a socket is short.
func listen(dir string) (_ *net.UnixListener, err error) {
	inside, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer inside.Close()
	beside, err := os.OpenFile(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer beside.Close()
	to, at, made := int(inside.Fd()), int(beside.Fd()), filepath.Base(dir)+"."+SocketName
	owner, err := accessOf(to)
	if err != nil {
		return nil, err
	}
	if err := unix.Unlinkat(at, made, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), SocketName)
	defer f.Close() // the listener has a copy
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(at) + "/" + made}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := owner.give(at, made); err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	if err := unix.Renameat(at, made, to, SocketName); err != nil {
		return nil, errors.Join(err, unix.Unlinkat(at, made, 0))
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	socket := l.(*net.UnixListener)
	socket.SetUnlinkOnClose(false)
	return socket, nil
}

// access is the owner and mode of a socket.
type access struct {
	uid, gid int
	mode     uint32 // permission bits
}

// accessOf returns the access to the socket that is in a directory. Without one, it is
// root's alone.
func accessOf(dir int) (access, error) {
	var old unix.Stat_t
	err := unix.Fstatat(dir, SocketName, &old, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && old.Mode&unix.S_IFMT == unix.S_IFSOCK:
		return access{int(old.Uid), int(old.Gid), old.Mode & 0o777}, nil
	case err == nil, errors.Is(err, unix.ENOENT):
		return access{mode: 0o600}, nil
	default:
		return access{}, err
	}
}

// give sets the access to a socket that no other process can have replaced.
func (a access) give(dir int, name string) error {
	if err := unix.Fchownat(dir, name, a.uid, a.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(dir, name, a.mode, 0)
}

package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pidfd"
)

var (
	errClosed     = errors.New("client is closed")
	errHeldClosed = errors.New("the descriptor to pass to the keeper is closed")
	errOlder      = errors.New("the keeper is of an older version")
)

// network is the network of Unix sockets that preserve message boundaries.
const network = "unixpacket"

// answerPatience limits the wait for an answer of a keeper.
const answerPatience = 10 * time.Second

// The pauses between attempts to replace a keeper that ends repeatedly.
const (
	minPause = 100 * time.Millisecond
	maxPause = 30 * time.Second
)

// Options of a Client.
type Options struct {
	// Socket is the path of the keeper's socket. Its directory is made for this user only, and that
	// directory's parent is made searchable for all users.
	Socket string
	// Start starts a process that runs Serve on the listener, and nothing else. The process must
	// outlive this one, and must not inherit its descriptors.
	Start func(listener *os.File) (*os.Process, error)
	Log   *slog.Logger
}

// Entry is a FIFO that the keeper holds.
type Entry struct {
	Name string
	Path string
}

// Client passes descriptors to a keeper. New makes one, Open makes it usable. There must be only one
// Client for a socket at a time.
type Client struct {
	o         Options
	inherited []Entry
	sockets   map[string]*os.File // guarded by mu; not taken yet
	closing   chan struct{}
	done      chan struct{} // closed when the goroutine has ended

	mu    sync.Mutex
	conn  *net.UnixConn // nil without a keeper
	held  map[string]holding
	child *os.Process // the keeper, if this process has started it
}

// holding is a descriptor that was passed to the keeper, and is passed to every new keeper.
type holding struct {
	word string // wordHold or wordSocket
	path string // of a FIFO
	file syscall.Conn
}

// New returns a Client that Open makes usable.
func New(o Options) *Client { return &Client{o: o} }

// Open connects to the keeper, or starts one.
func (c *Client) Open(ctx context.Context) error {
	c.closing, c.done = make(chan struct{}), make(chan struct{})
	c.held = map[string]holding{}
	dir := filepath.Dir(c.o.Socket)
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil { //nolint:gosec // G301: others keep there what their sandboxes traverse
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	conn, err := c.meet(ctx)
	if err != nil {
		return fmt.Errorf("open keeper: %w", err)
	}
	c.conn = conn
	go func() {
		defer close(c.done)
		lifetime, end := finish.Lifetime(ctx)
		defer end()
		c.watch(lifetime, conn)
	}()
	return nil
}

// meet connects to a keeper and reads what it holds.
func (c *Client) meet(ctx context.Context) (*net.UnixConn, error) {
	conn, err := dial(ctx, c.o.Socket)
	if err == nil {
		if err = c.learn(conn); err == nil {
			return conn, nil
		}
		_ = conn.Close()
		if errors.Is(err, errOlder) {
			return c.replace(ctx)
		}
		if !isGone(err) {
			return nil, err
		}
		// The keeper was about to end because it held nothing.
	} else if !isAbsent(err) {
		return nil, err
	}
	return c.start(ctx)
}

// learn asks the keeper which descriptors it holds.
func (c *Client) learn(conn *net.UnixConn) (err error) {
	if c.inherited, err = list(conn); err != nil {
		return err
	}
	c.sockets, err = sockets(conn)
	return err
}

// replace opens what a keeper of an older version holds, ends that keeper, and starts one of this
// version, which receives everything.
func (c *Client) replace(ctx context.Context) (*net.UnixConn, error) {
	c.o.Log.Info("replacing a keeper of an older version", slog.Int("fifos", len(c.inherited)))
	opened := map[string]holding{}
	defer func() {
		for _, h := range opened {
			_ = h.file.(io.Closer).Close()
		}
	}()
	for _, e := range c.inherited {
		fifo, err := os.OpenFile(e.Path, os.O_RDWR|syscall.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed, so its content cannot be read any more
		}
		if err != nil {
			return nil, err // the old keeper holds its content
		}
		opened[e.Name] = holding{wordHold, e.Path, fifo}
	}
	if err := Quit(ctx, c.o.Socket); err != nil {
		return nil, err
	}
	conn, err := c.start(ctx)
	if err != nil {
		return nil, err
	}
	for name, h := range opened {
		if err := handOver(conn, name, h); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

// Inherited returns the FIFOs of an earlier daemon, which the keeper held when the Client was opened.
func (c *Client) Inherited() []Entry { return c.inherited }

// TakeSockets returns the sockets that the keeper held when the Client was opened, by name. The
// caller then owns them and must close them; the keeper holds them until Drop. A second call returns
// none.
func (c *Client) TakeSockets() map[string]*os.File {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.sockets
	c.sockets = nil
	return taken
}

// Hold passes a FIFO to the keeper, replacing one of the same name. From then on, the FIFO's content
// survives this process. The Client keeps using the file, which the caller must not close before Drop
// or Close. Failures are logged.
func (c *Client) Hold(name, path string, fifo *os.File) {
	c.hold(name, holding{wordHold, path, fifo})
}

// HoldSocket passes a socket to the keeper, like Hold, replacing one of the same name. If the caller
// closes the socket before Drop, the keeper still has it, but a new keeper does not get it.
func (c *Client) HoldSocket(name string, socket syscall.Conn) {
	c.hold(name, holding{wordSocket, "", socket})
}

func (c *Client) hold(name string, h holding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[name] = h
	c.request(func() error { return handOver(c.conn, name, h) })
}

// Drop makes the keeper close what it holds under a name. An unknown name is not an error.
func (c *Client) Drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, name)
	c.request(func() error { return send(c.conn, message{wordDrop, name}, nil) })
}

// Close disconnects from the keeper, which keeps what it holds.
func (c *Client) Close() error {
	if c.closing == nil {
		return nil
	}
	c.mu.Lock()
	conn, child := c.conn, c.child
	c.conn, c.child = nil, nil
	for _, f := range c.sockets {
		_ = f.Close()
	}
	c.sockets = nil
	select {
	case <-c.closing:
	default:
		close(c.closing)
	}
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	<-c.done
	if child != nil {
		return child.Release()
	}
	return nil
}

// request sends requests to the keeper, if there is one. After a failure it closes the connection;
// watch makes another one, and passes everything to the keeper again. c.mu is held.
func (c *Client) request(talk func() error) {
	if c.conn == nil {
		return
	}
	err := talk()
	switch {
	case err == nil:
	case errors.Is(err, errTooLong), isClosed(err):
		c.o.Log.Warn("cannot pass a descriptor to the keeper: the next daemon will not get it", slog.Any("error", err))
	default:
		_ = c.conn.Close()
		c.conn = nil
	}
}

// handOver sends a descriptor.
func handOver(conn *net.UnixConn, name string, h holding) error {
	raw, err := h.file.SyscallConn() // not Fd, which would make it blocking
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		err = send(conn, message{h.word, name, h.path}, unix.UnixRights(int(fd)))
	})
	if controlErr != nil {
		return errors.Join(errHeldClosed, controlErr)
	}
	return err
}

// isClosed reports whether the descriptor to pass is closed.
func isClosed(err error) bool { return errors.Is(err, errHeldClosed) }

// watch replaces the keeper whenever it ends, until Close.
func (c *Client) watch(ctx context.Context, conn *net.UnixConn) {
	pause := time.Duration(0)
	for {
		met := time.Now()
		err := c.listen(conn)
		if !c.hungUp(conn) {
			return
		}
		c.o.Log.Warn("the keeper has ended, starting another", slog.Any("error", err))
		if time.Since(met) > maxPause {
			pause = 0
		}
		for conn = nil; conn == nil; {
			if !c.wait(pause) {
				return
			}
			pause = min(max(2*pause, minPause), maxPause)
			conn, err = c.again(ctx)
			if err != nil && !c.isClosing() {
				c.o.Log.Error("cannot start the keeper: nothing is held for the next daemon", slog.Any("error", err))
			}
		}
	}
}

// wait waits, and reports whether the Client is still open.
func (c *Client) wait(pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.closing:
		return false
	}
}

// listen reads the keeper's error messages until the keeper has ended.
func (c *Client) listen(conn *net.UnixConn) error {
	b := make([]byte, maxMessage)
	for {
		n, err := conn.Read(b)
		if err != nil {
			return err
		}
		if m := decode(b[:n]); m[0] == wordFailed {
			c.o.Log.Warn("the keeper does not hold a descriptor: the next daemon will not get it", slog.String("name", m[1]), slog.String("error", m[2]))
		}
	}
}

// hungUp drops a connection and reports whether to make another one.
func (c *Client) hungUp(conn *net.UnixConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = conn.Close()
	c.conn = nil
	return !c.isClosing()
}

func (c *Client) isClosing() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// again connects to a keeper and passes everything to it.
func (c *Client) again(ctx context.Context) (*net.UnixConn, error) {
	conn, err := dial(ctx, c.o.Socket)
	if isAbsent(err) {
		conn, err = c.start(ctx)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosing() {
		return nil, errors.Join(errClosed, conn.Close())
	}
	for name, h := range c.held {
		if err := handOver(conn, name, h); err != nil && !errors.Is(err, errTooLong) && !isClosed(err) {
			return nil, errors.Join(err, conn.Close())
		}
	}
	c.conn = conn
	return conn, nil
}

// start starts a keeper. It connects before the keeper runs, so that no caller has to wait for it.
func (c *Client) start(ctx context.Context) (*net.UnixConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.child != nil { // it does not listen any more
		_ = c.child.Kill()
		_, _ = c.child.Wait()
		c.child = nil
	}
	if err := os.Remove(c.o.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix(network, &net.UnixAddr{Name: c.o.Socket, Net: network})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	if err := os.Chmod(c.o.Socket, 0o600); err != nil {
		return nil, err
	}
	f, err := listener.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	conn, err := dial(ctx, c.o.Socket)
	if err != nil {
		return nil, err
	}
	if c.child, err = c.o.Start(f); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Quit ends the keeper of a socket, if there is one, and waits until its process has ended. What the
// keeper holds is lost unless another process has it open.
func Quit(ctx context.Context, socket string) error {
	conn, err := dial(ctx, socket)
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	m, err := ask(conn, wordQuit)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end keeper: %w", err)
	}
	pid, err := strconv.Atoi(m[1])
	if m[0] != wordBye || err != nil {
		return fmt.Errorf("end keeper: it answered %q", m)
	}
	return awaitEnd(ctx, pid)
}

// awaitEnd waits for the end of a process that is about to end.
func awaitEnd(ctx context.Context, pid int) error {
	process, err := pidfd.Open(pid)
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer process.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, answerPatience, fmt.Errorf("keeper, process %d, does not end", pid))
	defer cancel()
	return pidfd.AwaitContext(ctx, process)
}

func dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, socket)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// isAbsent reports whether dial failed because there is no listener.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}

// isGone reports whether an exchange failed because the other side has ended.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}

// ask sends a word and returns the first message of the answer.
func ask(conn *net.UnixConn, word string) (message, error) {
	if err := send(conn, message{word}, nil); err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(answerPatience)); err != nil {
		return nil, err
	}
	return receive(conn)
}

func receive(conn *net.UnixConn) (message, error) {
	b := make([]byte, maxMessage)
	n, err := conn.Read(b)
	return decode(b[:n]), err
}

// list returns the FIFOs that the keeper holds.
func list(conn *net.UnixConn) ([]Entry, error) {
	var entries []Entry
	m, err := ask(conn, wordList)
	for ; err == nil && m[0] == wordHeld; m, err = receive(conn) {
		entries = append(entries, Entry{Name: m[1], Path: m[2]})
	}
	if err == nil && m[0] != wordEnd {
		err = fmt.Errorf("keeper answers %q", m)
	}
	return entries, errors.Join(err, conn.SetReadDeadline(time.Time{}))
}

// sockets returns the sockets that the keeper holds. It returns errOlder if the keeper does not know
// the request.
func sockets(conn *net.UnixConn) (all map[string]*os.File, err error) {
	all = map[string]*os.File{}
	defer func() {
		if err != nil {
			for _, f := range all {
				_ = f.Close()
			}
			all = nil
		}
	}()
	if err := send(conn, message{wordSockets}, nil); err != nil {
		return nil, err
	}
	b := make([]byte, maxMessage)
	rights := make([]byte, unix.CmsgSpace(4)) // one descriptor
	for {
		if err := conn.SetReadDeadline(time.Now().Add(answerPatience)); err != nil {
			return nil, err
		}
		n, oobn, _, _, err := conn.ReadMsgUnix(b, rights)
		if err != nil {
			return nil, err
		}
		switch m := decode(b[:n]); m[0] {
		case wordSocket:
			fd, err := received(rights[:oobn])
			if err != nil {
				return nil, err
			}
			if err := unix.SetNonblock(fd, true); err != nil {
				return nil, errors.Join(err, unix.Close(fd))
			}
			all[m[1]] = os.NewFile(uintptr(fd), m[1])
		case wordEnd:
			return all, conn.SetReadDeadline(time.Time{})
		case wordFailed:
			return nil, errOlder
		default:
			return nil, fmt.Errorf("keeper answers %q", m)
		}
	}
}

// Package keeper holds descriptors open while no daemon runs, in a process that outlives it: the
// output FIFOs of Machines, so that their last output is still there when the daemon comes back,
// and the sockets of the edge, so that new clients wait meanwhile and are not refused.
//
// The content of a FIFO is lost with its last opener. While there is no daemon, that is the sandbox,
// so the end of the sandbox would lose its last output, such as a stack trace. In the same way, a
// closed socket loses its connections that were not accepted yet. The keeper is one more opener. It
// never reads, writes or opens anything: it only keeps the descriptors that it received until they
// are dropped. The next daemon opens FIFOs by their paths, and gets sockets back from the keeper.
//
// A descriptor is safe once Client.Hold or HoldSocket has returned: it is then in the queue of the
// keeper's socket, which survives a kill of the daemon. If the keeper itself is killed, the Client
// starts another one and passes everything again. Output is lost only if both are killed at once and
// the sandbox ends before the daemon is back. The keeper ends by itself when it has no client and
// holds nothing. It drops FIFOs that were removed, and sockets if no daemon comes back.
//
// A Client may be used from many goroutines, and has one of its own, which waits for the end of the
// keeper. The keeper serves one connection after another, so that it has handled all requests of a
// dead daemon before it serves the next one. Daemons and keepers of different versions work together,
// so the protocol, which the type message describes, may be extended but not changed. Opening a
// Client replaces a keeper that lacks a feature.
//
// The package does not know what Machines and Apps are, and does not start processes itself: the
// Client's Options do.
package keeper

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/pause"
)

// message is one datagram of a SEQPACKET socket: words, separated by zero bytes.
//
//	drop NAME                           close what has that name
//	list                                answered by held NAME PATH for each FIFO, and end
//	sockets                             answered by socket NAME, with a descriptor, for each, and end
//	quit                                answered by bye PID; the keeper ends
//
// A failed request is answered by failed NAME TEXT. Older keepers know no sockets.
type message []string

// The first words of messages.
const (
	wordHold    = "hold"
	wordSocket  = "socket"
	wordDrop    = "drop"
	wordList    = "list"
	wordHeld    = "held"
	wordSockets = "sockets"
	wordEnd     = "end"
	wordQuit    = "quit"
	wordBye     = "bye"
	wordFailed  = "failed"
)

// maxMessage is the size of the longest message: a path, a name and some words.
const maxMessage = 8 << 10

// sendPatience is how long the other side may leave a message unread before it counts as stuck. A
// server may be suspended for seconds.
const sendPatience = 10 * time.Second

const (
	// patrolEvery is how often the keeper looks for FIFOs that were removed.
	patrolEvery = time.Minute
	// socketPatience is how long sockets are held without a daemon. Then connections are refused,
	// which is better than clients that wait.
	socketPatience = 2 * time.Minute
	// acceptPause is the time between attempts to accept a connection when the host lacks something.
	acceptPause = 100 * time.Millisecond
	// spareFiles is the number of descriptors that the keeper leaves free for connections.
	spareFiles = 32
)

var errTooLong = errors.New("name and path are too long")

func encode(m message) ([]byte, error) {
	var b []byte
	for i, word := range m {
		if i > 0 {
			b = append(b, 0)
		}
		b = append(b, word...)
	}
	if len(b) > maxMessage {
		return nil, errTooLong
	}
	return b, nil
}

// decode returns a message of four words at least; missing ones are empty.
func decode(b []byte) message {
	const words = 4
	m := make(message, 0, words)
	for word := range bytes.SplitSeq(b, []byte{0}) {
		m = append(m, string(word))
	}
	for len(m) < words {
		m = append(m, "")
	}
	return m
}

// send writes a message, with descriptors in rights, within sendPatience.
func send(conn *net.UnixConn, m message, rights []byte) error {
	b, err := encode(m)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(sendPatience)); err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix(b, rights, nil)
	return err
}

// keeper is what Serve runs.
type keeper struct {
	listener *net.UnixListener
	most     int           // descriptors to hold
	patience time.Duration // socketPatience

	mu       sync.Mutex
	held     map[string]descriptor
	attended bool      // a client is connected
	left     time.Time // when the last client left, if none is connected
}

// descriptor is a descriptor that the keeper holds.
type descriptor struct {
	fd     int
	path   string // of a FIFO
	socket bool
}

// Serve holds what its clients pass to it; it serves one client after another. It returns nil after a
// client has sent quit, or when it holds nothing and has no client, and then closes everything that
// it holds. The listener, which it closes, must be of the network "unixpacket".
func Serve(listener *net.UnixListener) error { return serve(listener, patrolEvery, socketPatience) }

func serve(listener *net.UnixListener, every, patience time.Duration) error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return errors.Join(err, listener.Close())
	}
	k := &keeper{
		listener: listener, most: int(min(files.Cur, 1<<30)) - spareFiles, patience: patience,
		held: map[string]descriptor{}, left: time.Now(),
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		k.patrol(every, stop)
	}()
	err := k.run()
	close(stop)
	<-stopped
	for name := range k.held {
		k.drop(name)
	}
	return errors.Join(err, listener.Close())
}

// run serves until the keeper is no longer needed. It handles all messages of a dead client before
// those of the next one, which asks what is held.
func (k *keeper) run() error {
	for {
		conn, err := k.listener.AcceptUnix()
		if errors.Is(err, os.ErrDeadlineExceeded) { // patrol ends the keeper
			if k.attend(false) {
				return nil
			}
			err = k.listener.SetDeadline(time.Time{}) // but a client connected at that moment
			if err == nil {
				continue
			}
		}
		if pause.Helps(err) {
			<-time.After(acceptPause)
			continue
		}
		if err != nil {
			return err
		}
		k.attend(true)
		quit := k.converse(conn)
		_ = conn.Close()
		if empty := k.attend(false); quit || empty {
			return nil
		}
	}
}

// attend records whether a client is connected and reports whether nothing is held.
func (k *keeper) attend(yes bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.attended = yes
	k.left = time.Now()
	return len(k.held) == 0
}

// drop closes what is held under a name, if anything. k.mu is held.
func (k *keeper) drop(name string) {
	if d, ok := k.held[name]; ok {
		_ = unix.Close(d.fd)
		delete(k.held, name)
	}
}

// patrol drops removed FIFOs, whose content cannot be read any more, and sockets after too long
// without a daemon. So a keeper also ends after its data directory was simply deleted.
func (k *keeper) patrol(every time.Duration, stop <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		k.mu.Lock()
		abandoned := !k.attended && time.Since(k.left) > k.patience
		for name, d := range k.held {
			if d.socket && abandoned || !d.socket && removed(d.fd) {
				k.drop(name)
			}
		}
		if len(k.held) == 0 && !k.attended {
			_ = k.listener.SetDeadline(time.Unix(1, 0)) // ends run
		}
		k.mu.Unlock()
	}
}

// removed reports whether a FIFO has no name any more.
func removed(fd int) bool {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return err == nil && st.Nlink == 0
}

// converse serves a connection until its end. It reports whether the keeper must end.
func (k *keeper) converse(conn *net.UnixConn) (quit bool) {
	b := make([]byte, maxMessage)
	rights := make([]byte, unix.CmsgSpace(4)) // one descriptor
	for {
		n, oobn, _, _, err := conn.ReadMsgUnix(b, rights)
		if err != nil {
			return false
		}
		m := decode(b[:n])
		switch m[0] {
		case wordHold, wordSocket:
			if err = k.hold(m, rights[:oobn]); err != nil {
				err = send(conn, message{wordFailed, m[1], err.Error()}, nil)
			}
		case wordDrop:
			k.mu.Lock()
			k.drop(m[1])
			k.mu.Unlock()
		case wordList:
			err = k.list(conn)
		case wordSockets:
			err = k.sockets(conn)
		case wordQuit:
			_ = send(conn, message{wordBye, strconv.Itoa(os.Getpid())}, nil)
			return true
		default:
			err = send(conn, message{wordFailed, "", "unknown request " + strconv.Quote(m[0])}, nil)
		}
		if err != nil {
			return false
		}
	}
}

// hold adds a descriptor.
func (k *keeper) hold(m message, rights []byte) error {
	fd, err := received(rights)
	if err != nil {
		return err
	}
	d := descriptor{fd: fd, path: m[2], socket: m[0] == wordSocket}
	kind, what := uint32(unix.S_IFIFO), "FIFO"
	if d.socket {
		kind, what = unix.S_IFSOCK, "socket"
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != kind {
		return errors.Join(errors.New("not a "+what), err, unix.Close(fd))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	name := m[1]
	if _, known := k.held[name]; !known && len(k.held) >= k.most {
		return errors.Join(errors.New("too many open files"), unix.Close(fd))
	}
	k.drop(name)
	k.held[name] = d
	return nil
}

// received returns the descriptor in a control message.
func received(rights []byte) (int, error) {
	control, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return 0, err
	}
	for i := range control {
		if fds, err := unix.ParseUnixRights(&control[i]); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return 0, errors.New("no descriptor came with it")
}

// list sends the names of the FIFOs that are held.
func (k *keeper) list(conn *net.UnixConn) error {
	k.mu.Lock()
	all := make([]message, 0, len(k.held)+1)
	for name, d := range k.held {
		if !d.socket {
			all = append(all, message{wordHeld, name, d.path})
		}
	}
	k.mu.Unlock()
	for _, m := range append(all, message{wordEnd}) {
		if err := send(conn, m, nil); err != nil {
			return err
		}
	}
	return nil
}

// sockets sends every socket, and continues to hold it.
func (k *keeper) sockets(conn *net.UnixConn) error {
	k.mu.Lock()
	all := make(map[string]int, len(k.held))
	for name, d := range k.held {
		if d.socket {
			all[name] = d.fd
		}
	}
	k.mu.Unlock()
	for name, fd := range all { // patrol closes none of them while a client is connected
		if err := send(conn, message{wordSocket, name}, unix.UnixRights(fd)); err != nil {
			return err
		}
	}
	return send(conn, message{wordEnd}, nil)
}

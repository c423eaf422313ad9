// Package keeper holds the output FIFOs of Machines open in a process that outlives
// the daemon, so that what a Machine wrote last is still there when the daemon comes
// back.
//
// What is in a FIFO goes with its last opener. While the daemon is away that is the
// sandbox, and when it ends the stack trace that it died of would be gone. The keeper
// is one more opener: it never reads, writes or opens anything, but keeps descriptors
// that it was given, until it is told to let go.
//
// A FIFO is safe from the moment that Client.Hold returns: its descriptor is then on
// its way in the socket of the keeper, which loses nothing if the daemon is killed
// next. When the keeper itself is killed, the Client starts another and hands
// everything over again; only if both are killed at once, and the sandbox ends before
// the daemon is back, output is lost. The keeper ends by itself when nobody is
// connected and it holds nothing; FIFOs that were removed it does not hold for long.
//
// A Client is one goroutine, which waits for the keeper to end, and may be used from
// many. The keeper serves one connection after the other, so that it has done what a dead
// daemon asked for before it listens to the next. Daemons and keepers of different versions meet, so the protocol may grow but
// not change; it is described at the type message.
//
// The package does not know what Machines are, and does not start a process: whoever
// makes the Client says how.
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
)

// message is one datagram of a SEQPACKET socket: words, separated by zero bytes.
//
//	hold NAME PATH, with a descriptor   hold a FIFO, instead of the one of that name
//	drop NAME                           close it
//	list                                answered by held NAME PATH for each, and end
//	quit                                answered by bye PID; the keeper ends
//
// What cannot be done is answered by failed NAME TEXT.
type message []string

// The first words of messages.
const (
	wordHold   = "hold"
	wordDrop   = "drop"
	wordList   = "list"
	wordHeld   = "held"
	wordEnd    = "end"
	wordQuit   = "quit"
	wordBye    = "bye"
	wordFailed = "failed"
)

// maxMessage is the length of the longest message: a path, a name and some.
const maxMessage = 8 << 10

// sendPatience is how long the other side may leave a message unread until it is
// taken for stuck.
const sendPatience = time.Second

const (
	// patrolEvery is how often the keeper looks for FIFOs that were removed.
	patrolEvery = time.Minute
	// spareFiles are the descriptors that the keeper leaves free for connections.
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

// send writes a message within sendPatience; rights are descriptors to go with it.
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
	most     int // FIFOs to hold

	mu       sync.Mutex
	held     map[string]fifo
	attended bool // somebody is connected
}

// fifo is one that is held.
type fifo struct {
	fd   int
	path string
}

// Serve holds what those who connect hand over, one after the other. It returns nil
// when it was told to quit, or when it holds nothing and nobody is connected any more,
// and then holds nothing. The listener, which it closes, is of the network
// "unixpacket".
func Serve(listener *net.UnixListener) error { return serve(listener, patrolEvery) }

func serve(listener *net.UnixListener, every time.Duration) error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return errors.Join(err, listener.Close())
	}
	k := &keeper{listener: listener, most: int(min(files.Cur, 1<<30)) - spareFiles, held: map[string]fifo{}}
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

// run serves until the keeper is of no use any more. What a client sent that is dead by
// now comes before anything of the next one, which asks what is held.
func (k *keeper) run() error {
	for {
		conn, err := k.listener.AcceptUnix()
		if errors.Is(err, os.ErrDeadlineExceeded) { // patrol found nothing to do for us
			if k.attend(false) {
				return nil
			}
			err = k.listener.SetDeadline(time.Time{}) // but somebody came at that moment
			if err == nil {
				continue
			}
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

// attend notes whether somebody is connected and reports whether nothing is held.
func (k *keeper) attend(yes bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.attended = yes
	return len(k.held) == 0
}

// drop closes what is held under a name, if anything. k.mu is held.
func (k *keeper) drop(name string) {
	if f, ok := k.held[name]; ok {
		_ = unix.Close(f.fd)
		delete(k.held, name)
	}
}

// patrol lets go of FIFOs that were removed: nobody can open them any more to read
// what is in them. So a keeper ends also when a data directory was simply deleted.
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
		for name, f := range k.held {
			var st unix.Stat_t
			if err := unix.Fstat(f.fd, &st); err == nil && st.Nlink == 0 {
				k.drop(name)
			}
		}
		if len(k.held) == 0 && !k.attended {
			_ = k.listener.SetDeadline(time.Unix(1, 0)) // ends run
		}
		k.mu.Unlock()
	}
}

// converse does what comes over a connection until its end. It reports whether the
// keeper is to end.
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
		case wordHold:
			if err = k.hold(m[1], m[2], rights[:oobn]); err != nil {
				err = send(conn, message{wordFailed, m[1], err.Error()}, nil)
			}
		case wordDrop:
			k.mu.Lock()
			k.drop(m[1])
			k.mu.Unlock()
		case wordList:
			err = k.list(conn)
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

// hold takes over a descriptor.
func (k *keeper) hold(name, path string, rights []byte) error {
	fd, err := received(rights)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return errors.Join(errors.New("not a FIFO"), err, unix.Close(fd))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.held[name]; !known && len(k.held) >= k.most {
		return errors.Join(errors.New("too many open files"), unix.Close(fd))
	}
	k.drop(name)
	k.held[name] = fifo{fd: fd, path: path}
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

// list tells what is held.
func (k *keeper) list(conn *net.UnixConn) error {
	k.mu.Lock()
	all := make([]message, 0, len(k.held)+1)
	for name, f := range k.held {
		all = append(all, message{wordHeld, name, f.path})
	}
	k.mu.Unlock()
	for _, m := range append(all, message{wordEnd}) {
		if err := send(conn, m, nil); err != nil {
			return err
		}
	}
	return nil
}

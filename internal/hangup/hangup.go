// Package hangup reports when the other side of a connection hangs up, without a goroutine for
// each connection.
//
// Promises. The function of a connection is called at most once, and never after its removal has
// returned, except for a call in progress. All connections share one goroutine, which runs only while
// any connection is watched. Nothing polls.
//
// Concurrency. A Watch is safe for concurrent use; its zero value is ready. Its functions are
// called one after the other and must not take long.
//
// The package reads nothing: the bytes that the other side has sent stay in the connection.
package hangup

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// batch is how many hang-ups are taken from the kernel at once.
const batch = 64

// Watch watches connections.
type Watch struct {
	mu    sync.Mutex // guards what follows
	epoll *os.File   // nil while nothing is watched
	lost  map[uint64]func()
	last  uint64 // key of a connection
}

// Add calls lost when the other side of conn closes it or its writing half, or when the connection
// breaks. The caller must call remove before it closes conn.
func (w *Watch) Add(conn syscall.Conn, lost func()) (remove func(), err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.epoll == nil {
		if err := w.open(); err != nil {
			return nil, err
		}
	}
	w.last++
	key := w.last
	w.lost[key] = lost
	event := &unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: int32(uint32(key)), Pad: int32(uint32(key >> 32))}
	if err := w.control(raw, unix.EPOLL_CTL_ADD, event); err != nil {
		w.drop(key)
		return nil, err
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, ok := w.lost[key]; ok {
			_ = w.control(raw, unix.EPOLL_CTL_DEL, event)
			w.drop(key)
		}
	}, nil
}

// open starts to watch. The caller holds mu.
func (w *Watch) open() error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	// Go's own poller then waits for it, without a thread.
	if err := unix.SetNonblock(fd, true); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	w.epoll, w.lost = os.NewFile(uintptr(fd), "epoll"), map[uint64]func(){}
	go w.run(w.epoll)
	return nil
}

// control changes what the kernel watches. The caller holds mu.
func (w *Watch) control(raw syscall.RawConn, op int, event *unix.EpollEvent) error {
	own, err := w.epoll.SyscallConn()
	if err != nil {
		return err
	}
	var inner, outer error
	err = own.Control(func(epoll uintptr) {
		outer = raw.Control(func(fd uintptr) { inner = unix.EpollCtl(int(epoll), op, int(fd), event) })
	})
	return errors.Join(err, outer, os.NewSyscallError("epoll_ctl", inner))
}

// drop forgets a connection, and stops watching after the last. The caller holds mu.
func (w *Watch) drop(key uint64) {
	delete(w.lost, key)
	if len(w.lost) == 0 {
		_ = w.epoll.Close() // ends run
		w.epoll = nil
	}
}

// run calls the functions of connections that hang up until epoll is closed.
func (w *Watch) run(epoll *os.File) {
	raw, err := epoll.SyscallConn()
	if err != nil {
		return
	}
	events := make([]unix.EpollEvent, batch)
	for {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0)
			return n > 0
		})
		if err != nil {
			return
		}
		for _, e := range events[:n] {
			if lost := w.take(epoll, uint64(uint32(e.Fd))|uint64(uint32(e.Pad))<<32); lost != nil {
				lost()
			}
		}
	}
}

// take removes a connection and returns its function.
func (w *Watch) take(epoll *os.File, key uint64) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.epoll != epoll {
		return nil
	}
	lost := w.lost[key]
	if lost != nil {
		w.drop(key)
	}
	return lost
}

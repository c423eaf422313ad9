// Package locks keeps byte-range locks of files, with the semantics of fcntl(2): in a table of this
// process, or in the kernel.
//
// A mount answers lock requests from a Table, so that this process knows every lock and can take
// locks itself. OFD takes locks of a file that other processes lock through the kernel. Writers of a
// database use both through Ranges. All methods may be called from many goroutines.
package locks

import (
	"errors"
	"math"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Mode says what a lock excludes.
type Mode int

// The modes.
const (
	None      Mode = iota // no lock: Set releases with it
	Shared                // excludes Exclusive ones
	Exclusive             // excludes all others
)

// ErrBusy is returned for a lock that conflicts with one of another owner.
var ErrBusy = errors.New("locked by another owner")

// Ranges locks byte ranges of one file for one owner. Set replaces the owner's locks of the n bytes from
// start. It does not wait, and returns ErrBusy if it would have to.
type Ranges interface {
	Set(mode Mode, start, n uint64) error
}

// Range is bytes of a file, from the first to the last, both included.
type Range struct{ First, Last uint64 }

// ToEnd is the last byte of a range without an end.
const ToEnd = math.MaxInt64

// Overlaps reports whether two ranges have a byte in common.
func (r Range) Overlaps(o Range) bool { return r.First <= o.Last && o.First <= r.Last }

// Contains reports whether all bytes of o are in r.
func (r Range) Contains(o Range) bool { return r.First <= o.First && o.Last <= r.Last }

// Lock is one lock in a table.
type Lock struct {
	Range
	Owner  uint64
	Handle uint64 // the open file through which it was taken
	PID    uint32
	Mode   Mode
}

// Table holds the locks of one file.
type Table struct {
	mu      sync.Mutex
	held    []Lock
	changed chan struct{} // closed and replaced when a lock is released; nil if there is no waiter
}

// Test returns a lock of another owner that excludes l.
func (t *Table) Test(l Lock) (Lock, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conflict(l)
}

func (t *Table) conflict(l Lock) (Lock, bool) {
	for _, h := range t.held {
		if h.Owner != l.Owner && h.Overlaps(l.Range) && (h.Mode == Exclusive || l.Mode == Exclusive) {
			return h, true
		}
	}
	return Lock{}, false
}

// Set takes, changes or releases a lock. It returns ErrBusy, and changes nothing, if a lock of another
// owner conflicts.
func (t *Table) Set(l Lock) error {
	_, err := t.set(l, false)
	return err
}

// SetOrWait is Set, but with ErrBusy it returns a channel that is closed when a retry may succeed.
func (t *Table) SetOrWait(l Lock) (<-chan struct{}, error) { return t.set(l, true) }

func (t *Table) set(l Lock, wait bool) (<-chan struct{}, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.Mode != None {
		if _, busy := t.conflict(l); busy {
			if !wait {
				return nil, ErrBusy
			}
			if t.changed == nil {
				t.changed = make(chan struct{})
			}
			return t.changed, ErrBusy
		}
	}
	t.cut(l)
	if l.Mode != None {
		t.held = append(t.held, l)
	}
	t.wake()
	return nil, nil
}

// cut removes the range of l from the locks of its owner.
func (t *Table) cut(l Lock) {
	var kept []Lock
	for _, h := range t.held {
		if h.Owner != l.Owner || !h.Overlaps(l.Range) {
			continue
		}
		if h.First < l.First {
			before := h
			before.Last = l.First - 1
			kept = append(kept, before)
		}
		if h.Last > l.Last {
			after := h
			after.First = l.Last + 1
			kept = append(kept, after)
		}
	}
	t.held = slices.DeleteFunc(t.held, func(h Lock) bool { return h.Owner == l.Owner && h.Overlaps(l.Range) })
	t.held = append(t.held, kept...)
}

func (t *Table) wake() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// ReleaseOwner releases all locks of an owner, as fcntl(2) does when the owner closes the file.
func (t *Table) ReleaseOwner(owner uint64) {
	t.release(func(l Lock) bool { return l.Owner == owner })
}

// ReleaseHandle releases the locks that were taken through a file that was closed.
func (t *Table) ReleaseHandle(handle uint64) {
	t.release(func(l Lock) bool { return l.Handle == handle && l.Owner != Daemon })
}

func (t *Table) release(gone func(Lock) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = slices.DeleteFunc(t.held, gone)
	t.wake()
}

// Holds reports whether an owner holds all of a range, with this mode or a stronger one.
func (t *Table) Holds(owner uint64, mode Mode, r Range) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.held {
		if h.Owner == owner && h.Mode >= mode && h.Contains(r) {
			return true
		}
	}
	return false
}

// Len is the number of held locks.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.held)
}

// Daemon is the owner of the locks that this process takes for itself. The kernel never assigns it.
const Daemon = math.MaxUint64

// Own returns the Ranges of the owner Daemon.
func (t *Table) Own() Ranges { return own{t} }

type own struct{ t *Table }

func (o own) Set(mode Mode, start, n uint64) error {
	return o.t.Set(Lock{Range: Range{start, start + n - 1}, Owner: Daemon, Mode: mode})
}

// OFD takes locks in the kernel that belong to an open file and end with it. They conflict with the
// POSIX locks that SQLite takes.
type OFD struct{ File *os.File }

// Set implements Ranges.
func (o OFD) Set(mode Mode, start, n uint64) error {
	return set(o.File, unix.F_OFD_SETLK, mode, start, n)
}

// Process takes POSIX locks of a file for this process, as SQLite does. They end when the process closes
// any descriptor of the file, and do not conflict within the process.
type Process struct{ File *os.File }

// Set implements Ranges.
func (p Process) Set(mode Mode, start, n uint64) error {
	return set(p.File, unix.F_SETLK, mode, start, n)
}

// set changes locks with a command of fcntl(2).
func set(file *os.File, command int, mode Mode, start, n uint64) error {
	kind := int16(unix.F_UNLCK)
	switch mode {
	case Shared:
		kind = unix.F_RDLCK
	case Exclusive:
		kind = unix.F_WRLCK
	case None:
	}
	l := unix.Flock_t{Type: kind, Whence: unix.SEEK_SET, Start: int64(start), Len: int64(n)}
	for {
		err := unix.FcntlFlock(file.Fd(), command, &l)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
			return ErrBusy
		default:
			return err
		}
	}
}

// Package tail captures transactions of databases in a plain directory, by reading their write-ahead
// logs while programs write them. It is for systems without FUSE.
//
// For each database in WAL mode it holds the locks of a reader. They prevent SQLite from restarting the
// log before it was read, from removing it, and from leaving WAL mode. Therefore this package restarts
// the log itself. The index of the log counts transactions. If that count differs from the number of
// captured transactions, the whole database is compared. A database in rollback mode is not captured.
//
// Commits from before a database is attached, or while this process is down, become one transaction,
// except for those that are still in the write-ahead log.
package tail

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/locks"
	"github.com/hangar-platform/hangar/replica/sqlite"
)

// Databases are the databases of a node. mount.Databases describes the methods.
type Databases interface {
	Database(name string, create bool) (*database.DB, error)
	Named(name string) bool
	Writable() bool
}

// Config configures a Tail.
type Config struct {
	Dir       string
	Databases Databases
	Log       *slog.Logger
}

// Tail watches a directory.
type Tail struct {
	c Config

	mu       sync.Mutex
	files    map[string]*os.File      // files that this process locks to write, by name
	wake     map[string]chan struct{} // by database
	captured map[string]captured      // by attached database
}

// New returns a Tail. It does no I/O.
func New(c Config) *Tail {
	return &Tail{c: c, files: map[string]*os.File{}, wake: map[string]chan struct{}{}, captured: map[string]captured{}}
}

// Locks returns the locks of a file of a database, for this process.
func (t *Tail) Locks(db string, f database.File) (locks.Ranges, error) {
	name := db + f.Suffix()
	path := filepath.Join(t.c.Dir, name)
	t.mu.Lock()
	defer t.mu.Unlock()
	now, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if open := t.files[name]; open != nil {
		if was, err := open.Stat(); err == nil && os.SameFile(was, now) {
			return locks.OFD{File: open}, nil
		}
		_ = open.Close() // closed for its locks
		delete(t.files, name)
	}
	opened, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	t.files[name] = opened
	return locks.OFD{File: opened}, nil
}

// Written does nothing, because programs and this process share the kernel's page cache.
func (*Tail) Written(string, database.File, int64, int64) {}

// Gone forgets a file that was removed.
func (t *Tail) Gone(db string, f database.File) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if open := t.files[db+f.Suffix()]; open != nil {
		_ = open.Close() // closed for its locks
		delete(t.files, db+f.Suffix())
	}
}

// Shared reports that this process and SQLite see the same index.
func (*Tail) Shared() bool { return true }

// Quiet reports whether no program is writing to a database at this moment. A program may begin to write at any time.
func (t *Tail) Quiet(db string) bool {
	index, err := t.Locks(db, database.SHM)
	if err != nil || index == nil {
		return err == nil
	}
	if index.Set(locks.Exclusive, sqlite.WriteByte, 1) != nil {
		return false
	}
	return index.Set(locks.None, sqlite.WriteByte, 1) == nil
}

// Close releases all locks. The caller has ended Run.
func (t *Tail) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, f := range t.files {
		_ = f.Close() // with its locks
		delete(t.files, name)
	}
	return nil
}

// Run captures until ctx ends.
func (t *Tail) Run(ctx context.Context) error {
	watch, err := newWatch(t.c.Dir)
	if err != nil {
		return fmt.Errorf("watch %s: %w", t.c.Dir, err)
	}
	return t.follow(ctx, watch)
}

// follow captures until ctx ends, and then closes the watch.
func (t *Tail) follow(ctx context.Context, watch *watch) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, watch.close)
	defer stop()
	begin := func(file string) {
		name, _ := database.Split(file)
		if !t.c.Databases.Named(name) {
			return
		}
		t.mu.Lock()
		wake, known := t.wake[name]
		if !known {
			wake = make(chan struct{}, 1)
			t.wake[name] = wake
			running.Go(func() { (&follower{t: t, name: name, wake: wake}).run(ctx) })
		}
		select {
		case wake <- struct{}{}:
		default:
		}
		t.mu.Unlock()
	}
	all := func() error {
		entries, err := os.ReadDir(t.c.Dir)
		for _, e := range entries {
			begin(e.Name())
		}
		return err
	}
	if err := all(); err != nil {
		return err
	}
	for {
		names, lost, err := watch.next()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", t.c.Dir, err)
		}
		for _, name := range names {
			begin(name)
		}
		if !lost {
			continue
		}
		for failed := false; ; failed = true {
			err := all()
			if err == nil {
				break
			}
			if !failed {
				t.c.Log.Error("databases may not be captured yet", "dir", t.c.Dir, "error", err)
			}
			if pause.For(ctx, idle) != nil {
				return nil
			}
		}
	}
}

// Intervals of a follower.
const (
	spin     = 50 * time.Microsecond // polling interval of the index after a write to the log
	settle   = 20 * time.Millisecond // time without writes after which polling ends
	idle     = 100 * time.Millisecond
	yield    = 150 * time.Millisecond // how long the follower does not read while a program waits for readers; SQLite polls every 100 ms
	longLog  = 1000                   // frames
	attempts = 50
)

// follower captures one database.
type follower struct {
	t    *Tail
	name string
	wake chan struct{}

	db     database.Live
	main   *os.File // with a reader's lock
	shm    *os.File // with the locks of a member and of a slot
	slot   int
	change uint32 // counter of the index when everything was captured
	warned bool

	attachment uint64 // number of successful joins
}

func (f *follower) log() *slog.Logger { return f.t.c.Log.With("db", f.name) }

func (f *follower) run(ctx context.Context) {
	defer f.detach()
	for ctx.Err() == nil {
		attached, err := f.attach()
		if err == nil && attached {
			err = f.capture(ctx)
		}
		f.detach()
		if err != nil && !errors.Is(err, database.ErrFenced) {
			f.log().Error("transactions are not captured", "error", err)
		}
		if f.t.forget(f.name) {
			return
		}
		f.wait(ctx, idle)
	}
}

// forget ends the watch of a name that is no database, until the next write to such a file. It reports false if the
// name is a database, or may be one: a program has just written, or it has made an empty file.
func (t *Tail) forget(name string) bool {
	if db, err := t.c.Databases.Database(name, false); err != nil || db != nil {
		return false
	}
	path := filepath.Join(t.c.Dir, name)
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		return false
	}
	if is, err := sqlite.IsDatabase(path); err != nil || is {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.wake[name]) > 0 {
		return false
	}
	delete(t.wake, name)
	return true
}

// wait waits for a write to a file of the database.
func (f *follower) wait(ctx context.Context, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-f.wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// rest pauses while another program releases a lock.
func (f *follower) rest() {
	<-time.After(time.Millisecond)
}

func (f *follower) detach() {
	f.slot = 0
	f.t.mu.Lock()
	delete(f.t.captured, f.name)
	f.t.mu.Unlock()
	for _, file := range []**os.File{&f.shm, &f.main} {
		if *file != nil {
			_ = (*file).Close() // with its locks
			*file = nil
		}
	}
}

// attach takes the locks of a reader. It reports false if there is nothing to read.
func (f *follower) attach() (bool, error) {
	if !f.t.c.Databases.Writable() {
		return false, nil
	}
	path := filepath.Join(f.t.c.Dir, f.name)
	// What is no database, or none yet, must leave no log.
	if is, err := sqlite.IsDatabase(path); err != nil || !is {
		return false, err
	}
	db, err := f.t.c.Databases.Database(f.name, true)
	if err != nil {
		return false, err
	}
	if database.Torn(db) {
		return false, nil // its pages are written first
	}
	f.db = database.Live{DB: db}
	wal, err := f.db.Mode()
	if errors.Is(err, sqlite.ErrNotDatabase) || err == nil && !wal {
		if err == nil && !f.warned {
			f.warned = true
			f.log().Warn("the database is not captured until it is in WAL mode")
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if f.main, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return false, err
	}
	if (locks.OFD{File: f.main}).Set(locks.Shared, sqlite.SharedFirst, sqlite.SharedSize) != nil {
		return false, nil //nolint:nilerr // a program is opening or closing it
	}
	return f.join()
}

// join becomes a user of the index, which it creates if it is the first, and captures everything.
func (f *follower) join() (bool, error) {
	if err := f.db.Refresh(); err != nil {
		return false, err
	}
	path := filepath.Join(f.t.c.Dir, f.name+database.SHM.Suffix())
	info, err := f.main.Stat()
	if err != nil {
		return false, err
	}
	if f.shm, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, info.Mode().Perm()); err != nil {
		return false, err
	}
	index := locks.OFD{File: f.shm}
	first := index.Set(locks.Exclusive, sqlite.MemberByte, 1) == nil
	if !first && index.Set(locks.Shared, sqlite.MemberByte, 1) != nil {
		return false, nil
	}
	if !f.lockWriters(index) {
		return false, nil
	}
	defer func() { _ = index.Set(locks.None, sqlite.WriteByte, 1) }()
	if first {
		if err := f.db.BuildIndex(); err != nil {
			return false, err
		}
		if err := index.Set(locks.Shared, sqlite.MemberByte, 1); err != nil {
			return false, err
		}
	}
	if err := f.showMember(); err != nil {
		return false, err
	}
	f.attachment++
	if _, ok, err := f.db.Index(); err != nil || !ok {
		return false, err
	}
	if ok, err := f.takeSlot(); err != nil || !ok {
		return false, err
	}
	return true, f.compare()
}

// showMember takes a lock of this process that shows SQLite that the index is in use. In gVisor, F_GETLK
// does not report locks of open files, and SQLite would try to lock the index exclusively until it fails
// with SQLITE_PROTOCOL. The lock of the open file is still needed, because the lock of the process ends
// when the process closes any descriptor of the index.
func (f *follower) showMember() error {
	return locks.Process{File: f.shm}.Set(locks.Shared, sqlite.MemberByte, 1)
}

// lockWriters waits for the writers' lock.
func (f *follower) lockWriters(index locks.OFD) bool {
	for range attempts {
		if index.Set(locks.Exclusive, sqlite.WriteByte, 1) == nil {
			return true
		}
		f.rest()
	}
	return false
}

// compare makes a transaction if the content differs from the position. The caller holds the writers' lock.
func (f *follower) compare() error {
	same, err := f.db.Verify()
	if err != nil {
		return err
	}
	if !same {
		if _, err := f.db.Reconcile(); err != nil {
			return err
		}
	}
	x, _, err := f.db.Index()
	f.change = x.Change
	if err == nil {
		f.note()
	}
	return err
}

// takeSlot takes a reader's slot, with a mark that lets checkpoints proceed up to the captured frames. It
// reports false if no slot is free.
func (f *follower) takeSlot() (bool, error) {
	frame, err := f.db.Captured()
	if err != nil {
		return false, err
	}
	index := locks.OFD{File: f.shm}
	const slots = sqlite.ReadSlots - 1
	for i := range slots {
		// Another slot than the previous one, for which a checkpoint may be waiting.
		slot := (f.slot+i)%slots + 1
		at := uint64(sqlite.ReadByte + slot)
		if index.Set(locks.Exclusive, at, 1) != nil {
			continue
		}
		if f.slot != 0 && f.slot != slot {
			_ = index.Set(locks.None, uint64(sqlite.ReadByte+f.slot), 1)
		}
		f.slot = slot
		if err := f.db.SetReadMark(slot, frame); err != nil {
			return false, err
		}
		return index.Set(locks.Shared, at, 1) == nil, nil
	}
	return false, nil
}

// dropSlot releases the slot, so that the log may be restarted.
func (f *follower) dropSlot() error {
	if err := f.db.Sync(); err != nil {
		return err
	}
	_ = locks.OFD{File: f.shm}.Set(locks.None, uint64(sqlite.ReadByte+f.slot), 1)
	f.slot = 0
	return nil
}

// capture captures until ctx ends or this node is no longer the primary.
func (f *follower) capture(ctx context.Context) error {
	seen, seenChange, _ := f.db.Peek()
	if err := f.read(); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if !f.t.c.Databases.Writable() {
			return nil
		}
		for quiet := time.Duration(0); quiet < settle; quiet += spin {
			frame, change, ok := f.db.Peek()
			if ok && (frame != seen || change != seenChange) {
				seen, seenChange, quiet = frame, change, 0
				if err := f.read(); err != nil {
					return err
				}
			}
			if pause.For(ctx, spin) != nil {
				return nil //nolint:nilerr // ctx has ended
			}
		}
		if err := f.keepShort(ctx); err != nil {
			return err
		}
		f.wait(ctx, idle)
		if !f.attached() {
			return nil
		}
		if err := f.showMember(); err != nil {
			return err
		}
	}
	return nil
}

// attached reports whether the index is still the file of that name.
func (f *follower) attached() bool {
	was, err := f.shm.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(filepath.Join(f.t.c.Dir, f.name+database.SHM.Suffix()))
	return err == nil && os.SameFile(was, now)
}

// read captures new commits, and shortens a long log.
func (f *follower) read() error {
	frames, err := f.captureAll()
	if err == nil && frames >= longLog {
		err = f.shorten()
	}
	return err
}

// captureAll captures all commits, and compares their number with the index. It returns the length
// of the log.
func (f *follower) captureAll() (frames uint32, err error) {
	before := f.db.Pos().TXID
	x, ok, err := f.db.Index()
	if err != nil || !ok {
		return 0, err
	}
	if err := f.db.CaptureWAL(true); err != nil {
		return 0, err
	}
	captured := uint32(f.db.Pos().TXID - before)
	// The index may have advanced since it was read, but cannot have fallen behind.
	if captured < x.Change-f.change && x.Change-f.change < 1<<31 {
		f.log().Warn("transactions were missed: the whole database is compared", "captured", captured, "committed", x.Change-f.change)
		index := locks.OFD{File: f.shm}
		if !f.lockWriters(index) {
			return 0, nil
		}
		defer func() { _ = index.Set(locks.None, sqlite.WriteByte, 1) }()
		return 0, f.compare()
	}
	f.change += captured
	f.note()
	return x.MaxFrame, nil
}

// shorten checkpoints a long log and restarts it.
func (f *follower) shorten() error {
	if ok, err := f.takeSlot(); err != nil || !ok {
		return err
	}
	// Most of the checkpoint does not need the writers' lock.
	if err := f.db.Checkpoint(); err != nil {
		return err
	}
	index := locks.OFD{File: f.shm}
	if !f.lockWriters(index) {
		return nil
	}
	defer func() { _ = index.Set(locks.None, sqlite.WriteByte, 1) }()
	before := f.db.Pos().TXID
	if err := f.db.CaptureWAL(true); err != nil {
		return err
	}
	f.change += uint32(f.db.Pos().TXID - before)
	if err := f.dropSlot(); err != nil {
		return err
	}
	if err := errors.Join(f.db.Checkpoint(), f.db.Restart()); err != nil {
		return err
	}
	x, ok, err := f.db.Index()
	if err != nil || !ok {
		return err
	}
	for taken := false; !taken; {
		if taken, err = f.takeSlot(); err != nil {
			return err
		}
		if !taken {
			f.rest()
		}
	}
	f.change = x.Change
	f.note()
	return nil
}

// keepShort releases the slot for a program that waits for all readers to restart the log. It holds slot
// 0 meanwhile, so that no checkpoint can finish and let the new log be overwritten before it was read.
func (f *follower) keepShort(ctx context.Context) error {
	x, ok, err := f.db.Index()
	if err != nil || !ok || x.MaxFrame == 0 {
		return err
	}
	index := locks.OFD{File: f.shm}
	if index.Set(locks.Exclusive, sqlite.WriteByte, 1) == nil {
		return index.Set(locks.None, sqlite.WriteByte, 1)
	}
	if x.Backfilled < x.MaxFrame {
		_, err := f.takeSlot() // advances the mark
		return err
	}
	if index.Set(locks.Shared, sqlite.ReadByte, 1) != nil {
		return nil // a checkpoint is running
	}
	defer func() { _ = index.Set(locks.None, sqlite.ReadByte, 1) }()
	if _, err := f.captureAll(); err != nil {
		return err
	}
	if err := f.dropSlot(); err != nil {
		return err
	}
	yielded := f.yield(ctx, index)
	for taken := false; !taken; {
		if taken, err = f.takeSlot(); err != nil {
			return err
		}
		if !taken && pause.For(ctx, time.Millisecond) != nil {
			return nil
		}
	}
	if yielded != nil {
		return nil
	}
	if _, err := f.captureAll(); err != nil {
		return err
	}
	// A checkpoint that began meanwhile continues once it gets slot 0.
	return f.db.Sync()
}

// yield waits until the writer has committed or released its lock, or until its time is over.
func (f *follower) yield(ctx context.Context, index locks.Ranges) error {
	before, change, _ := f.db.Peek()
	for range yield / time.Millisecond {
		if err := pause.For(ctx, time.Millisecond); err != nil {
			return err
		}
		if frame, now, _ := f.db.Peek(); frame != before || now != change {
			return nil
		}
		if index.Set(locks.Exclusive, sqlite.WriteByte, 1) == nil {
			return index.Set(locks.None, sqlite.WriteByte, 1)
		}
	}
	return nil
}

// watch reports writes in a directory, with inotify(7).
type watch struct {
	f   *os.File
	buf [64 << 10]byte
}

func newWatch(dir string) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &watch{f: os.NewFile(uintptr(fd), "inotify")}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_DELETE); err != nil {
		return nil, errors.Join(err, w.f.Close())
	}
	return w, nil
}

func (w *watch) close() { _ = w.f.Close() }

// next waits for changes and returns the names of the files. lost reports that the kernel has dropped
// changes.
func (w *watch) next() (names []string, lost bool, err error) {
	n, err := w.f.Read(w.buf[:])
	if err != nil {
		return nil, false, err
	}
	for b := w.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		lost = lost || binary.NativeEndian.Uint32(b[4:])&unix.IN_Q_OVERFLOW != 0
		size := int(binary.NativeEndian.Uint32(b[12:]))
		if unix.SizeofInotifyEvent+size > len(b) {
			break
		}
		name := b[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+size]
		for i, c := range name {
			if c == 0 {
				name = name[:i]
				break
			}
		}
		if len(names) == 0 || names[len(names)-1] != string(name) {
			names = append(names, string(name))
		}
		b = b[unix.SizeofInotifyEvent+size:]
	}
	return names, lost, nil
}

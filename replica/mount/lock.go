package mount

import (
	"os"
	"strconv"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/locks"
	"github.com/hangar-platform/hangar/replica/sqlite"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Locks that this package watches.
var (
	writeLock  = locks.Range{First: sqlite.WriteByte, Last: sqlite.WriteByte}
	checkpoint = locks.Range{First: sqlite.CheckpointByte, Last: sqlite.CheckpointByte}
	restart    = locks.Range{First: sqlite.ReadByte + 1, Last: sqlite.ReadByte + sqlite.ReadSlots - 1}
	reserved   = locks.Range{First: sqlite.ReservedByte, Last: sqlite.ReservedByte}
	haltLock   = locks.Range{First: HaltByte, Last: HaltByte}
	exclusive  = locks.Range{First: sqlite.SharedFirst, Last: sqlite.SharedFirst + sqlite.SharedSize - 1}
)

// HaltByte is the byte of NAME-lock that a program locks to write on a replica, as in LiteFS.
const HaltByte = 72

const flockFlag = 1 // flag of a request: flock(2) instead of fcntl(2)

// lockOf converts a request.
func lockOf(in *fuse.LkIn) locks.Lock {
	l := locks.Lock{Range: locks.Range{First: in.Lk.Start, Last: in.Lk.End}, Owner: in.Owner, Handle: in.Fh, PID: in.Lk.Pid}
	switch in.Lk.Typ {
	case syscall.F_RDLCK:
		l.Mode = locks.Shared
	case syscall.F_WRLCK:
		l.Mode = locks.Exclusive
	}
	return l
}

// GetLk implements fuse.RawFileSystem.
func (s *FS) GetLk(_ <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	n := s.inode(in.NodeId)
	if n == nil {
		return fuse.ENOENT
	}
	out.Lk = in.Lk
	held, busy := n.locks.Test(lockOf(in))
	if !busy {
		out.Lk.Typ = syscall.F_UNLCK
		return fuse.OK
	}
	out.Lk = fuse.FileLock{Start: held.First, End: held.Last, Typ: syscall.F_RDLCK, Pid: held.PID}
	if held.Mode == locks.Exclusive {
		out.Lk.Typ = syscall.F_WRLCK
	}
	return fuse.OK
}

// SetLk implements fuse.RawFileSystem.
func (s *FS) SetLk(_ <-chan struct{}, in *fuse.LkIn) fuse.Status {
	n := s.inode(in.NodeId)
	if n == nil {
		return fuse.ENOENT
	}
	l := lockOf(in)
	if in.LkFlags&flockFlag != 0 {
		return s.statusOf(n.flocks.Set(l))
	}
	if status := s.beforeLock(n, l); status != fuse.OK {
		return status
	}
	if err := n.locks.Set(l); err != nil {
		return s.statusOf(err)
	}
	return guard{s}.afterLock(nil, n, l)
}

// guard decides which program may write.
type guard struct{ *FS }

// afterLock revokes a writer's lock if the node has stopped admitting writers meanwhile. So a node that
// waits for writers either sees the lock, or the writer is refused.
func (s guard) afterLock(cancel <-chan struct{}, n *inode, l locks.Lock) fuse.Status {
	status := s.refused(n, l)
	if n.kind == halt && l.Overlaps(haltLock) {
		status = s.halted(cancel, n, l)
	}
	if status != fuse.OK {
		l.Mode = locks.None
		_ = n.locks.Set(l) // releasing never fails
		return status
	}
	return fuse.OK
}

// halted acquires or releases the right to write, for the holder of the halt lock.
func (s guard) halted(cancel <-chan struct{}, n *inode, l locks.Lock) fuse.Status {
	if l.Mode != locks.Exclusive {
		s.unhalt(n)
		return fuse.OK
	}
	err := s.c.Databases.Halt(request{cancel}, n.db)
	if err != nil {
		s.c.Log.Warn("the halt lock of the primary was not acquired", "db", n.db.Name(), "error", err)
		return fuse.Status(syscall.ENOLCK)
	}
	return fuse.OK
}

// unhalt releases the right to write once no program holds the lock.
func (s guard) unhalt(n *inode) {
	if _, held := n.locks.Test(locks.Lock{Range: haltLock, Owner: locks.Daemon, Mode: locks.Exclusive}); !held {
		s.c.Databases.Unhalt(request{}, n.db)
	}
}

// refused returns EAGAIN for the lock of a writer that must not begin.
func (s guard) refused(n *inode, l locks.Lock) fuse.Status {
	if n.db == nil || n.kind != plain || l.Mode != locks.Exclusive {
		return fuse.OK
	}
	switch n.file {
	case database.SHM: // without an index, the lock belongs to a reader that builds one
		if l.Overlaps(writeLock) && !s.c.Databases.Admits(n.db) && n.db.Indexed() {
			return fuse.EAGAIN
		}
	case database.Main:
		if l.Overlaps(reserved) && !s.c.Databases.Admits(n.db) {
			return fuse.EAGAIN
		}
	case database.WAL, database.Journal:
	}
	return fuse.OK
}

// SetLkw implements fuse.RawFileSystem.
func (s *FS) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	n := s.inode(in.NodeId)
	if n == nil {
		return fuse.ENOENT
	}
	l := lockOf(in)
	table := &n.locks
	if in.LkFlags&flockFlag != 0 {
		table = &n.flocks
	} else if status := s.beforeLock(n, l); status != fuse.OK {
		return status
	}
	for {
		changed, err := table.SetOrWait(l)
		if err == nil {
			if table == &n.flocks {
				return fuse.OK
			}
			return guard{s}.afterLock(cancel, n, l)
		}
		select {
		case <-changed:
		case <-cancel:
			return fuse.EINTR
		}
	}
}

// beforeLock runs before a lock is taken or released. When a writer releases its lock, it has either
// committed or not, and beforeLock captures its commit.
func (s *FS) beforeLock(n *inode, l locks.Lock) fuse.Status {
	if n.db == nil || n.kind != plain {
		return fuse.OK
	}
	if status := (guard{s}).refused(n, l); status != fuse.OK {
		return status
	}
	switch n.file {
	case database.SHM:
		return s.beforeIndexLock(n, l)
	case database.Main:
		if l.Mode != locks.Exclusive && l.Overlaps(exclusive) && n.locks.Holds(l.Owner, locks.Exclusive, exclusive) {
			s.settle(n)
		}
	case database.WAL, database.Journal:
	}
	return fuse.OK
}

func (s *FS) beforeIndexLock(n *inode, l locks.Lock) fuse.Status {
	if l.Mode == locks.Exclusive {
		// With these locks SQLite may overwrite the WAL, which until now could replace an unsynced log.
		if l.Contains(checkpoint) || l.Contains(restart) {
			return s.statusOf(n.db.Sync())
		}
		return fuse.OK
	}
	if l.Overlaps(writeLock) && n.locks.Holds(l.Owner, locks.Exclusive, writeLock) {
		before := n.db.Pos()
		// A writer on a replica may have begun while the node was the primary.
		s.captureWAL(n.db, s.passthrough)
		if n.db.Pos() != before {
			// SQLite has committed and cannot handle an error. After an error, the node admits no other
			// writer.
			_ = s.c.Databases.Replicated(request{}, n.db)
		}
	}
	return fuse.OK
}

// Quiet reports whether no program is writing to a database.
func (s *FS) Quiet(db string) bool {
	for _, of := range []struct {
		f database.File
		r locks.Range
	}{{database.SHM, writeLock}, {database.Main, reserved}, {database.Main, exclusive}} {
		s.mu.Lock()
		n := s.names[db+of.f.Suffix()]
		s.mu.Unlock()
		if n == nil {
			continue
		}
		held, busy := n.locks.Test(locks.Lock{Range: of.r, Owner: locks.Daemon, Mode: locks.Shared})
		if busy && held.Mode == locks.Exclusive {
			return false
		}
	}
	return true
}

// captureJournal captures a transaction in rollback mode. The transaction is committed if it returns
// nil.
func (s *FS) captureJournal(db *database.DB) error {
	before := db.Pos()
	if err := db.CaptureJournal(); err != nil {
		return err
	}
	if db.Pos() == before {
		return nil
	}
	return s.c.Databases.Replicated(request{}, db)
}

func (s *FS) captureWAL(db *database.DB, indexed bool) {
	if err := db.CaptureWAL(indexed); err != nil {
		// SQLite has committed and cannot handle the error any more.
		s.c.Log.Error("transactions were not captured", "db", db.Name(), "error", err)
	}
}

// settle captures what a writer in rollback mode has written to the database file, unless a valid journal
// shows that it is not committed.
func (s *FS) settle(n *inode) {
	if s.heapIndex(n) {
		s.captureWAL(n.db, false)
	}
	if !n.db.Unsettled() {
		return
	}
	if journal, err := os.Open(s.path(n.name + database.Journal.Suffix())); err == nil {
		valid := journalValid(journal)
		_ = journal.Close() // it was only read
		if valid {
			return
		}
	}
	if err := s.captureJournal(n.db); err != nil {
		s.c.Log.Error("a transaction was not captured", "db", n.db.Name(), "error", err)
	}
}

// heapIndex reports whether there is a WAL without an index file. Then its only user, in exclusive
// locking mode, has the index in memory.
func (s *FS) heapIndex(n *inode) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[n.name+database.WAL.Suffix()] != nil && s.names[n.name+database.SHM.Suffix()] == nil
}

// beforeWrite runs before the database file is written. In exclusive locking mode, a checkpoint
// precedes the restart of the WAL.
func (s *FS) beforeWrite(n *inode) error {
	if n.db == nil {
		return nil
	}
	if s.heapIndex(n) {
		if err := n.db.CaptureWAL(false); err != nil {
			return err
		}
	}
	// A checkpoint may be followed by the removal of the WAL. The last program to close a database
	// checkpoints without a lock of the index.
	return n.db.Sync()
}

// cutOff runs when a program closes a file while it holds locks, as a killed program does. A commit
// in the index counts, whichever program published it.
func (s *FS) cutOff(n *inode, owner uint64) {
	if n.db != nil && n.file == database.SHM && s.passthrough &&
		n.locks.Holds(owner, locks.Exclusive, writeLock) {
		s.captureWAL(n.db, true)
	}
}

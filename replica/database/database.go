// Package database follows one SQLite database: it knows the checksum of each page, records what
// SQLite commits as transactions of a log, and applies the transactions of another node.
//
// A DB is at a position: the ID of the last transaction, and the checksum of the whole database after
// it, which is the XOR of the checksums of all pages. The content of a page is the newest that is
// committed, whether it is in the write-ahead log of SQLite or in the database file. So a checkpoint
// changes nothing, and the cost of a transaction depends only on its pages.
//
// The caller orders captures: it calls CaptureWAL and CaptureJournal while SQLite's writer still
// holds its lock, or while the caller prevents SQLite from overwriting its log. Config.OnCommit sees
// every change of the position, in order. A DB may be used by many goroutines.
package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/superfly/ltx"
	"golang.org/x/sync/semaphore"

	"github.com/hangar-platform/hangar/replica/locks"
	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// File is one of the files of a database.
type File int

// The files of a database.
const (
	Main File = iota
	Journal
	WAL
	SHM
)

// Files returns all of them.
func Files() []File { return []File{Main, Journal, WAL, SHM} }

// Suffix returns what the name of the file has after the name of the database.
func (f File) Suffix() string { return [...]string{"", "-journal", "-wal", "-shm"}[f] }

// Split splits the name of a file into the name of its database and the kind of file.
func Split(name string) (string, File) {
	for _, f := range Files()[1:] {
		if db, ok := strings.CutSuffix(name, f.Suffix()); ok && db != "" {
			return db, f
		}
	}
	return name, Main
}

// MaxTransaction is how many bytes of pages a transaction may have in the log. A larger one is not logged: the
// log restarts after it, and replicas catch up by the pages that differ.
const MaxTransaction = 64 << 20

// Change is one change of the position of a database.
type Change struct {
	Name      string
	Pos       ltx.Pos
	PageSize  uint32 // bytes
	Pages     uint32 // size of the database; 0 when it was dropped
	Timestamp int64  // milliseconds since 1970, when the primary committed
	Epoch     uint64 // in which the primary committed
}

// Config has the dependencies of a DB.
type Config struct {
	Name string
	Dir  string // of the files of the database
	Log  string // directory of the log
	// Aside is the directory in which Replace saves transactions that the primary lacks.
	Aside string
	Node  uint64 // ID of this node, which is in the transactions that it captures

	// Sync makes each transaction durable before its commit returns.
	Sync bool
	// Live says that SQLite may have the database open while this process opens it.
	Live bool
	// Fence returns an error when this node may not commit. It is called with the DB's lock held.
	Fence func() error
	// OnCommit is called after each change of the position, with the DB's lock held. It must neither
	// block nor call the DB.
	OnCommit func(Change)
	// Locks returns the locks of the database file or of the index, as this process takes them.
	Locks func(File) (locks.Ranges, error)
	// Written is called after this process has written n bytes of a file of the database; with n 0, it
	// may have written any part. Gone is called after this process has removed a file. Both are called
	// with the DB's lock held.
	Written func(f File, off, n int64)
	Gone    func(f File)
	// Kept is called after files were put aside, with their number and their total size.
	Kept func(files int, bytes int64)
	// Shared reports whether this process and SQLite see the same index.
	Shared func() bool
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// ErrFenced is returned for a commit while this node is not the primary.
var ErrFenced = errors.New("this node is not the primary")

// ErrDiverged is returned when a transaction does not follow the position of a database.
var ErrDiverged = errors.New("the transaction does not follow the position of the database")

// DB follows one database.
type DB struct {
	c   Config
	log *txlog.Log

	writing  *semaphore.Weighted // of the writers of this process, whose locks do not exclude one another
	mu       sync.Mutex
	enc      txlog.Encoder
	encoded  []byte
	main     *os.File // nil while the file does not exist
	wal      *os.File // nil while the file does not exist
	shm      *os.File
	pageSize uint32 // 0 until the first transaction
	sums     []ltx.Checksum
	pos      ltx.Pos
	stamp    int64 // Timestamp of the last change
	dirty    map[uint32]struct{}
	free     map[uint32]struct{} // free pages that differ from pos, see onlyFree
	scan     *sqlite.WALScanner
	frames   map[uint32]uint32 // last captured frame since the WAL began, by page
	epoch    uint64
	diverged bool // the content differs from pos
	owed     bool // the content differs from pos because the last transaction of the log was not written
	torn     bool // the content may have only some pages of one that the log does not have
	ahead    bool // the WAL has more than pos
	unsynced bool // transactions of another node were written since the last Trim
	orphans  int  // transactions that SQLite committed while the node was fenced
	moves    int  // how often the content changed without a new position
	shown    int  // moves when Vector was called
}

// path returns the path of a file.
func (d *DB) path(f File) string { return filepath.Join(d.c.Dir, d.c.Name+f.Suffix()) }

// Name returns the name of the database.
func (d *DB) Name() string { return d.c.Name }

// Log returns the log of the database.
func (d *DB) Log() *txlog.Log { return d.log }

// Pos returns the position.
func (d *DB) Pos() ltx.Pos {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pos
}

// Has reports whether the database is at a position, or was as far back as its log goes.
func (d *DB) Has(pos ltx.Pos) bool {
	at := d.Pos()
	if at.TXID < pos.TXID {
		return false
	}
	r, err := d.log.After(pos)
	if err != nil {
		return at == pos
	}
	_ = r.Close() // it was not read
	return true
}

// Last returns the last change.
func (d *DB) Last() Change {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.change()
}

func (d *DB) change() Change {
	return Change{
		Name: d.c.Name, Pos: d.pos, PageSize: d.pageSize, Pages: uint32(len(d.sums)), Timestamp: d.stamp, Epoch: d.log.Epoch(),
	}
}

// Diverged reports whether the content of the database is known to differ from its position, and how
// many transactions SQLite has committed while this node might not.
func (d *DB) Diverged() (bool, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.diverged || d.ahead, d.orphans
}

// Torn reports whether the content may be a mixture of two positions, because writing the pages of the second has
// failed. It is no transaction, and nothing can be committed, until Finish, Replace or Import has written them.
func Torn(d *DB) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return mixed(d)
}

// mixed is Torn for a caller that holds d.mu.
func mixed(d *DB) bool { return d.torn || d.owed }

// SetEpoch sets the epoch of the transactions that this node commits from now on.
func (d *DB) SetEpoch(epoch uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.epoch = epoch
}

// Removed notifies the DB that a file was removed, or emptied, by another process.
func (d *DB) Removed(f File) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removed(f)
}

func (d *DB) removed(f File) {
	switch f {
	case Main:
		closeFile(&d.main)
	case WAL:
		closeFile(&d.wal)
		d.scan, d.frames = nil, nil
	case SHM:
		closeFile(&d.shm)
	case Journal:
	}
}

// refresh closes files that SQLite has removed or replaced: the last program to close a database
// removes its log and index, and in a plain directory there is no event for that.
func (d *DB) refresh() error {
	for f, open := range map[File]*os.File{Main: d.main, WAL: d.wal, SHM: d.shm} {
		if open == nil {
			continue
		}
		was, err := open.Stat()
		if err != nil {
			return err
		}
		now, err := os.Stat(d.path(f))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err != nil || !os.SameFile(was, now) {
			d.removed(f)
		}
	}
	return nil
}

func closeFile(f **os.File) {
	if *f != nil {
		_ = (*f).Close() // nothing is buffered
		*f = nil
	}
}

// open opens a file of the database unless it is open. It returns nil if the file does not exist.
func (d *DB) open(f File) (*os.File, error) {
	slot := map[File]**os.File{Main: &d.main, WAL: &d.wal, SHM: &d.shm}[f]
	if *slot != nil {
		return *slot, nil
	}
	opened, err := os.OpenFile(d.path(f), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	*slot = opened
	return opened, nil
}

// Dirty notes that bytes of the database file were written by a process with SQLite.
func (d *DB) Dirty(offset, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dirty == nil {
		d.dirty = map[uint32]struct{}{}
	}
	size := int64(d.pageSize)
	if size == 0 {
		return // all pages are new
	}
	for page := offset / size; page*size < offset+n; page++ {
		d.dirty[uint32(page+1)] = struct{}{}
	}
}

// Unsettled reports whether pages were written that no transaction has yet.
func (d *DB) Unsettled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.dirty) > 0 || d.pageSize == 0 && d.dirty != nil
}

// sumWith returns the checksum of the database with some pages replaced, at a new size.
func (d *DB) sumWith(pages []pageSum, size uint32) ltx.Checksum {
	sum := d.pos.PostApplyChecksum
	for _, p := range pages {
		if int(p.page) <= len(d.sums) {
			sum ^= d.sums[p.page-1]
		}
		sum ^= p.sum
	}
	for i := int(size); i < len(d.sums); i++ {
		sum ^= d.sums[i]
	}
	return sum | ltx.ChecksumFlag
}

// pageSum is the new checksum of a page.
type pageSum struct {
	page uint32
	sum  ltx.Checksum
}

// setSums updates the checksums after a transaction.
func (d *DB) setSums(pages []pageSum, size uint32) {
	if n := int(size); n <= len(d.sums) {
		d.sums = d.sums[:n]
	} else {
		d.sums = append(d.sums, make([]ltx.Checksum, n-len(d.sums))...)
	}
	for _, p := range pages {
		d.sums[p.page-1] = p.sum
	}
}

// advance changes the position and reports the change.
func (d *DB) advance(pos ltx.Pos, stamp int64) {
	d.pos, d.stamp = pos, stamp
	if d.c.OnCommit != nil {
		d.c.OnCommit(d.change())
	}
}

// readPage reads a page at the current position into b.
func (d *DB) readPage(page uint32, b []byte) error {
	want := d.sums[page-1]
	if page == sqlite.LockPage(d.pageSize) {
		clear(b)
		return nil
	}
	if frame, ok := d.frames[page]; ok {
		if wal, err := d.open(WAL); err == nil && wal != nil {
			_, err := wal.ReadAt(b, sqlite.FrameOffset(frame, d.pageSize)+sqlite.FrameHeaderSize)
			if err == nil && sqlite.PageSum(page, b) == want {
				return nil
			}
		}
	}
	main, err := d.open(Main)
	if err != nil {
		return err
	}
	if main == nil {
		return os.ErrNotExist
	}
	if _, err := main.ReadAt(b, int64(page-1)*int64(d.pageSize)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if sqlite.PageSum(page, b) != want {
		if _, left := d.free[page]; left {
			if err := (journalCapture{d}).commitFree(); err != nil {
				return err
			}
		}
		return fmt.Errorf("page %d: %w", page, errTorn)
	}
	return nil
}

// errTorn is returned for a page whose content does not match the position: a checkpoint of
// uncaptured transactions has overwritten it, or it is damaged.
var errTorn = errors.New("content does not have the checksum of the position")

// Close saves the checksums of the pages, so that the next Open need not compute them, and closes the
// files.
func (d *DB) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := journalCapture{d}.commitFree()
	if errors.Is(err, ErrFenced) {
		err = nil // the next Open detects it
	}
	if !d.diverged && !d.ahead && len(d.dirty) == 0 && len(d.free) == 0 {
		err = errors.Join(err, recovery{d}.saveSums())
	}
	for _, f := range Files() {
		d.removed(f)
	}
	return errors.Join(err, d.log.Close())
}

// Sync makes captured transactions durable.
func (d *DB) Sync() error { return d.log.Sync() }

// Fenced returns an error if this node may not commit.
func (d *DB) Fenced() error {
	if d.c.Fence == nil {
		return nil
	}
	return d.c.Fence()
}

func (d *DB) now() time.Time {
	if d.c.Now != nil {
		return d.c.Now()
	}
	return time.Now()
}

// wait pauses between two attempts to take a lock.
func wait(ctx context.Context, attempt int) error {
	timer := time.NewTimer(min(time.Duration(attempt+1)*200*time.Microsecond, 10*time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

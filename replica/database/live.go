package database

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// Index returns the header of the index of the WAL. ok is false if there is no valid one.
func (d *DB) Index() (x sqlite.Index, ok bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.index()
}

// Live is a DB that SQLite has open in other processes, whose locks are known only through the
// kernel.
type Live struct{ *DB }

// Refresh forgets files that SQLite has removed or replaced.
func (d Live) Refresh() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refresh()
}

// BuildIndex builds the index of the WAL from its frames, as the first program does that opens a
// database. The caller takes that program's place, and holds the writers' lock.
func (d Live) BuildIndex() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := walWriter(d)
	wal, err := d.openOrMake(WAL)
	if err != nil {
		return err
	}
	shm, err := d.openOrMake(SHM)
	if err != nil {
		return err
	}
	if err := errors.Join(shm.Truncate(0), shm.Truncate(sqlite.IndexBlockSize)); err != nil {
		return err
	}
	x := sqlite.Index{PageSize: d.pageSize}
	s, err := sqlite.NewWALScanner(wal)
	if err != nil && !errors.Is(err, sqlite.ErrBadWAL) {
		return err
	}
	if err == nil {
		x.PageSize, x.BigEndian, x.Salt = s.Header.PageSize, s.Header.BigEndian, s.Header.Salt
		if err := w.enterAll(s, &x); err != nil {
			return err
		}
	}
	for slot := range sqlite.ReadSlots {
		mark := uint32(sqlite.ReadMarkUnused)
		switch slot {
		case 0:
			mark = 0
		case 1:
			mark = x.MaxFrame
		}
		if err := w.poke(sqlite.ReadMarkOffset(slot), mark); err != nil {
			return err
		}
	}
	return w.publish(&x)
}

// enterAll enters all committed frames.
func (d walWriter) enterAll(s *sqlite.WALScanner, x *sqlite.Index) error {
	var pages []txlog.Page
	for {
		f, _, err := s.Frame(^uint32(0))
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		pages = append(pages, txlog.Page{Number: f.Page})
		if f.Commit == 0 {
			continue
		}
		if err := d.enter(x.MaxFrame+1, pages); err != nil {
			return err
		}
		x.MaxFrame += uint32(len(pages))
		x.Pages, x.Sum = f.Commit, s.Sum
		pages = pages[:0]
	}
}

func (d Live) openOrMake(f File) (*os.File, error) {
	opened, err := d.open(f)
	if err != nil || opened != nil {
		return opened, err
	}
	info, err := os.Stat(d.path(Main))
	if err != nil {
		return nil, err
	}
	made, err := os.OpenFile(d.path(f), os.O_RDWR|os.O_CREATE, info.Mode().Perm())
	if err != nil {
		return nil, err
	}
	if f == WAL {
		d.wal = made
	} else {
		d.shm = made
	}
	return made, nil
}

// SetReadMark stores the mark of a slot, whose lock the caller holds.
func (d Live) SetReadMark(slot int, frame uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return walWriter(d).poke(sqlite.ReadMarkOffset(slot), frame)
}

// Captured makes the log durable, and returns the number of the last frame of the WAL that is in it.
func (d Live) Captured() (uint32, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.log.Sync(); err != nil {
		return 0, err
	}
	x, ok, err := d.index()
	if err != nil || !ok || d.scan == nil || d.scan.Header.Salt != x.Salt {
		return 0, err
	}
	return d.scan.Next - 1, nil
}

// Verify computes the checksums of all pages, and reports whether the content matches the position.
// If transactions of the WAL explain the difference, Verify captures them and reports true. If it
// reports false, Reconcile moves the position to the content. The caller holds the writers' lock.
func (d Live) Verify() (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.diverged {
		return false, nil
	}
	sums, scan, frames := d.sums, d.scan, d.frames
	sum, err := recovery(d).absorb()
	if err != nil {
		return false, err
	}
	switch {
	case sum == d.pos.PostApplyChecksum && (d.pos.TXID > 0 || len(d.sums) == 0):
		return true, nil
	case d.follows(sums, scan):
		d.ahead = false
		d.sums, d.scan, d.frames = sums, scan, frames
		return true, d.captureWAL(true)
	}
	d.diverged = true
	return false, nil
}

// follows reports whether the content differs from these checksums only in pages that have frames
// after the position of scan.
func (d Live) follows(sums []ltx.Checksum, scan *sqlite.WALScanner) bool {
	if scan == nil || d.scan == nil || scan.Header != d.scan.Header || scan.Next >= d.scan.Next || scan.Header.PageSize != d.pageSize {
		return false
	}
	for i, sum := range d.sums {
		if d.frames[uint32(i+1)] < scan.Next && (i >= len(sums) || sums[i] != sum) {
			return false
		}
	}
	return true
}

// Checkpoint copies frames from the WAL to the database file, as far as readers allow.
func (d Live) Checkpoint() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, ok, err := d.index()
	if err != nil || !ok || x.MaxFrame == 0 {
		return err
	}
	// A checkpoint overwrites old pages, so the log must have the transactions on disk.
	if err := d.log.Sync(); err != nil {
		return err
	}
	if wal, err := d.open(WAL); err != nil || wal == nil {
		return err
	}
	if _, err := d.open(Main); err != nil {
		return err
	}
	return walWriter(d).checkpoint(x.MaxFrame, x.Pages)
}

// Restart restarts the WAL, if all of it is captured and in the database file, and no reader uses it.
// The caller holds the writers' lock.
func (d Live) Restart() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, ok, err := d.index()
	if err != nil || !ok || x.MaxFrame == 0 || x.Backfilled < x.MaxFrame || d.scan == nil || d.scan.Next != x.MaxFrame+1 {
		return err
	}
	return walWriter(d).restart(&x)
}

// Mode reports whether the database file is in WAL mode. It returns sqlite.ErrNotDatabase for an
// empty file.
func (d Live) Mode() (wal bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	main, err := d.open(Main)
	if err != nil {
		return false, err
	}
	if main == nil {
		return false, sqlite.ErrNotDatabase
	}
	h, _, err := readHeader(main)
	return h.WAL, err
}

// word is the size of a word of the index, in bytes.
const word = 4

// Peek reads the number of the last committed frame and the count of transactions, without the checks of Index.
func (d Live) Peek() (maxFrame, change uint32, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shm == nil {
		return 0, 0, false
	}
	var b [5 * word]byte
	if _, err := d.shm.ReadAt(b[:], 0); err != nil {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint32(b[4*word:]), binary.LittleEndian.Uint32(b[2*word:]), true
}

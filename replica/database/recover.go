package database

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/superfly/ltx"
	"golang.org/x/sync/semaphore"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// Open opens a database and its log, and finds the position of its content. A database without files
// is empty.
//
// Open recovers the files as SQLite would: it rolls back a valid journal, and commits in the WAL
// count. It also writes the transactions to the files that only the log has. If content and log
// still differ, Diverged reports it.
func Open(c Config) (*DB, error) {
	log, err := txlog.Open(c.Log)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", c.Name, err)
	}
	d := &DB{c: c, log: log, pos: log.Pos(), writing: semaphore.NewWeighted(1)}
	if err := (recovery{d}).recover(); err != nil {
		for _, f := range Files() {
			d.removed(f)
		}
		return nil, errors.Join(fmt.Errorf("recover %s: %w", c.Name, err), log.Close())
	}
	return d, nil
}

// recovery finds the position of a DB's files.
type recovery struct{ *DB }

func (d recovery) recover() error {
	if err := unnamed(d.c).unlink(Main); err != nil {
		return err
	}
	if !d.c.Live {
		if err := d.rollBack(); err != nil {
			return err
		}
		if err := os.Remove(d.path(SHM)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	last := d.log.Last()
	d.stamp = last.Timestamp
	if err := d.followWAL(); err != nil {
		return err
	}
	saved := d.loadSums()
	if d.scan != nil {
		if err := d.skipLogged(last); err != nil {
			return err
		}
	}
	if !saved {
		if err := d.settle(last); err != nil {
			return err
		}
	}
	more, err := d.more()
	d.ahead = more && !d.diverged
	return err
}

// more reports whether the WAL has a transaction after the scanner.
func (d recovery) more() (bool, error) {
	if d.scan == nil {
		return false, nil
	}
	next, sum := d.scan.Next, d.scan.Sum
	defer func() { d.scan.Next, d.scan.Sum = next, sum }()
	for {
		f, _, err := d.scan.Frame(math.MaxUint32)
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil || f.Commit != 0 {
			return err == nil, err
		}
	}
}

// settle computes the checksums of the pages and compares them with the position.
func (d recovery) settle(last txlog.Meta) error {
	size := uint32(0)
	if len(d.frames) > 0 {
		size = last.Commit
	}
	sum, err := d.scanContent(size)
	if err != nil {
		return err
	}
	if sum != d.pos.PostApplyChecksum {
		redone, err := d.redo()
		if err != nil {
			return err
		}
		d.diverged = !redone
	}
	return nil
}

// rollBack rolls back a valid journal, unless it belongs to a committed transaction of several
// databases.
func (d recovery) rollBack() error {
	journal, err := os.Open(d.path(Journal))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer journal.Close()
	info, err := journal.Stat()
	if err != nil {
		return err
	}
	super, err := sqlite.SuperJournal(journal, info.Size())
	if err != nil {
		return err
	}
	committed := false
	if super != "" {
		_, err := os.Lstat(filepath.Join(d.c.Dir, filepath.Base(super)))
		committed = errors.Is(err, os.ErrNotExist)
	}
	main, err := d.open(Main)
	if err != nil {
		return err
	}
	if main != nil && !committed {
		if err := sqlite.Rollback(main, journal, info.Size()); err != nil {
			return err
		}
		if err := main.Sync(); err != nil {
			return err
		}
	}
	if err := os.Remove(d.path(Journal)); err != nil {
		return err
	}
	return durable.SyncDir(d.c.Dir)
}

// skipLogged moves the scanner past the frames that the log has.
func (d recovery) skipLogged(last txlog.Meta) error {
	h := d.scan.Header
	if !last.Valid || last.WALSalt1 != h.Salt[0] || last.WALSalt2 != h.Salt[1] || last.PageSize != h.PageSize {
		return nil
	}
	end := uint32((last.WALOffset + last.WALSize - sqlite.WALHeaderSize) / int64(sqlite.FrameHeaderSize+h.PageSize))
	for {
		f, _, err := d.scan.Frame(end)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		d.frames[f.Page] = d.scan.Next - 1
	}
}

// scanContent computes the checksums of all present pages, and returns that of the database. Size 0
// means the size in the database file.
func (d recovery) scanContent(size uint32) (ltx.Checksum, error) {
	d.sums = nil
	main, err := d.open(Main)
	if err != nil {
		return 0, err
	}
	if main == nil {
		return ltx.ChecksumFlag, nil
	}
	h, inFile, err := readHeader(main)
	if errors.Is(err, sqlite.ErrNotDatabase) {
		if len(d.frames) == 0 {
			return ltx.ChecksumFlag, nil
		}
		h.PageSize = d.scan.Header.PageSize
	} else if err != nil {
		return 0, err
	}
	if size == 0 {
		size = inFile
	}
	d.pageSize = h.PageSize
	sum := ltx.Checksum(0)
	b := make([]byte, h.PageSize)
	d.sums = make([]ltx.Checksum, size)
	for page := uint32(1); page <= size; page++ {
		if err := d.rawPage(page, b); err != nil {
			return 0, err
		}
		d.sums[page-1] = sqlite.PageSum(page, b)
		sum ^= d.sums[page-1]
	}
	return sum | ltx.ChecksumFlag, nil
}

// rawPage reads the newest content of a page, without verifying it.
func (d recovery) rawPage(page uint32, b []byte) error {
	f, offset := d.main, int64(page-1)*int64(d.pageSize)
	if frame, ok := d.frames[page]; ok {
		f, offset = d.wal, sqlite.FrameOffset(frame, d.pageSize)+sqlite.FrameHeaderSize
	}
	n, err := f.ReadAt(b, offset)
	if errors.Is(err, io.EOF) {
		clear(b[n:])
		return nil
	}
	return err
}

// redo writes the log's content to the database file, if the result matches the position. Otherwise
// it reports false and changes nothing.
func (d recovery) redo() (bool, error) {
	if d.c.Live {
		return false, nil // SQLite may be writing
	}
	if more, err := d.more(); err != nil || more {
		return false, err // SQLite has committed more than the log has
	}
	sums := map[uint32]ltx.Checksum{}
	size := uint32(0)
	err := d.replay(func(t *txlog.Tx) error {
		for _, p := range t.Pages {
			sums[p.Number] = sqlite.PageSum(p.Number, p.Data)
		}
		size = t.Commit
		return nil
	})
	if err != nil || size == 0 {
		return false, err
	}
	sum := ltx.Checksum(0)
	for page := uint32(1); page <= size; page++ {
		if s, ok := sums[page]; ok {
			sum ^= s
		} else if int(page) <= len(d.sums) {
			sum ^= d.sums[page-1]
		}
	}
	if sum|ltx.ChecksumFlag != d.pos.PostApplyChecksum {
		return false, nil
	}
	if err := d.foldWAL(); err != nil {
		return false, err
	}
	err = d.replay(func(t *txlog.Tx) error {
		d.pageSize = t.PageSize
		return d.writePages(t.Pages, t.Commit)
	})
	if err != nil {
		return false, err
	}
	if err := d.main.Sync(); err != nil {
		return false, err
	}
	after, err := d.scanContent(0)
	return after == d.pos.PostApplyChecksum, err
}

// replay calls f with each transaction of the log.
func (d recovery) replay(f func(*txlog.Tx) error) error {
	r, err := d.log.After(d.log.Base())
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		b, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		t, err := txlog.Decode(b)
		if err != nil {
			return err
		}
		if err := f(t); err != nil {
			return err
		}
	}
}

const sumsMagic = "HGSUMS01"

func (d recovery) sumsPath() string { return filepath.Join(d.c.Log, "sums") }

// saveSums writes the position and the checksums of the pages to a file.
func (d recovery) saveSums() error {
	b := make([]byte, 0, 64+8*len(d.sums))
	b = append(b, sumsMagic...)
	b = binary.BigEndian.AppendUint64(b, uint64(d.pos.TXID))
	b = binary.BigEndian.AppendUint64(b, uint64(d.pos.PostApplyChecksum))
	b = binary.BigEndian.AppendUint64(b, uint64(d.stamp))
	b = binary.BigEndian.AppendUint64(b, d.mainState())
	b = binary.BigEndian.AppendUint32(b, d.pageSize)
	b = binary.BigEndian.AppendUint32(b, uint32(len(d.sums)))
	for _, s := range d.sums {
		b = binary.BigEndian.AppendUint64(b, uint64(s))
	}
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return durable.WriteFile(d.sumsPath(), b, 0o600)
}

// mainState identifies the content of the database file by its time of change and length.
func (d recovery) mainState() uint64 {
	info, err := os.Stat(d.path(Main))
	if err != nil {
		return 0
	}
	return uint64(info.ModTime().UnixNano()) ^ uint64(info.Size())<<1
}

// loadSums reads and removes the file of saveSums, so that no stale one remains after a crash. It
// reports false if the file does not match the log's position.
func (d recovery) loadSums() bool {
	b, err := os.ReadFile(d.sumsPath())
	if err != nil {
		return false
	}
	if err := os.Remove(d.sumsPath()); err != nil || durable.SyncDir(d.c.Log) != nil {
		return false
	}
	const head = len(sumsMagic) + 40
	if len(b) < head+4 || !bytes.HasPrefix(b, []byte(sumsMagic)) || (len(b)-head-4)%8 != 0 {
		return false
	}
	n := binary.BigEndian.Uint32(b[44:])
	pos := ltx.Pos{TXID: ltx.TXID(binary.BigEndian.Uint64(b[8:])), PostApplyChecksum: ltx.Checksum(binary.BigEndian.Uint64(b[16:]))}
	if pos != d.pos || len(b) != head+4+8*int(n) ||
		crc32.ChecksumIEEE(b[:len(b)-4]) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return false
	}
	if binary.BigEndian.Uint64(b[32:]) != d.mainState() {
		return false // another program has written to the file
	}
	d.stamp = int64(binary.BigEndian.Uint64(b[24:]))
	d.pageSize = binary.BigEndian.Uint32(b[40:])
	d.sums = make([]ltx.Checksum, n)
	for i := range d.sums {
		d.sums[i] = ltx.Checksum(binary.BigEndian.Uint64(b[head+8*i:]))
	}
	return true
}

// Reconcile makes the actual content valid, on a node that has become the primary. If the content is
// known to differ from the position, Reconcile logs it as one more transaction. It reports whether
// it did.
func (d *DB) Reconcile() (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Fenced(); err != nil {
		return d.diverged, err
	}
	if !d.diverged {
		d.ahead = false
		return false, d.captureWAL(d.c.Live)
	}
	return true, recovery{d}.match()
}

// errUnwritten is returned for a commit to a torn database.
var errUnwritten = errors.New("some pages of the database could not be written")

// match makes the content a transaction if it differs from the position. The caller has checked the
// fence.
func (d recovery) match() error {
	if !d.diverged {
		return nil
	}
	if mixed(d.DB) {
		return errUnwritten
	}
	sum, err := d.absorb()
	if err != nil {
		return err
	}
	pos := ltx.Pos{TXID: d.pos.TXID + 1, PostApplyChecksum: sum}
	stamp := d.now().UnixMilli()
	if err := d.logWhole(pos, stamp); err != nil {
		return err
	}
	d.diverged = false
	d.advance(pos, stamp)
	return nil
}

// Finish writes the last transaction of the log to the files again, if that has failed. It waits for locks
// until ctx ends.
func Finish(ctx context.Context, d *DB) error {
	d.mu.Lock()
	owed := d.owed
	d.mu.Unlock()
	if !owed {
		return nil
	}
	release, direct, err := writers{d}.lockForWrite(ctx)
	if err != nil {
		return err
	}
	defer release()
	d.mu.Lock()
	defer d.mu.Unlock()
	return recovery{d}.finish(direct)
}

// finish is Finish with the locks of a writer. The content stays as it is unless the transaction leads
// from there to the position, and if the log has lost the transaction.
func (d recovery) finish(direct bool) error {
	if !d.owed || !d.diverged {
		return nil
	}
	if _, err := d.absorb(); err != nil {
		return err
	}
	t, err := d.lastLogged()
	if errors.Is(err, txlog.ErrGone) {
		d.owed = false
		return nil
	}
	if err != nil {
		return err
	}
	was := d.sums
	sums := make([]pageSum, len(t.Pages))
	for i, p := range t.Pages {
		sums[i] = pageSum{p.Number, sqlite.PageSum(p.Number, p.Data)}
	}
	d.sums = slices.Clone(was)
	d.setSums(sums, t.Commit)
	then := d.sums
	d.sums = was
	if sumOf(then) != d.pos.PostApplyChecksum {
		d.owed = false
		return nil
	}
	d.moves++
	if err := d.write(t.Pages, t.PageSize, t.Commit, direct); err != nil {
		return err
	}
	d.sums = then
	d.diverged, d.ahead, d.owed = false, false, false
	return nil
}

// lastLogged reads the last transaction of the log.
func (d recovery) lastLogged() (*txlog.Tx, error) {
	r, err := d.log.AfterID(d.pos.TXID - 1)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := r.Next()
	if err != nil {
		return nil, err
	}
	return txlog.Decode(b)
}

// unwritten records that writing to the files has failed. The position becomes that of the log, and the
// content may differ from it. owed says that the files lack the last transaction of the log.
func (d recovery) unwritten(stamp int64, owed bool) {
	d.diverged, d.owed = true, owed
	d.moves++
	if pos := d.log.Pos(); pos != d.pos {
		d.advance(pos, stamp)
	}
}

// logWhole logs a transaction of all pages, or restarts the log if there are too many.
func (d recovery) logWhole(pos ltx.Pos, stamp int64) error {
	if len(d.sums) == 0 || int64(len(d.sums))*int64(d.pageSize) > MaxTransaction {
		return d.log.Reset(pos, d.epoch)
	}
	t := txlog.Tx{Post: pos.PostApplyChecksum, Header: ltx.Header{
		PageSize: d.pageSize, Commit: uint32(len(d.sums)), MinTXID: pos.TXID, MaxTXID: pos.TXID,
		Timestamp: stamp, NodeID: d.c.Node,
	}}
	if pos.TXID > 1 {
		t.PreApplyChecksum = d.pos.PostApplyChecksum
	}
	for i := range d.sums {
		p := txlog.Page{Number: uint32(i + 1), Data: make([]byte, d.pageSize)}
		if p.Number == sqlite.LockPage(d.pageSize) {
			continue
		}
		if err := d.rawPage(p.Number, p.Data); err != nil {
			return err
		}
		t.Pages = append(t.Pages, p)
	}
	if d.scan != nil && d.scan.Next > 1 {
		// After a restart, this tells which frames the log has.
		t.WALOffset = sqlite.FrameOffset(1, d.pageSize)
		t.WALSize = int64(d.scan.Next-1) * int64(sqlite.FrameHeaderSize+d.pageSize)
		t.WALSalt1, t.WALSalt2 = d.scan.Header.Salt[0], d.scan.Header.Salt[1]
	}
	return d.append(&t, true)
}

// Absorb computes the checksums of the pages from the actual content, if that may differ from the
// position. It is called before a replica sends its checksums.
func (d *DB) Absorb() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.diverged && !d.ahead && len(d.free) == 0 {
		return nil
	}
	_, err := recovery{d}.absorb()
	d.diverged, d.ahead = true, false
	d.moves++
	return err
}

// absorb computes the checksums of the content including the whole WAL.
func (d recovery) absorb() (ltx.Checksum, error) {
	if err := d.refresh(); err != nil {
		return 0, err
	}
	size, err := d.absorbWAL()
	if err != nil {
		return 0, err
	}
	d.dirty, d.free = nil, nil
	return d.scanContent(size)
}

// absorbWAL moves the scanner past all commits, without making transactions. It returns the size of
// the database after the last commit, or 0 if there is none.
func (d recovery) absorbWAL() (uint32, error) {
	limit := uint32(math.MaxUint32)
	if d.c.Live || d.c.Shared != nil && d.c.Shared() {
		x, ok, err := d.index()
		if err != nil {
			return 0, err
		}
		if ok {
			limit = x.MaxFrame
		}
	}
	d.scan = nil
	if err := d.followWAL(); err != nil || d.scan == nil {
		return 0, err
	}
	size, next, sum := uint32(0), d.scan.Next, d.scan.Sum
	pending := map[uint32]uint32{}
	for {
		f, _, err := d.scan.Frame(limit)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		pending[f.Page] = d.scan.Next - 1
		if f.Commit != 0 {
			maps.Copy(d.frames, pending)
			clear(pending)
			size, next, sum = f.Commit, d.scan.Next, d.scan.Sum
		}
	}
	d.scan.Next, d.scan.Sum = next, sum
	return size, nil
}

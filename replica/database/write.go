package database

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/locks"
	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// checkpointFrames is the length in frames at which this process checkpoints a WAL that it writes.
const checkpointFrames = 1000

// Apply writes a transaction of the primary, which must follow the position, and advances the position.
// It waits for readers only if the database is not in WAL mode. encoded is the transaction in the format
// of the log, and epoch the one in which it was committed. After an error, Diverged reports whether the
// content matches the position.
func (d *DB) Apply(ctx context.Context, t *txlog.Tx, encoded []byte, epoch uint64) error {
	return d.apply(ctx, t, encoded, epoch, false)
}

// Accept is Apply on the primary, for a transaction of a node that holds the halt lock. It returns
// ErrFenced if this node may not commit.
func (d *DB) Accept(ctx context.Context, t *txlog.Tx, encoded []byte, epoch uint64) error {
	return d.apply(ctx, t, encoded, epoch, true)
}

func (d *DB) apply(ctx context.Context, t *txlog.Tx, encoded []byte, epoch uint64, commits bool) error {
	release, direct, err := writers{d}.lockForWrite(ctx)
	if err != nil {
		return err
	}
	defer release()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := (leftovers{d}).settled(direct); err != nil {
		return err
	}
	if commits {
		if err := d.Fenced(); err != nil {
			return err
		}
		if err := (recovery{d}).match(); err != nil {
			return err
		}
	}
	if d.diverged || d.ahead || t.MinTXID != d.pos.TXID+1 || t.MaxTXID != t.MinTXID ||
		!t.IsSnapshot() && t.PreApplyChecksum != d.pos.PostApplyChecksum {
		return ErrDiverged
	}
	sums := make([]pageSum, len(t.Pages))
	for i, p := range t.Pages {
		sums[i] = pageSum{p.Number, sqlite.PageSum(p.Number, p.Data)}
	}
	if d.sumWith(sums, t.Commit) != t.Post {
		return fmt.Errorf("%w: transaction %s leads to another checksum", ErrDiverged, t.MinTXID)
	}
	if !direct {
		if err := (walWriter{d}).fits(len(t.Pages), t.PageSize, t.Commit); err != nil {
			return fmt.Errorf("%w: %w", ErrDiverged, err)
		}
	}
	if err := (replacing{d}).reserve(t.PageSize, t.Commit, int64(len(encoded)), direct); err != nil {
		return err
	}
	// Pages that are overwritten in place need a durable log: if it lost the transaction, the
	// database would be torn.
	if err := d.log.Append(t, encoded, epoch, d.now(), d.c.Sync || direct); err != nil {
		return errors.Join(err, replacing{d}.release(direct))
	}
	d.unsynced = true
	err = d.write(t.Pages, t.PageSize, t.Commit, direct)
	d.setSums(sums, t.Commit)
	if err != nil {
		recovery{d}.unwritten(t.Timestamp, true)
		return err
	}
	d.advance(t.Pos(), t.Timestamp)
	return nil
}

// Trim removes old transactions from the log, by the rules of txlog.Log.Trim. It first makes their
// pages durable, which the log cannot restore any more after a loss of power.
func (d *DB) Trim(before time.Time, keep ltx.TXID, limit int64) error {
	d.mu.Lock()
	unsynced, files := d.unsynced, []*os.File{d.wal, d.main}
	d.unsynced = false
	d.mu.Unlock()
	for _, f := range files {
		if f == nil || !unsynced {
			continue
		}
		if err := f.Sync(); err != nil && !errors.Is(err, os.ErrClosed) { // an emptied or removed file was synced elsewhere
			d.mu.Lock()
			d.unsynced = true
			d.mu.Unlock()
			return err
		}
	}
	return d.log.Trim(before, keep, limit)
}

// leftovers is what SQLite has left in the files of a DB outside of any transaction.
type leftovers struct{ *DB }

// settled handles leftovers of SQLite while this process holds the locks of a writer: the journal of
// a program that died, or frames that a program wrote while the node was the primary.
func (d leftovers) settled(direct bool) error {
	if !direct {
		return d.foreign()
	}
	hot, err := d.hotJournal()
	if err != nil {
		return err
	}
	if hot {
		if err := recovery(d).rollBack(); err != nil {
			return err
		}
		d.gone(Journal)
		d.wrote(Main, 0, 0)
	}
	if hot || len(d.free) > 0 { // a rollback leaves free pages as they were written
		d.dirty, d.free = nil, nil
		d.ahead = true
		d.moves++
	}
	return nil
}

// hotJournal reports whether there is a journal to roll back.
func (d leftovers) hotJournal() (bool, error) {
	f, err := os.Open(d.path(Journal))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	var b [sqlite.JournalHeaderSize]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return false, nil // it has no header
	}
	return sqlite.JournalValid(b[:]), nil
}

// foreign detects frames of the WAL that this process has neither captured nor written.
func (d leftovers) foreign() error {
	has, err := d.hasForeign()
	if has {
		d.ahead = true
		d.moves++
	}
	return err
}

func (d leftovers) hasForeign() (bool, error) {
	x, ok, err := d.index()
	if err != nil || !ok || x.MaxFrame == 0 {
		return false, err
	}
	return d.scan == nil || d.scan.Header.Salt != x.Salt || d.scan.Next != x.MaxFrame+1, nil
}

// unsettled reports whether settled or finish would find anything.
func (d leftovers) unsettled() (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refresh(); err != nil {
		return false, err
	}
	hot, err := d.hotJournal()
	if err != nil || hot || len(d.free) > 0 || d.owed {
		return true, err
	}
	return d.hasForeign()
}

// Settle rolls back the journal of a program that died, does what Finish does, and computes the checksums
// of the pages if the content may differ from the position. It is called before a replica follows a primary. It waits for
// locks until ctx ends.
func (d *DB) Settle(ctx context.Context) error {
	left, err := leftovers{d}.unsettled()
	if err != nil {
		return err
	}
	if !left {
		return d.Absorb()
	}
	if release, direct, err := (writers{d}).lockForWrite(ctx); err == nil {
		d.mu.Lock()
		err := leftovers{d}.settled(direct)
		if err == nil {
			err = recovery{d}.finish(direct)
		}
		d.mu.Unlock()
		release()
		if err != nil {
			return err
		}
	}
	return d.Absorb()
}

// writers takes the locks of a DB's writers.
type writers struct{ *DB }

// lockForWrite takes the locks of a writer. direct reports that the caller may write to the database
// file itself, because no program has it open, or none reads it in rollback mode. Otherwise the
// caller writes to the WAL.
func (d writers) lockForWrite(ctx context.Context) (release func(), direct bool, err error) {
	if err := d.writing.Acquire(ctx, 1); err != nil {
		return nil, false, err
	}
	unlock, direct, err := d.lockOut(ctx)
	if err != nil {
		d.writing.Release(1)
		return nil, false, err
	}
	return func() { unlock(); d.writing.Release(1) }, direct, nil
}

// lockOut is lockForWrite for the only writer of this process.
func (d writers) lockOut(ctx context.Context) (release func(), direct bool, err error) {
	pending := false
	undo := func() {}
	defer func() {
		if err != nil {
			undo()
		}
	}()
	for attempt := 0; ; attempt++ {
		main, err := d.ranges(Main)
		if err != nil {
			return nil, false, err
		}
		if main == nil {
			return func() {}, true, nil
		}
		undo = func() { _ = main.Set(locks.None, sqlite.PendingByte, 2+sqlite.SharedSize) }
		if !pending && main.Set(locks.Exclusive, sqlite.PendingByte, 1) == nil {
			pending = true
		}
		alone := pending && main.Set(locks.Exclusive, sqlite.SharedFirst, sqlite.SharedSize) == nil
		inUse, err := d.indexed()
		if err != nil {
			return nil, false, err
		}
		if alone {
			return undo, true, nil
		}
		if inUse && d.c.Shared != nil && d.c.Shared() {
			undo()
			pending = false
			release, err := d.joinWriters(main)
			if err != nil || release != nil {
				return release, false, err
			}
		}
		if err := wait(ctx, attempt); err != nil {
			return nil, false, err
		}
	}
}

// joinWriters takes the locks of a connection that writes to the WAL, and returns nil if it has to
// wait. The lock of the database file keeps the last program from removing the WAL. The lock of an
// index member keeps the first program from rebuilding the index, which it does if there is no
// member, whatever the index contains.
func (d writers) joinWriters(main locks.Ranges) (release func(), err error) {
	if main.Set(locks.Shared, sqlite.SharedFirst, sqlite.SharedSize) != nil {
		return nil, nil //nolint:nilerr // another program has the whole file locked
	}
	leave := func() { _ = main.Set(locks.None, sqlite.SharedFirst, sqlite.SharedSize) }
	index, err := d.ranges(SHM)
	if err != nil || index == nil || !joinIndex(index) {
		leave()
		return nil, err
	}
	leave = func() {
		_ = index.Set(locks.None, sqlite.WriteByte, 1)
		_ = index.Set(locks.None, sqlite.MemberByte, 1)
		_ = main.Set(locks.None, sqlite.SharedFirst, sqlite.SharedSize)
	}
	if inUse, err := d.indexed(); err != nil || !inUse {
		leave()
		return nil, err
	}
	return leave, nil
}

// joinIndex takes the locks of a member that writes, if there is another member.
func joinIndex(index locks.Ranges) bool {
	if index.Set(locks.Exclusive, sqlite.MemberByte, 1) == nil {
		_ = index.Set(locks.None, sqlite.MemberByte, 1) // there is none
		return false
	}
	if index.Set(locks.Shared, sqlite.MemberByte, 1) != nil {
		return false // a program is building it
	}
	if index.Set(locks.Exclusive, sqlite.WriteByte, 1) != nil {
		_ = index.Set(locks.None, sqlite.MemberByte, 1)
		return false
	}
	return true
}

// indexed reports whether the current WAL has a valid index.
func (d writers) indexed() (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refresh(); err != nil {
		return false, err
	}
	_, ok, err := d.index()
	return ok, err
}

func (d *DB) ranges(f File) (locks.Ranges, error) {
	if d.c.Locks == nil {
		return nil, nil
	}
	return d.c.Locks(f)
}

// write replaces pages of the database and changes its size to size pages. The caller holds the
// locks.
func (d *DB) write(pages []txlog.Page, pageSize, size uint32, direct bool) error {
	if !direct && size == 0 {
		d.pageSize = pageSize
		return d.unlink(Main, WAL, SHM)
	}
	if !direct {
		return walWriter{d}.writeWAL(pages, pageSize, size)
	}
	if err := d.foldWAL(); err != nil {
		return err
	}
	d.pageSize = pageSize
	if size == 0 {
		return d.unlink(Main)
	}
	return d.writePages(pages, size)
}

// unlink removes files. Programs that have them open keep them.
func (d *DB) unlink(files ...File) error {
	for _, f := range files {
		d.removed(f)
		if err := os.Remove(d.path(f)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		d.gone(f)
	}
	return nil
}

// wrote reports that n bytes of a file were written; with n 0, any part of it.
func (d *DB) wrote(f File, off, n int64) {
	if d.c.Written != nil {
		d.c.Written(f, off, n)
	}
}

func (d *DB) gone(f File) {
	if d.c.Gone != nil {
		d.c.Gone(f)
	}
}

// wrotePages is the number of pages up to which writes are reported one by one.
const wrotePages = 64

// writePages writes pages to the database file.
func (d *DB) writePages(pages []txlog.Page, size uint32) error {
	main, err := d.create()
	if err != nil {
		return err
	}
	for _, p := range pages {
		if _, err := main.WriteAt(p.Data, int64(p.Number-1)*int64(d.pageSize)); err != nil {
			return err
		}
	}
	resized, err := resize(main, int64(size)*int64(d.pageSize))
	if err != nil {
		return err
	}
	if resized || len(pages) > wrotePages {
		d.wrote(Main, 0, 0)
		return nil
	}
	for _, p := range pages {
		d.wrote(Main, int64(p.Number-1)*int64(d.pageSize), int64(d.pageSize))
	}
	return nil
}

// resize changes the size of a file, and reports whether it was another. A file of that size keeps the room that is
// reserved beyond its end.
func resize(f *os.File, size int64) (bool, error) {
	info, err := f.Stat()
	if err != nil || info.Size() == size {
		return false, err
	}
	return true, f.Truncate(size)
}

// create opens the database file, and creates it if it is missing.
func (d *DB) create() (*os.File, error) {
	main, err := d.open(Main)
	if err != nil || main != nil {
		return main, err
	}
	d.main, err = os.OpenFile(d.path(Main), os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec // programs of the Machine run as other users
	if err == nil {
		d.wrote(Main, 0, 0)
	}
	return d.main, err
}

// foldWAL moves the content of the WAL to the database file and empties the WAL. No program has the
// database open.
func (d *DB) foldWAL() error {
	wal, err := d.open(WAL)
	if err != nil || wal == nil {
		return err
	}
	// A program may have checkpointed and emptied it.
	if err := d.followWAL(); err != nil {
		return err
	}
	if d.scan == nil {
		return d.emptyWAL(wal)
	}
	main, err := d.create()
	if err != nil {
		return err
	}
	b := make([]byte, d.scan.Header.PageSize)
	for page, frame := range d.frames {
		if _, err := wal.ReadAt(b, sqlite.FrameOffset(frame, uint32(len(b)))+sqlite.FrameHeaderSize); err != nil {
			return err
		}
		if _, err := main.WriteAt(b, int64(page-1)*int64(len(b))); err != nil {
			return err
		}
	}
	if len(d.sums) > 0 && len(d.frames) > 0 {
		if _, err := resize(main, int64(len(d.sums))*int64(len(b))); err != nil {
			return err
		}
	}
	if err := main.Sync(); err != nil {
		return err
	}
	d.wrote(Main, 0, 0)
	return d.emptyWAL(wal)
}

func (d *DB) emptyWAL(wal *os.File) error {
	if err := wal.Truncate(0); err != nil {
		return err
	}
	d.wrote(WAL, 0, 0)
	d.scan, d.frames = nil, nil
	return d.unlink(SHM) // the index of a removed WAL would be taken for valid
}

// walWriter writes to the WAL of a DB and its index, as SQLite would.
type walWriter struct{ *DB }

// writeWAL appends a transaction to the WAL, as SQLite would, so that readers keep their snapshot.
// The caller holds the writers' lock.
func (d walWriter) writeWAL(pages []txlog.Page, pageSize, size uint32) error {
	if err := d.fits(len(pages), pageSize, size); err != nil || len(pages) == 0 {
		return err
	}
	x, _, err := d.index()
	if err != nil {
		return err
	}
	wal, err := d.open(WAL)
	if err != nil {
		return err
	}
	if wal == nil {
		return fmt.Errorf("%s: %w", d.path(WAL), os.ErrNotExist)
	}
	h, sum, err := d.beginFrames(wal, &x, pageSize)
	if err != nil {
		return err
	}
	first := x.MaxFrame + 1
	if sum, err = writeFrames(wal, &h, sum, first, pages, size); err != nil {
		return err
	}
	if err := d.enter(first, pages); err != nil {
		return err
	}
	x.MaxFrame += uint32(len(pages))
	x.Pages, x.Sum, x.Salt, x.PageSize, x.BigEndian = size, sum, h.Salt, pageSize, h.BigEndian
	x.Change++
	if err := d.publish(&x); err != nil {
		return err
	}
	if d.scan == nil || d.scan.Header != h {
		if err := d.followWAL(); err != nil {
			return err
		}
	}
	d.pageSize = pageSize
	d.scan.Forget()
	d.scan.Next, d.scan.Sum = x.MaxFrame+1, sum
	for i, p := range pages {
		d.frames[p.Number] = first + uint32(i)
	}
	for page := range d.frames {
		if page > size {
			delete(d.frames, page)
		}
	}
	if x.MaxFrame-x.Backfilled >= checkpointFrames {
		return d.checkpoint(x.MaxFrame, size)
	}
	return nil
}

var errInUse = errors.New("database in use")

// fits returns errInUse for a transaction that the WAL cannot have. A transaction without pages that
// keeps the size needs no frames, and one that removes the database is not written to the WAL.
func (d walWriter) fits(pages int, pageSize, size uint32) error {
	if size == 0 || pages == 0 && int(size) == len(d.sums) {
		return nil
	}
	x, ok, err := d.index()
	if err == nil && (!ok || pages == 0 || x.PageSize != pageSize && x.MaxFrame != 0) {
		err = fmt.Errorf("%w: the transaction needs the database to itself, but it is open", errInUse)
	}
	return err
}

// beginFrames restarts the WAL if it is fully checkpointed and no reader needs it. It returns the
// header of the WAL and the checksum that the next frame continues.
func (d walWriter) beginFrames(wal *os.File, x *sqlite.Index, pageSize uint32) (sqlite.WALHeader, sqlite.WALSum, error) {
	if x.MaxFrame > 0 && x.Backfilled >= x.MaxFrame {
		if err := d.restart(x); err != nil {
			return sqlite.WALHeader{}, sqlite.WALSum{}, err
		}
	}
	if x.MaxFrame > 0 {
		s, err := sqlite.NewWALScanner(wal)
		if err != nil {
			return sqlite.WALHeader{}, sqlite.WALSum{}, err
		}
		return s.Header, x.Sum, nil
	}
	h := sqlite.WALHeader{PageSize: pageSize}
	var salt [8]byte
	_, _ = rand.Read(salt[:]) // never fails
	h.Salt = [2]uint32{binary.BigEndian.Uint32(salt[:]), binary.BigEndian.Uint32(salt[4:])}
	head := h.Append(nil)
	_, err := wal.WriteAt(head, 0)
	return h, h.Sum, err
}

// restart marks the WAL as empty in the index, if no reader uses it.
func (d walWriter) restart(x *sqlite.Index) error {
	index, err := d.ranges(SHM)
	if err != nil || index == nil {
		return err
	}
	if index.Set(locks.Exclusive, sqlite.ReadByte+1, sqlite.ReadSlots-1) != nil {
		return nil // a reader uses the WAL, so it is continued
	}
	defer func() { _ = index.Set(locks.None, sqlite.ReadByte+1, sqlite.ReadSlots-1) }()
	x.MaxFrame = 0
	x.Salt[0]++
	var salt [4]byte
	_, _ = rand.Read(salt[:]) // never fails
	x.Salt[1] = binary.BigEndian.Uint32(salt[:])
	if err := d.publish(x); err != nil {
		return err
	}
	x.Backfilled = 0
	for _, w := range []struct {
		at    int64
		value uint32
	}{
		{sqlite.BackfilledOffset, 0},
		{sqlite.AttemptedOffset, 0},
		{sqlite.ReadMarkOffset(1), 0},
		{sqlite.ReadMarkOffset(2), sqlite.ReadMarkUnused},
		{sqlite.ReadMarkOffset(3), sqlite.ReadMarkUnused},
		{sqlite.ReadMarkOffset(4), sqlite.ReadMarkUnused},
	} {
		if err := d.poke(w.at, w.value); err != nil {
			return err
		}
	}
	d.scan, d.frames = nil, nil
	return nil
}

// poke stores one word in the index.
func (d walWriter) poke(at int64, value uint32) error {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], value)
	_, err := d.shm.WriteAt(b[:], at)
	return err
}

// publish stores the header of the index, which makes the transaction visible.
func (d walWriter) publish(x *sqlite.Index) error {
	b := x.Copy()
	if _, err := d.shm.WriteAt(b, sqlite.IndexCopy(1)); err != nil {
		return err
	}
	_, err := d.shm.WriteAt(b, sqlite.IndexCopy(0))
	return err
}

// writeFrames writes the frames of a transaction.
func writeFrames(wal *os.File, h *sqlite.WALHeader, sum sqlite.WALSum, first uint32, pages []txlog.Page, size uint32) (sqlite.WALSum, error) {
	const atOnce = 256 << 10
	var b []byte
	at := sqlite.FrameOffset(first, h.PageSize)
	for i, p := range pages {
		f := sqlite.Frame{Page: p.Number}
		if i == len(pages)-1 {
			f.Commit = size
		}
		b, sum = sqlite.AppendFrame(b, h, sum, f, p.Data)
		if len(b) >= atOnce || f.Commit != 0 {
			if _, err := wal.WriteAt(b, at); err != nil {
				return sum, err
			}
			at += int64(len(b))
			b = b[:0]
		}
	}
	return sum, nil
}

// enter adds frames to the page lists and hash tables of the index.
func (d walWriter) enter(first uint32, pages []txlog.Page) error {
	raw := make([]byte, sqlite.IndexBlockSize)
	for i := 0; i < len(pages); {
		place := sqlite.PlaceOf(first + uint32(i))
		clear(raw)
		if _, err := d.shm.ReadAt(raw, place.Block); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		block := sqlite.NewIndexBlock(raw, place)
		if place.Entry == 0 || block.Stale(place.Entry) {
			block.Truncate(place.Entry)
		}
		for entry := place.Entry; i < len(pages) && entry < place.Frames; entry++ {
			if !block.Set(entry, pages[i].Number) {
				return fmt.Errorf("%s: the hash table is full", d.path(SHM))
			}
			i++
		}
		// The header is left out, because readers may set their marks meanwhile.
		if _, err := d.shm.WriteAt(raw[place.PagesAt-place.Block:], place.PagesAt); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint copies frames to the database file, as far as readers allow.
func (d walWriter) checkpoint(maxFrame, size uint32) error {
	index, err := d.ranges(SHM)
	if err != nil || index == nil {
		return err
	}
	if index.Set(locks.Exclusive, sqlite.CheckpointByte, 1) != nil {
		return nil // another checkpoint is running
	}
	defer func() { _ = index.Set(locks.None, sqlite.CheckpointByte, 1) }()
	x, ok, err := d.index()
	if err != nil || !ok {
		return err
	}
	safe, err := d.safeFrame(index, &x, maxFrame)
	if err != nil || safe <= x.Backfilled {
		return err
	}
	// Readers of slot 0 read only the database file.
	if index.Set(locks.Exclusive, sqlite.ReadByte, 1) != nil {
		return nil // there are such readers; a later checkpoint does it
	}
	defer func() { _ = index.Set(locks.None, sqlite.ReadByte, 1) }()
	if err := d.poke(sqlite.AttemptedOffset, safe); err != nil {
		return err
	}
	if err := d.backfill(x.Backfilled, safe, size, safe == maxFrame); err != nil {
		return err
	}
	return d.poke(sqlite.BackfilledOffset, safe)
}

// safeFrame returns the last frame that may be copied to the database file without disturbing a
// reader.
func (d walWriter) safeFrame(index locks.Ranges, x *sqlite.Index, maxFrame uint32) (uint32, error) {
	safe := maxFrame
	for slot := 1; slot < sqlite.ReadSlots; slot++ {
		mark := x.ReadMark[slot]
		if mark >= safe {
			continue
		}
		at := uint64(sqlite.ReadByte + slot)
		if index.Set(locks.Exclusive, at, 1) != nil {
			safe = mark
			continue
		}
		value := uint32(sqlite.ReadMarkUnused)
		if slot == 1 {
			value = safe
		}
		err := d.poke(sqlite.ReadMarkOffset(slot), value)
		_ = index.Set(locks.None, at, 1)
		if err != nil {
			return 0, err
		}
	}
	return safe, nil
}

// backfill copies the newest version of each page in the frames from first+1 to last.
func (d walWriter) backfill(first, last, size uint32, all bool) error {
	wal, main := d.wal, d.main
	if main == nil {
		var err error
		if main, err = d.create(); err != nil {
			return err
		}
	}
	if err := wal.Sync(); err != nil {
		return err
	}
	newest := map[uint32]uint32{}
	var number [4]byte
	for frame := first + 1; frame <= last; frame++ {
		if _, err := wal.ReadAt(number[:], sqlite.FrameOffset(frame, d.pageSize)); err != nil {
			return err
		}
		newest[binary.BigEndian.Uint32(number[:])] = frame
	}
	pages := make([]uint32, 0, len(newest))
	for page := range newest {
		if page <= size {
			pages = append(pages, page)
		}
	}
	slices.Sort(pages)
	b := make([]byte, d.pageSize)
	for _, page := range pages {
		if _, err := wal.ReadAt(b, sqlite.FrameOffset(newest[page], d.pageSize)+sqlite.FrameHeaderSize); err != nil {
			return err
		}
		if _, err := main.WriteAt(b, int64(page-1)*int64(d.pageSize)); err != nil {
			return err
		}
	}
	if all {
		if err := main.Truncate(int64(size) * int64(d.pageSize)); err != nil {
			return err
		}
	}
	d.wrote(Main, 0, 0)
	return main.Sync()
}

// sumOf returns the checksum of a database with these page checksums.
func sumOf(sums []ltx.Checksum) ltx.Checksum {
	sum := ltx.Checksum(0)
	for _, s := range sums {
		sum ^= s
	}
	return sum | ltx.ChecksumFlag
}

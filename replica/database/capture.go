package database

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// batch collects the pages of one transaction.
type batch struct {
	pageSize uint32
	at       map[uint32]int // index in pages, by page
	pages    []pageSum
	frames   []uint32 // of the WAL, if the pages came from it
	data     []byte   // of pages, in their order; nil if it is too large
	oversize bool
	first    uint32 // first frame
}

func newBatch(pageSize uint32) *batch {
	return &batch{pageSize: pageSize, at: map[uint32]int{}}
}

func (b *batch) put(page, frame uint32, data []byte) {
	if page == sqlite.LockPage(b.pageSize) {
		return
	}
	i, again := b.at[page]
	if !again {
		i = len(b.pages)
		b.at[page] = i
		b.pages = append(b.pages, pageSum{page: page})
		b.frames = append(b.frames, 0)
	}
	b.pages[i].sum = sqlite.PageSum(page, data)
	b.frames[i] = frame
	switch {
	case b.oversize:
	case again:
		copy(b.data[i*int(b.pageSize):], data)
	case len(b.data)+len(data) > MaxTransaction:
		b.oversize, b.data = true, nil
	default:
		b.data = append(b.data, data...)
	}
}

func (b *batch) reset() {
	clear(b.at)
	b.pages, b.frames, b.data = b.pages[:0], b.frames[:0], b.data[:0]
	b.oversize, b.first = false, 0
}

// sorted returns the pages up to size, in order, with their content unless it is too large.
func (b *batch) sorted(size uint32) ([]pageSum, []txlog.Page) {
	order := make([]int, 0, len(b.pages))
	for i, p := range b.pages {
		if p.page <= size {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int { return int(b.pages[i].page) - int(b.pages[j].page) })
	sums := make([]pageSum, len(order))
	var pages []txlog.Page
	for n, i := range order {
		sums[n] = b.pages[i]
		if !b.oversize {
			pages = append(pages, txlog.Page{Number: b.pages[i].page, Data: b.data[i*int(b.pageSize):][:b.pageSize]})
		}
	}
	return sums, pages
}

// CaptureWAL makes transactions of SQLite's commits to its write-ahead log since the last call.
// With indexed, only frames up to the last one of the index are committed. Without, every valid
// commit frame counts, which is correct only if SQLite keeps the index in its memory.
func (d *DB) CaptureWAL(indexed bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.captureWAL(indexed)
}

func (d *DB) captureWAL(indexed bool) error {
	if d.diverged && d.Fenced() == nil {
		return recovery{d}.match()
	}
	limit := uint32(math.MaxUint32)
	if indexed {
		x, ok, err := d.index()
		if err != nil || !ok || x.MaxFrame == 0 {
			return err
		}
		limit = x.MaxFrame
	}
	if err := d.followWAL(); err != nil || d.scan == nil {
		return err
	}
	d.scan.Forget()
	b := newBatch(d.scan.Header.PageSize)
	begin, sum := d.scan.Next, d.scan.Sum
	for {
		f, data, err := d.scan.Frame(limit)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if b.first == 0 {
			b.first = d.scan.Next - 1
		}
		b.put(f.Page, d.scan.Next-1, data)
		if f.Commit == 0 {
			continue
		}
		if err := d.commitWAL(b, f.Commit); err != nil {
			d.scan.Next, d.scan.Sum = begin, sum
			return err
		}
		begin, sum = d.scan.Next, d.scan.Sum
		b.reset()
	}
	// Frames after the last commit are not committed: their writer may still replace them.
	d.scan.Next, d.scan.Sum = begin, sum
	return nil
}

// index reads the header of the WAL's index. ok is false if there is no valid one.
func (d *DB) index() (x sqlite.Index, ok bool, err error) {
	shm, err := d.open(SHM)
	if err != nil || shm == nil {
		return sqlite.Index{}, false, err
	}
	var b [sqlite.IndexHeaderSize]byte
	if _, err := shm.ReadAt(b[:], 0); err != nil {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return sqlite.Index{}, false, err
	}
	x, ok = sqlite.ParseIndex(b[:])
	return x, ok, nil
}

// followWAL makes sure that the scanner reads the current WAL: SQLite may have restarted or removed
// the previous one after a full checkpoint.
func (d *DB) followWAL() error {
	wal, err := d.open(WAL)
	if err != nil {
		return err
	}
	if wal == nil {
		d.scan, d.frames = nil, nil
		return nil
	}
	s, err := sqlite.NewWALScanner(wal)
	if errors.Is(err, sqlite.ErrBadWAL) {
		d.scan, d.frames = nil, nil
		return nil
	}
	if err != nil {
		return err
	}
	if d.scan == nil || d.scan.Header != s.Header {
		d.scan, d.frames = s, map[uint32]uint32{}
	}
	return nil
}

// commitWAL makes a transaction of frames.
func (d *DB) commitWAL(b *batch, size uint32) error {
	h := ltx.Header{
		WALOffset: sqlite.FrameOffset(b.first, b.pageSize),
		WALSize:   int64(d.scan.Next-b.first) * int64(sqlite.FrameHeaderSize+b.pageSize),
		WALSalt1:  d.scan.Header.Salt[0],
		WALSalt2:  d.scan.Header.Salt[1],
	}
	if err := d.Fenced(); err != nil {
		// SQLite has already committed, and its readers see the transaction: the node must catch up
		// with the primary.
		d.orphans++
		d.moves++
		d.diverged = true
		return err
	}
	if err := d.commit(b, size, h, false); err != nil {
		return err
	}
	for i, p := range b.pages {
		if p.page <= size {
			d.frames[p.page] = b.frames[i]
		}
	}
	for page := range d.frames {
		if page > size {
			delete(d.frames, page)
		}
	}
	return nil
}

// commit appends a transaction to the log and advances the position. With durable, it syncs the log
// before the transaction becomes visible, because no log of SQLite has it. The caller has checked
// the fence.
func (d *DB) commit(b *batch, size uint32, h ltx.Header, durable bool) error {
	if err := (recovery{d}).match(); err != nil {
		return err
	}
	sums, pages := b.sorted(size)
	now := d.now()
	h.PageSize, h.Commit, h.NodeID, h.Timestamp = b.pageSize, size, d.c.Node, now.UnixMilli()
	h.MinTXID, h.MaxTXID = d.pos.TXID+1, d.pos.TXID+1
	if h.MinTXID > 1 {
		h.PreApplyChecksum = d.pos.PostApplyChecksum
	}
	t := txlog.Tx{Header: h, Pages: pages, Post: d.sumWith(sums, size)}
	if b.oversize {
		if err := d.log.Reset(t.Pos(), d.epoch); err != nil {
			return err
		}
	} else if err := d.append(&t, durable); err != nil {
		return err
	}
	d.pageSize = b.pageSize
	d.setSums(sums, size)
	d.advance(t.Pos(), h.Timestamp)
	return nil
}

func (d *DB) append(t *txlog.Tx, durable bool) error {
	var err error
	if d.encoded, err = d.enc.Append(d.encoded[:0], t); err != nil {
		return err
	}
	if err := d.log.Append(t, d.encoded, d.epoch, d.now(), durable || d.c.Sync); err != nil {
		return fmt.Errorf("append to the log: %w", err)
	}
	if cap(d.encoded) > 4<<20 {
		d.encoded = nil
	}
	return nil
}

// CaptureJournal makes a transaction of the writes to the database file, if they changed its
// content. It is called when SQLite commits by invalidating its rollback journal, and when SQLite
// releases its lock. If it returns an error, the journal must stay valid.
func (d *DB) CaptureJournal() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return journalCapture{d}.captureJournal()
}

// journalCapture captures SQLite's writes in rollback mode.
type journalCapture struct{ *DB }

func (d journalCapture) captureJournal() error {
	main, err := d.open(Main)
	if err != nil || main == nil {
		return err
	}
	h, size, err := readHeader(main)
	if errors.Is(err, sqlite.ErrNotDatabase) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := d.followWAL(); err != nil {
		return err
	}
	if h.WAL && len(d.frames) > 0 {
		// The writes were a checkpoint.
		d.dirty = nil
		return nil
	}
	if d.pageSize != 0 && d.pageSize != h.PageSize && len(d.sums) > 0 {
		if err := d.drop(true); err != nil {
			return err
		}
	}
	b, err := d.written(main, h.PageSize, size)
	if err != nil {
		return err
	}
	if len(b.pages) == 0 && int(size) == len(d.sums) {
		d.dirty, d.free = nil, nil
		return nil
	}
	rolledBack, err := d.onlyFree(main, b, size)
	if err != nil {
		return err
	}
	if rolledBack {
		d.dirty, d.free = nil, map[uint32]struct{}{}
		for _, p := range b.pages {
			d.free[p.page] = struct{}{}
		}
		return nil
	}
	return d.commitWritten(b, size)
}

func (d journalCapture) commitWritten(b *batch, size uint32) error {
	if err := d.Fenced(); err != nil {
		return err
	}
	if err := d.commit(b, size, ltx.Header{}, true); err != nil {
		return err
	}
	d.dirty, d.free = nil, nil
	return nil
}

// onlyFree reports whether all pages of a batch are free and page 1 is unchanged. A rollback leaves
// such pages: SQLite does not journal, and so does not restore, pages that were free before the
// transaction. They become part of the next transaction.
func (d journalCapture) onlyFree(main *os.File, b *batch, size uint32) (bool, error) {
	if _, first := b.at[1]; first || int(size) != len(d.sums) {
		return false, nil
	}
	free, err := sqlite.FreePages(main, b.pageSize, size)
	if err != nil {
		return false, err
	}
	for _, p := range b.pages {
		if !free[p.page] {
			return false, nil
		}
	}
	return true, nil
}

// commitFree makes a transaction of free pages that a rollback has left, so that the content
// matches a position exactly.
func (d journalCapture) commitFree() error {
	main, err := d.open(Main)
	if err != nil || main == nil || len(d.free) == 0 || len(d.dirty) > 0 || len(d.frames) > 0 {
		return err
	}
	size := uint32(len(d.sums))
	b, err := d.written(main, d.pageSize, size)
	if err != nil {
		return err
	}
	if len(b.pages) == 0 {
		d.free = nil
		return nil
	}
	return d.commitWritten(b, size)
}

// readHeader reads the header of a database file, and its size in pages.
func readHeader(f *os.File) (sqlite.Header, uint32, error) {
	info, err := f.Stat()
	if err != nil {
		return sqlite.Header{}, 0, err
	}
	var b [sqlite.HeaderSize]byte
	if _, err := f.ReadAt(b[:], 0); errors.Is(err, io.EOF) {
		return sqlite.Header{}, 0, sqlite.ErrNotDatabase
	} else if err != nil {
		return sqlite.Header{}, 0, err
	}
	h, err := sqlite.ParseHeader(b[:])
	if err != nil {
		return sqlite.Header{}, 0, err
	}
	size := uint32(info.Size() / int64(h.PageSize))
	if h.Pages != 0 && h.Pages < size {
		size = h.Pages
	}
	return h, size, nil
}

// written returns the pages of the database file that differ from the position, of those that may
// have been written.
func (d journalCapture) written(main *os.File, pageSize, size uint32) (*batch, error) {
	known := uint32(len(d.sums))
	candidates := make([]uint32, 0, len(d.dirty))
	for _, pages := range []map[uint32]struct{}{d.dirty, d.free} {
		for page := range pages {
			if page <= min(size, known) {
				candidates = append(candidates, page)
			}
		}
	}
	slices.Sort(candidates)
	candidates = slices.Compact(candidates)
	b := newBatch(pageSize)
	data := make([]byte, pageSize)
	read := func(page uint32) error {
		if _, err := main.ReadAt(data, int64(page-1)*int64(pageSize)); err != nil {
			return fmt.Errorf("read page %d: %w", page, err)
		}
		if page > known || d.sums[page-1] != sqlite.PageSum(page, data) {
			b.put(page, 0, data)
		}
		return nil
	}
	for _, page := range candidates {
		if err := read(page); err != nil {
			return nil, err
		}
	}
	for page := known + 1; page <= size; page++ {
		if page == sqlite.LockPage(pageSize) {
			continue
		}
		if err := read(page); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Drop makes a transaction of the removal of the database.
func (d *DB) Drop() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.sums) == 0 {
		return nil
	}
	if err := d.Fenced(); err != nil {
		return err
	}
	d.torn, d.owed = false, false // what they had is not needed any more
	return journalCapture{d}.drop(false)
}

// drop commits a database without pages. With again, other pages follow immediately.
func (d journalCapture) drop(again bool) error {
	if err := d.Fenced(); err != nil {
		return err
	}
	b := newBatch(d.pageSize)
	if err := d.commit(b, 0, ltx.Header{}, true); err != nil {
		return err
	}
	if !again {
		d.dirty = nil
	}
	return nil
}

// Indexed reports whether the WAL has a valid index.
func (d *DB) Indexed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok, err := d.index()
	return ok && err == nil
}

package database

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/superfly/ltx"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// Vector returns the size of a page in bytes and the checksums of all pages, by which another node
// sends only the pages that differ.
func (d *DB) Vector() (uint32, []ltx.Checksum) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shown = d.moves
	return d.pageSize, append([]ltx.Checksum(nil), d.sums...)
}

const (
	copyPasses = 8
	copyRest   = 64 // pages that may be read while the lock is held
)

// Copy calls emit with the pages that differ from those of a vector, and returns the position of the
// database that they result in. Writers continue meanwhile, so Copy may emit a page several times:
// the last time counts. emit must not keep the data.
func (d *DB) Copy(ctx context.Context, pageSize uint32, have []ltx.Checksum, emit func(page uint32, data []byte) error) (Change, error) {
	sent := have
	var b []byte
	for pass := 0; ; pass++ {
		d.mu.Lock()
		if pageSize != d.pageSize {
			pageSize, sent = d.pageSize, nil
		}
		todo := d.differing(sent)
		if len(todo) <= copyRest || pass >= copyPasses {
			change, rest, err := d.readAll(todo)
			d.mu.Unlock()
			if err != nil {
				return Change{}, err
			}
			for _, p := range rest {
				if err := emit(p.Number, p.Data); err != nil {
					return Change{}, err
				}
			}
			return change, nil
		}
		if len(b) != int(pageSize) {
			b = make([]byte, pageSize)
		}
		d.mu.Unlock()
		for _, page := range todo {
			if err := ctx.Err(); err != nil {
				return Change{}, err
			}
			sum, ok, err := d.readOne(page, pageSize, b)
			if err != nil {
				return Change{}, err
			}
			if !ok {
				continue // the next pass reads it again
			}
			for int(page) > len(sent) {
				sent = append(sent, 0)
			}
			sent[page-1] = sum
			if err := emit(page, b); err != nil {
				return Change{}, err
			}
		}
	}
}

// differing returns the pages whose checksums differ from those of a vector.
func (d *DB) differing(have []ltx.Checksum) []uint32 {
	var pages []uint32
	for i, sum := range d.sums {
		if sum != 0 && (i >= len(have) || have[i] != sum) {
			pages = append(pages, uint32(i+1))
		}
	}
	return pages
}

func (d *DB) readAll(pages []uint32) (Change, []txlog.Page, error) {
	var all []txlog.Page
	for _, page := range pages {
		p := txlog.Page{Number: page, Data: make([]byte, d.pageSize)}
		if err := d.readPage(page, p.Data); err != nil {
			return Change{}, nil, err
		}
		all = append(all, p)
	}
	return d.change(), all, nil
}

// readOne reads a page at the current position, without verifying it. It reports false if there is
// no such page, or if SQLite is replacing it.
func (d *DB) readOne(page, pageSize uint32, b []byte) (ltx.Checksum, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pageSize != pageSize || int(page) > len(d.sums) {
		return 0, false, nil
	}
	err := d.readPage(page, b)
	if errors.Is(err, errTorn) {
		return 0, false, nil
	}
	return d.sums[page-1], err == nil, err
}

// Export writes the database as an SQLite file to f, at one position, which it returns.
func (d *DB) Export(ctx context.Context, f *os.File) (Change, error) {
	size := int64(0)
	var change Change
	var err error
	for attempt := range 20 {
		change, err = d.Copy(ctx, 0, nil, func(page uint32, data []byte) error {
			size = int64(len(data))
			_, err := f.WriteAt(data, int64(page-1)*size)
			return err
		})
		if !errors.Is(err, errTorn) {
			break
		}
		if err := wait(ctx, attempt); err != nil {
			return Change{}, err
		}
	}
	if err != nil {
		return Change{}, err
	}
	return change, f.Truncate(int64(change.Pages) * int64(change.PageSize))
}

// Spool collects the pages that another node sends, in a file, until all have arrived.
type Spool struct {
	f        *os.File
	pageSize uint32
	at       map[uint32]int64
	sums     map[uint32]ltx.Checksum
	end      int64
}

// NewSpool creates a Spool, with a temporary file in the directory of the log. Close removes the file.
func (d *DB) NewSpool() (*Spool, error) {
	f, err := os.CreateTemp(d.c.Log, "spool-*")
	if err != nil {
		return nil, err
	}
	return &Spool{f: f, at: map[uint32]int64{}, sums: map[uint32]ltx.Checksum{}}, nil
}

// Add adds a page, or replaces one. A page of another size than the previous one removes all earlier
// pages.
func (s *Spool) Add(page uint32, data []byte) error {
	size := uint32(len(data))
	if page == 0 || !ltx.IsValidPageSize(size) {
		return fmt.Errorf("page %d of %d bytes: %w", page, size, sqlite.ErrNotDatabase)
	}
	if size != s.pageSize {
		s.pageSize = size
		clear(s.at)
		clear(s.sums)
	}
	at, ok := s.at[page]
	if !ok {
		at = s.end
		s.end += int64(len(data))
	}
	if _, err := s.f.WriteAt(data, at); err != nil {
		return err
	}
	s.at[page], s.sums[page] = at, sqlite.PageSum(page, data)
	return nil
}

// Close removes the file.
func (s *Spool) Close() error {
	return errors.Join(s.f.Close(), os.Remove(s.f.Name()))
}

// Replace replaces the pages of the last Vector with those of a spool, which results in the position of
// a change. It returns ErrDiverged, and replaces nothing, if the result has another checksum or if
// SQLite has written since Vector. It first saves commits that the primary's chain lacks. The log
// restarts at the position.
func (d *DB) Replace(ctx context.Context, s *Spool, c Change, chain Chain) error {
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
	if d.moves != d.shown {
		return fmt.Errorf("%w: it was written meanwhile", ErrDiverged)
	}
	sums, err := replacing{d}.spooled(s, c)
	if err != nil {
		return err
	}
	if got := sumOf(sums); got != c.Pos.PostApplyChecksum {
		return fmt.Errorf("%w: the pages have checksum %s, the primary %s", ErrDiverged, got, c.Pos.PostApplyChecksum)
	}
	if err := (aside{d}).keep(s, c, chain); err != nil {
		return fmt.Errorf("put aside transactions that the primary lacks: %w", err)
	}
	if err := (replacing{d}).replace(s, c, sums, direct); err != nil {
		return err
	}
	return d.log.SetHistory(chain.History)
}

// replacing replaces the content of a DB.
type replacing struct{ *DB }

// spooled returns the checksums of the database with the pages of a spool.
func (d replacing) spooled(s *Spool, c Change) ([]ltx.Checksum, error) {
	sums := make([]ltx.Checksum, c.Pages)
	if c.PageSize == d.pageSize {
		copy(sums, d.sums)
	}
	if s.pageSize != c.PageSize && len(s.at) > 0 {
		return nil, fmt.Errorf("%w: pages of %d bytes, not %d", ErrDiverged, s.pageSize, c.PageSize)
	}
	for page, sum := range s.sums {
		if page <= c.Pages {
			sums[page-1] = sum
		}
	}
	return sums, nil
}

func (d replacing) replace(s *Spool, c Change, sums []ltx.Checksum, direct bool) error {
	mixes := direct // the WAL has all pages, or none that counts
	write := func() error { return d.rewrite(s, c, direct) }
	if !direct && c.Pages > 0 && len(d.sums) > 0 && c.PageSize != d.pageSize {
		made := unnamed(d.c)
		defer func() { _ = made.unlink(Main) }() // the next Open tries again
		if err := (replacing{made}).rewrite(s, c, true); err != nil {
			return fmt.Errorf("new file of the database: %w", err)
		}
		mixes, write = true, func() error { return d.install(made) }
	} else if err := d.reserve(c.PageSize, c.Pages, 0, direct); err != nil {
		return err
	}
	err := write()
	d.torn = err != nil && (mixes || mixed(d.DB))
	if err == nil {
		err = d.log.Reset(c.Pos, c.Epoch)
	}
	if err != nil {
		recovery(d).unwritten(c.Timestamp, false)
		return err
	}
	d.pageSize, d.sums = c.PageSize, sums
	d.diverged, d.owed, d.ahead, d.dirty, d.free, d.orphans = false, false, false, nil, nil, 0
	d.advance(c.Pos, c.Timestamp)
	return nil
}

// unnamed returns the DB of a file that takes the place of the database file once all of its pages are in it. The
// file is beside the database file, and hidden.
func unnamed(c Config) *DB {
	return &DB{c: Config{Name: "." + c.Name + "-new", Dir: c.Dir}}
}

// install puts the file of an unnamed DB in the place of the database file, with its WAL and index. Programs that
// have those open keep them.
func (d replacing) install(made *DB) error {
	if err := d.unlink(Main, WAL, SHM); err != nil {
		return err
	}
	if err := durable.Rename(made.path(Main), d.path(Main)); err != nil {
		return err
	}
	d.gone(Main) // a program may have made one meanwhile
	return nil
}

// rewrite writes the pages of a spool to the files.
func (d replacing) rewrite(s *Spool, c Change, direct bool) error {
	var pages []txlog.Page
	flush := func(last bool) error {
		if !last && !direct {
			return nil // one transaction, so that readers see all of it at once
		}
		err := d.write(pages, c.PageSize, c.Pages, direct)
		pages = pages[:0]
		return err
	}
	held := 0
	for page := uint32(1); page <= c.Pages; page++ {
		at, ok := s.at[page]
		if !ok {
			continue
		}
		data := make([]byte, c.PageSize)
		if _, err := s.f.ReadAt(data, at); err != nil {
			return err
		}
		pages = append(pages, txlog.Page{Number: page, Data: data})
		if held += len(data); held >= MaxTransaction {
			if err := flush(false); err != nil {
				return err
			}
			held = 0
		}
	}
	if err := flush(true); err != nil {
		return err
	}
	if main, err := d.open(Main); err != nil {
		return err
	} else if main != nil && direct {
		return main.Sync()
	}
	return nil
}

// reserve allocates the room of a database file of size pages, before any of them is written in place:
// with some of them, on a full disk, the file would be neither the earlier database nor the later one.
// Pages that go to the WAL need no such room. In a Machine nothing can be allocated ahead: there, reserve returns an
// error unless enough is free, also for the logged bytes that the log takes first.
func (d replacing) reserve(pageSize, size uint32, logged int64, direct bool) error {
	if !direct || size == 0 {
		return nil
	}
	main, err := d.create()
	if err != nil {
		return err
	}
	length := int64(size) * int64(pageSize)
	info, err := main.Stat()
	if err != nil || info.Size() >= length {
		return err
	}
	err = durable.Allocate(int(main.Fd()), unix.FALLOC_FL_KEEP_SIZE, length)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = hasFree(main, length-info.Size()+logged)
	}
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("room for a database of %d bytes: %w", length, err), d.release(direct))
}

// hasFree returns ENOSPC if the file system of a file has fewer free bytes, as far as it says how many.
func hasFree(f *os.File, n int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Blocks > 0 && uint64(n) > st.Bavail*uint64(st.Bsize) {
		return unix.ENOSPC
	}
	return nil
}

// release frees what reserve has allocated beyond the end of the database file, for pages that will not be written.
func (d replacing) release(direct bool) error {
	if !direct || d.main == nil {
		return nil
	}
	info, err := d.main.Stat()
	if err != nil {
		return err
	}
	return d.main.Truncate(info.Size())
}

// ErrBadImport is returned for an import that is not an SQLite database.
var ErrBadImport = errors.New("the file is not an SQLite database")

// Import replaces the content of the database with a file, as one transaction. It returns ErrFenced
// if this node may not commit. After another error, the log may have the import and the files not:
// Diverged then reports it, and the next Import replaces everything.
func (d *DB) Import(ctx context.Context, r io.Reader) (Change, error) {
	s, err := d.NewSpool()
	if err != nil {
		return Change{}, err
	}
	defer s.Close()
	pages, err := s.fill(r)
	if err != nil {
		return Change{}, err
	}
	release, direct, err := writers{d}.lockForWrite(ctx)
	if err != nil {
		return Change{}, err
	}
	defer release()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Fenced(); err != nil {
		return Change{}, err
	}
	if !direct && !mixed(d) {
		if err := d.captureWAL(true); err != nil {
			return Change{}, err
		}
	}
	if err := (leftovers{d}).settled(direct); err != nil {
		return Change{}, err
	}
	c := Change{Name: d.c.Name, PageSize: s.pageSize, Pages: pages, Timestamp: d.now().UnixMilli(), Epoch: d.epoch}
	sums, err := replacing{d}.spooled(s, c)
	if err != nil {
		return Change{}, err
	}
	c.Pos = ltx.Pos{TXID: d.pos.TXID + 1, PostApplyChecksum: sumOf(sums)}
	if d.diverged || int64(pages)*int64(s.pageSize) > MaxTransaction || len(d.sums) > 0 && d.pageSize != s.pageSize {
		err = replacing{d}.replace(s, c, sums, direct)
	} else {
		// In a plain directory, a program that has closed the database may have changed any page.
		all := d.ahead || direct && (d.c.Live || len(d.dirty) > 0)
		err = replacing{d}.importLogged(s, c, direct, all)
	}
	return d.change(), err
}

// importLogged writes an import that is small enough for the log. With all, it also writes the pages
// that have not changed since the position.
func (d replacing) importLogged(s *Spool, c Change, direct, all bool) error {
	b := newBatch(s.pageSize)
	data := make([]byte, s.pageSize)
	for page := uint32(1); page <= c.Pages; page++ {
		at, ok := s.at[page]
		if !ok || !all && int(page) <= len(d.sums) && d.sums[page-1] == s.sums[page] {
			continue
		}
		if _, err := s.f.ReadAt(data, at); err != nil {
			return err
		}
		b.put(page, 0, data)
	}
	_, content := b.sorted(c.Pages)
	if err := d.reserve(c.PageSize, c.Pages, int64(len(b.data)), direct); err != nil {
		return err
	}
	// The log comes first: after a crash, its content is written again.
	if err := d.commit(b, c.Pages, ltx.Header{}, true); err != nil {
		return errors.Join(err, d.release(direct))
	}
	if err := d.write(content, c.PageSize, c.Pages, direct); err != nil {
		recovery(d).unwritten(c.Timestamp, true)
		return err
	}
	d.ahead = false
	return nil
}

// fill reads a database file into the spool and returns its size in pages.
func (s *Spool) fill(r io.Reader) (uint32, error) {
	head := make([]byte, sqlite.HeaderSize)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrBadImport, err)
	}
	h, err := sqlite.ParseHeader(head)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrBadImport, err)
	}
	data := make([]byte, h.PageSize)
	copy(data, head)
	n, err := io.ReadFull(r, data[len(head):])
	if err != nil {
		return 0, fmt.Errorf("%w: page 1 has %d bytes: %w", ErrBadImport, n+len(head), err)
	}
	for page := uint32(1); ; page++ {
		if page != sqlite.LockPage(h.PageSize) {
			if err := s.Add(page, data); err != nil {
				return 0, err
			}
		}
		if page == h.Pages {
			return page, nil
		}
		if _, err := io.ReadFull(r, data); errors.Is(err, io.EOF) && h.Pages == 0 {
			return page, nil
		} else if err != nil {
			return 0, fmt.Errorf("%w: it ends in page %d: %w", ErrBadImport, page+1, err)
		}
	}
}

// PutVector appends checksums to b, in the format of the wire.
func PutVector(b []byte, sums []ltx.Checksum) []byte {
	for _, s := range sums {
		b = binary.BigEndian.AppendUint64(b, uint64(s))
	}
	return b
}

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/superfly/ltx"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// Database is one database of a backup.
type Database struct {
	Name    string
	From    time.Time // the earliest time to which it can be restored, by the names of its objects
	To      time.Time // of the last transaction
	Objects int
	Size    int64 // bytes
}

// Databases lists the databases of a backup, by name.
func Databases(ctx context.Context, s Store) ([]Database, error) {
	all, err := catalogs(ctx, s, "db/")
	if err != nil {
		return nil, err
	}
	var list []Database
	for name, items := range all {
		d := Database{Name: name, Objects: len(items)}
		for _, i := range items {
			d.Size += i.size
			if begins := i.form == snapshot || i.from == empty; begins && (d.From.IsZero() || at(i.first).Before(d.From)) {
				d.From = at(i.first)
			}
			if at(i.last).After(d.To) {
				d.To = at(i.last)
			}
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Database) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Restored is the result of a restore.
type Restored struct {
	Pos  ltx.Pos
	Time time.Time // of its last transaction
	Size int64     // bytes
}

// Restore writes the state of a database at a time to a new file. The zero time means the newest
// state. The file appears with all its content or not at all. Restore compares the checksum after
// each transaction. It returns ErrNotFound if the backup does not reach back to the time.
func Restore(ctx context.Context, s Store, db string, when time.Time, file string) (r Restored, err error) {
	all, err := catalogs(ctx, s, dirOf(db))
	if err != nil {
		return Restored{}, err
	}
	c := newCatalog(all[db])
	if when.IsZero() {
		for _, i := range c.items {
			if at(i.last).After(when) {
				when = at(i.last)
			}
		}
	}
	w, ok := c.way(when)
	if !ok {
		return Restored{}, fmt.Errorf("database %s at %s: %w", db, when.UTC().Format(time.RFC3339Nano), ErrNotFound)
	}
	if _, err := os.Lstat(file); err == nil {
		return Restored{}, fmt.Errorf("%s: %w", file, os.ErrExist)
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+durable.Unfinished+"*")
	if err != nil {
		return Restored{}, err
	}
	defer func() {
		if err != nil {
			_ = f.Close() // an earlier error is returned
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	img := &image{f: f, pos: empty}
	for _, i := range w {
		if img.full {
			break
		}
		if err := img.add(ctx, s, db, i, when.UnixMilli()); err != nil {
			return Restored{}, fmt.Errorf("%s: %w", i.name(db), err)
		}
	}
	if len(img.sums) == 0 {
		return Restored{}, fmt.Errorf("database %s was dropped at %s: %w", db, at(img.stamp).Format(time.RFC3339Nano), ErrNotFound)
	}
	if err := img.verify(); err != nil {
		return Restored{}, err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return Restored{}, err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, file, unix.RENAME_NOREPLACE); err != nil {
		return Restored{}, &os.LinkError{Op: "rename", Old: f.Name(), New: file, Err: err}
	}
	return Restored{Pos: img.pos, Time: at(img.stamp), Size: int64(len(img.sums)) * int64(img.pageSize)}, durable.SyncDir(filepath.Dir(file))
}

// image is a database file under construction.
type image struct {
	f        *os.File
	pageSize uint32
	sums     []ltx.Checksum
	sum      ltx.Checksum // of all pages
	pos      ltx.Pos
	stamp    int64
	full     bool // the next transaction is later than the requested time
}

// add applies an object's transactions up to a time.
func (img *image) add(ctx context.Context, s Store, db string, i item, limit int64) error {
	r, err := s.Get(ctx, i.name(db))
	if err != nil {
		return err
	}
	defer r.Close()
	if i.form != single {
		if img.full = i.form == merged && i.last > limit; img.full {
			return nil
		}
		return img.addFile(r, i)
	}
	for img.pos != i.to {
		b, err := readRecord(r)
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		t, err := txlog.Decode(b)
		if err != nil {
			return err
		}
		if img.full = t.Timestamp > limit; img.full {
			return nil
		}
		if err := follows(t, img.pos); err != nil {
			return err
		}
		if err := img.begin(t.PageSize); err != nil {
			return err
		}
		for _, p := range t.Pages {
			if err := img.page(p.Number, p.Data); err != nil {
				return err
			}
		}
		if err := img.end(t.Commit, t.Pos(), t.Timestamp); err != nil {
			return err
		}
	}
	return nil
}

// addFile applies one LTX file.
func (img *image) addFile(r io.Reader, i item) error {
	dec := ltx.NewDecoder(r)
	dec.SetRetainPageIndex(false)
	if err := dec.DecodeHeader(); err != nil {
		return err
	}
	h := dec.Header()
	if i.form == snapshot {
		img.sums, img.sum, img.pageSize = nil, 0, 0
		if err := img.f.Truncate(0); err != nil {
			return err
		}
	} else if err := follows(&txlog.Tx{Header: h}, img.pos); err != nil {
		return err
	}
	if err := img.begin(h.PageSize); err != nil {
		return err
	}
	data := make([]byte, h.PageSize)
	for {
		var p ltx.PageHeader
		err := dec.DecodePage(&p, data)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if p.Pgno > h.Commit {
			return fmt.Errorf("%w: page %d of %d", ltx.ErrInvalidFile, p.Pgno, h.Commit)
		}
		if err := img.page(p.Pgno, data); err != nil {
			return err
		}
	}
	if err := dec.Close(); err != nil {
		return err
	}
	return img.end(h.Commit, ltx.Pos{TXID: h.MaxTXID, PostApplyChecksum: dec.Trailer().PostApplyChecksum}, h.Timestamp)
}

// begin starts a transaction with pages of a given size.
func (img *image) begin(pageSize uint32) error {
	if len(img.sums) > 0 && pageSize != img.pageSize {
		return fmt.Errorf("%w: pages of %d bytes after %d", ltx.ErrInvalidFile, pageSize, img.pageSize)
	}
	img.pageSize = pageSize
	return nil
}

func (img *image) page(n uint32, data []byte) error {
	if int(n) > len(img.sums) {
		img.sums = append(img.sums, make([]ltx.Checksum, int(n)-len(img.sums))...)
	}
	sum := sqlite.PageSum(n, data)
	img.sum ^= img.sums[n-1] ^ sum
	img.sums[n-1] = sum
	_, err := img.f.WriteAt(data, int64(n-1)*int64(img.pageSize))
	return err
}

// end ends a transaction, after which the database has a size in pages and a position.
func (img *image) end(pages uint32, pos ltx.Pos, stamp int64) error {
	for len(img.sums) > int(pages) {
		last := len(img.sums) - 1
		img.sum ^= img.sums[last]
		img.sums = img.sums[:last]
	}
	if n := int(pages) - len(img.sums); n > 0 {
		img.sums = append(img.sums, make([]ltx.Checksum, n)...)
	}
	if got := img.sum | ltx.ChecksumFlag; got != pos.PostApplyChecksum {
		return fmt.Errorf("%w: transaction %s leads to %s and says %s", ltx.ErrChecksumMismatch, pos.TXID, got, pos.PostApplyChecksum)
	}
	img.pos, img.stamp = pos, stamp
	return img.f.Truncate(int64(pages) * int64(img.pageSize))
}

// verify reads the file and compares its checksum with the position.
func (img *image) verify() error {
	sum := ltx.Checksum(0)
	data := make([]byte, img.pageSize)
	for n := range uint32(len(img.sums)) {
		if _, err := img.f.ReadAt(data, int64(n)*int64(img.pageSize)); err != nil {
			return err
		}
		if n+1 != sqlite.LockPage(img.pageSize) {
			sum ^= sqlite.PageSum(n+1, data)
		}
	}
	if sum |= ltx.ChecksumFlag; sum != img.pos.PostApplyChecksum {
		return fmt.Errorf("%w: the file has %s, the position %s", ltx.ErrChecksumMismatch, sum, img.pos.PostApplyChecksum)
	}
	return nil
}

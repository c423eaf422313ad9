package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/sqlite"
)

// maintain stores snapshots, merges old objects and removes expired ones, until ctx ends. It works
// on one database at a time.
func (t *term) maintain(ctx context.Context) {
	tidied := t.o.Now()
	for ctx.Err() == nil {
		_ = t.repeat(ctx, func(ctx context.Context) error { return t.snapshots(ctx) }) // fails when the term ends
		if t.o.Now().Sub(tidied) >= tidyInterval {
			tidied = t.o.Now()
			_ = t.repeat(ctx, t.tidy) // fails when the term ends
		}
		t.rest(ctx)
	}
}

// rest waits until there may be work.
func (t *term) rest(ctx context.Context) {
	timer := time.NewTimer(maintain)
	defer timer.Stop()
	select {
	case <-t.wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// snapshots stores a snapshot of each database that needs one.
func (t *term) snapshots(ctx context.Context) error {
	var errs []error
	for _, db := range t.o.Node.All() {
		s := t.state(db.Name())
		if diverged, _ := db.Diverged(); diverged || !s.known {
			continue
		}
		old := t.o.Now().Sub(s.snapshot) >= t.o.SnapshotInterval && at(db.Last().Timestamp).After(s.snapshot)
		if !s.broken && !old {
			continue
		}
		if err := t.snapshot(ctx, db); err != nil {
			errs = append(errs, fmt.Errorf("snapshot of %s: %w", db.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// snapshot stores the whole database.
func (t *term) snapshot(ctx context.Context, db *database.DB) error {
	pages, err := t.temporary()
	if err != nil {
		return err
	}
	defer discard(pages)
	change, err := db.Export(ctx, pages)
	if err != nil {
		return err
	}
	file, err := t.temporary()
	if err != nil {
		return err
	}
	defer discard(file)
	stamp := change.Timestamp
	if stamp == 0 {
		stamp = t.o.Now().UnixMilli() // the log no longer has the time
	}
	if change.Pos.TXID > 0 {
		if err := encodeSnapshot(file, pages, change, stamp); err != nil {
			return err
		}
		if err := t.putFile(ctx, db.Name(), item{
			form: snapshot, to: change.Pos, epoch: t.epoch, begun: t.state(db.Name()).begun, first: stamp, last: stamp,
		}, file); err != nil {
			return err
		}
	}
	t.counts.snapshot()
	t.change(db.Name(), func(s *state) {
		s.snapshot = t.o.Now()
		if s.broken {
			s.broken, s.cursor = false, change.Pos
		}
	})
	return nil
}

// putFile stores a file as an object.
func (t *term) putFile(ctx context.Context, db string, i item, f *os.File) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := t.o.Store.Put(ctx, i.name(db), f, size); err != nil {
		return err
	}
	t.counts.sent(size)
	return nil
}

// temporary creates a file, which the caller passes to discard.
func (b *Backup) temporary() (*os.File, error) { return os.CreateTemp(b.o.Dir, "part-*") }

func discard(f *os.File) {
	_ = f.Close()           // no longer needed
	_ = os.Remove(f.Name()) // Run removes leftovers
}

// encodeSnapshot writes the pages of a database file as an LTX file.
func encodeSnapshot(to, pages *os.File, c database.Change, stamp int64) error {
	enc, err := ltx.NewEncoder(to)
	if err != nil {
		return err
	}
	pageSize := c.PageSize
	if c.Pages == 0 {
		pageSize = 4096 // of a dropped database; the format requires a page size
	}
	if err := enc.EncodeHeader(ltx.Header{
		Version: ltx.Version, PageSize: pageSize, Commit: c.Pages, MinTXID: 1, MaxTXID: c.Pos.TXID, Timestamp: stamp,
	}); err != nil {
		return err
	}
	data := make([]byte, pageSize)
	sum := ltx.ChecksumFlag
	for page := uint32(1); page <= c.Pages; page++ {
		if page == sqlite.LockPage(pageSize) {
			continue
		}
		if _, err := pages.ReadAt(data, int64(page-1)*int64(pageSize)); err != nil {
			return err
		}
		sum = ltx.ChecksumFlag | (sum ^ sqlite.PageSum(page, data))
		if err := enc.EncodePage(ltx.PageHeader{Pgno: page}, data); err != nil {
			return err
		}
	}
	if sum != c.Pos.PostApplyChecksum {
		return fmt.Errorf("the pages have checksum %s, the position %s: %w", sum, c.Pos.PostApplyChecksum, ltx.ErrChecksumMismatch)
	}
	enc.SetPostApplyChecksum(sum)
	return enc.Close()
}

// tidy merges old objects and removes those that no restore needs.
func (t *term) tidy(ctx context.Context) error {
	all, err := catalogs(ctx, t.o.Store, "db/")
	if err != nil {
		return err
	}
	var errs []error
	for db, items := range all {
		if err := t.tidyOne(ctx, db, newCatalog(items)); err != nil {
			errs = append(errs, fmt.Errorf("database %s: %w", db, err))
		}
	}
	return errors.Join(errs...)
}

func (t *term) tidyOne(ctx context.Context, db string, c *catalog) error {
	need := c.needed(t.o.Now().Add(-t.o.Retention))
	for _, i := range c.items {
		if need[i] {
			continue
		}
		if err := t.o.Store.Remove(ctx, i.name(db)); err != nil {
			return err
		}
		t.counts.removed(1)
	}
	for _, g := range c.groups(need, t.o.Now(), t.o.Exact) {
		if err := t.join(ctx, db, g); err != nil {
			return err
		}
	}
	return nil
}

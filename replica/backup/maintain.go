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
	tidied, retry := t.o.Now(), t.o.Delay
	for ctx.Err() == nil {
		limit := maintain
		if t.attempt(ctx, t.snapshots) {
			retry = t.o.Delay
		} else {
			limit, retry = retry, min(2*retry, maxRetry)
		}
		// It may fail for as long as the store is as it is, so it must not keep snapshots from being stored.
		if t.o.Now().Sub(tidied) >= tidyInterval {
			tidied = t.o.Now()
			t.attempt(ctx, t.tidy)
		}
		t.rest(ctx, limit)
	}
}

// attempt does something once, and reports whether it succeeded. It counts and logs a failure, unless ctx has ended.
func (t *term) attempt(ctx context.Context, do func(context.Context) error) bool {
	err := do(ctx)
	if err != nil && ctx.Err() == nil {
		t.counts.failed()
		t.o.Log.Error("the backup failed and will be retried", "store", t.o.Store.String(), "error", err)
	}
	return err == nil
}

// rest waits until there may be work, at most for a limit.
func (t *term) rest(ctx context.Context, limit time.Duration) {
	timer := time.NewTimer(limit)
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

// tidyErrors is how many errors of a database tidy reports.
const tidyErrors = 5

func (t *term) tidyOne(ctx context.Context, db string, c *catalog) error {
	var errs []error
	failed := func(err error) bool {
		if err != nil && len(errs) < tidyErrors {
			errs = append(errs, err)
		}
		return err != nil
	}
	need := c.needed(t.o.Now().Add(-t.o.Retention))
	for _, i := range c.items {
		if need[i] || ctx.Err() != nil {
			continue
		}
		if !failed(t.o.Store.Remove(ctx, i.name(db))) {
			t.counts.removed(1)
		}
	}
	for _, g := range c.groups(need, t.o.Now(), t.o.Exact) {
		if ctx.Err() == nil {
			failed(t.join(ctx, db, g))
		}
	}
	return errors.Join(errs...)
}

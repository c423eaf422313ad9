package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/txlog"
)

const (
	mergeWindow = time.Hour        // of old transactions, one state is kept for each window
	joinAfter   = 10 * time.Minute // age at which small objects are joined
	joinCount   = 8                // minimum number of objects to join
	joinBytes   = 2 * objectBytes  // maximum size of a joined object
	fanIn       = 128              // files that the compactor reads concurrently
)

// group is a list of objects, in order, that become one.
type group struct {
	items []item
	merge bool // to one state; otherwise the transactions are kept
}

// groups returns the needed objects that should be joined or merged.
func (c *catalog) groups(need map[item]bool, now time.Time, exact time.Duration) []group {
	var all []group
	var current group
	size := int64(0)
	flush := func() {
		if current.merge || len(current.items) >= joinCount {
			all = append(all, current)
		}
		current, size = group{}, 0
	}
	for _, i := range slices.Backward(c.items) {
		window := at(i.last).Truncate(mergeWindow)
		merge := window.Add(mergeWindow).Before(now.Add(-exact))
		if i.form != single || !need[i] || !merge && (at(i.last).After(now.Add(-joinAfter)) || i.size > joinBytes/2) {
			continue
		}
		if n := len(current.items); n > 0 {
			prior := current.items[n-1]
			if prior.to != i.from || c.snapshotAt(i.from) || current.merge != merge ||
				at(prior.last).Truncate(mergeWindow) != window || !merge && size+i.size > joinBytes {
				flush()
			}
		}
		current.merge = merge
		current.items = append(current.items, i)
		size += i.size
	}
	flush()
	return all
}

// join replaces the objects of a group with one.
func (t *term) join(ctx context.Context, db string, g group) error {
	f, err := t.temporary()
	if err != nil {
		return err
	}
	defer discard(f)
	for _, i := range g.items {
		if err := copyObject(ctx, t.o.Store, i.name(db), f); err != nil {
			return err
		}
	}
	records, err := scan(f, g.items[0].from)
	if err != nil {
		return err
	}
	first, last := g.items[0], g.items[len(g.items)-1]
	if records[len(records)-1].to != last.to {
		return fmt.Errorf("%s does not lead to the position in its name: %w", last.name(db), ltx.ErrInvalidFile)
	}
	if g.merge {
		err = t.merge(ctx, db, f, records, last)
	} else {
		last.from, last.first = first.from, first.first
		err = t.putFile(ctx, db, last, f)
	}
	if err != nil {
		return err
	}
	t.counts.joined()
	for _, i := range g.items {
		if err := t.o.Store.Remove(ctx, i.name(db)); err != nil {
			return err
		}
	}
	t.counts.removed(len(g.items))
	return nil
}

func copyObject(ctx context.Context, s Store, name string, to io.Writer) error {
	r, err := s.Get(ctx, name)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, r)
	return errors.Join(err, r.Close())
}

// record is one transaction in a file.
type record struct {
	item

	at, n    int64 // offset and length of the LTX file
	pageSize uint32
	pages    uint32
}

// scan finds the transactions in a file of records, which must be consecutive from a position.
func scan(f *os.File, from ltx.Pos) ([]record, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	var all []record
	off := int64(0)
	for {
		b, err := readRecord(f)
		if errors.Is(err, io.EOF) && len(all) > 0 {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		meta, err := txlog.DecodeMeta(b)
		if err != nil {
			return nil, err
		}
		if err := follows(meta, from); err != nil {
			return nil, err
		}
		all = append(all, record{
			item: item{form: merged, from: from, to: meta.Pos(), first: meta.Timestamp, last: meta.Timestamp},
			at:   off + 4, n: int64(len(b)), pageSize: meta.PageSize, pages: meta.Commit,
		})
		from = meta.Pos()
		off += 4 + int64(len(b))
	}
}

// follows returns an error if a transaction does not follow a position.
func follows(t *txlog.Tx, from ltx.Pos) error {
	if t.MinTXID != from.TXID+1 || !t.IsSnapshot() && t.PreApplyChecksum != from.PostApplyChecksum {
		return fmt.Errorf("%w: transaction %s does not follow %s", ltx.ErrInvalidFile, t.MinTXID, from)
	}
	return nil
}

// merge stores one object for the transactions of each window. Transactions that drop the database
// or change the page size cannot be merged, and split the object.
func (t *term) merge(ctx context.Context, db string, f *os.File, records []record, last item) error {
	for len(records) > 0 {
		n := 1
		for n < len(records) && records[0].mergesWith(records[n]) {
			n++
		}
		i := records[n-1].item
		i.from, i.epoch, i.begun = records[0].from, last.epoch, last.begun
		// A merged object has only the state of its last transaction.
		i.first = i.last
		out, err := t.compact(ctx, f, records[:n])
		if err != nil {
			return err
		}
		err = t.putFile(ctx, db, i, out)
		discard(out)
		if err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

// mergesWith reports whether a transaction and a later one can be merged.
func (r record) mergesWith(o record) bool {
	return r.pages > 0 && o.pages > 0 && r.pageSize == o.pageSize &&
		at(r.last).Truncate(mergeWindow).Equal(at(o.last).Truncate(mergeWindow))
}

// compact merges the records of a file to one LTX file, in several rounds.
func (t *term) compact(ctx context.Context, f *os.File, records []record) (*os.File, error) {
	var inputs []*io.SectionReader
	for _, r := range records {
		inputs = append(inputs, io.NewSectionReader(f, r.at, r.n))
	}
	var from *os.File // file of the inputs, if not f
	for {
		out, err := t.temporary()
		if err != nil {
			return nil, err
		}
		next, err := compactOnce(ctx, inputs, out)
		if from != nil {
			discard(from)
		}
		if err != nil {
			discard(out)
			return nil, err
		}
		if len(next) == 1 {
			return out, nil
		}
		inputs, from = next, out
	}
}

// compactOnce merges the inputs in batches of fanIn, and writes the results to one file.
func compactOnce(ctx context.Context, inputs []*io.SectionReader, out *os.File) ([]*io.SectionReader, error) {
	var next []*io.SectionReader
	off := int64(0)
	for len(inputs) > 0 {
		n := min(len(inputs), fanIn)
		var readers []io.Reader
		for _, r := range inputs[:n] {
			readers = append(readers, r)
		}
		w := io.NewOffsetWriter(out, off)
		c, err := ltx.NewCompactor(w, readers)
		if err != nil {
			return nil, err
		}
		if err := c.Compact(ctx); err != nil {
			return nil, err
		}
		size, err := w.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		next = append(next, io.NewSectionReader(out, off, size))
		off += size
		inputs = inputs[n:]
	}
	return next, nil
}

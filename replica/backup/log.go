package backup

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/superfly/ltx"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// objectBytes is the size at which pending transactions become an object.
const objectBytes = 8 << 20

// pass stores the new transactions of all databases.
func (t *term) pass(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(uploads)
	for _, db := range t.o.Node.All() {
		g.Go(func() error {
			if err := t.advance(ctx, db); err != nil {
				return fmt.Errorf("database %s: %w", db.Name(), err)
			}
			return nil
		})
	}
	return g.Wait()
}

// state returns a copy of the state of a database.
func (t *term) state(db string) state {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.states[db]; s != nil {
		return *s
	}
	return state{}
}

// change updates the state of a database.
func (t *term) change(db string, f func(*state)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.states[db]
	if s == nil {
		s = &state{}
		t.states[db] = s
	}
	f(s)
}

// advance stores the transactions of a database that the store lacks.
func (t *term) advance(ctx context.Context, db *database.DB) error {
	if diverged, _ := db.Diverged(); diverged {
		return nil // the database is reset first
	}
	s := t.state(db.Name())
	if !s.known {
		if err := t.resume(ctx, db); err != nil {
			return err
		}
		s = t.state(db.Name())
	}
	for !s.broken && db.Pos() != s.cursor {
		o, err := gather(db.Log(), s.cursor)
		if errors.Is(err, txlog.ErrGone) {
			t.o.Log.Info("a snapshot is needed for the backup", "db", db.Name())
			t.change(db.Name(), func(s *state) { s.broken = true })
			t.wakeMaintenance()
			return nil
		}
		if err != nil {
			return err
		}
		if o.to == s.cursor {
			return nil // the log will have more in a moment
		}
		if err := t.put(ctx, db.Name(), o.item, o.data); err != nil {
			return err
		}
		t.counts.stored(o.n)
		s.cursor = o.to
		t.change(db.Name(), func(c *state) { c.cursor = o.to })
	}
	return nil
}

func (t *term) wakeMaintenance() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// put stores an object of a database.
func (t *term) put(ctx context.Context, db string, i item, data []byte) error {
	i.epoch, i.begun = t.epoch, t.state(db).begun
	if err := t.o.Store.Put(ctx, i.name(db), bytes.NewReader(data), int64(len(data))); err != nil {
		return err
	}
	t.counts.sent(int64(len(data)))
	return nil
}

// resume finds the newest position in the store that the log continues. A snapshot may be stored before the
// transactions that lead to it, so its position counts only if the log continues no other, or no restore needs them.
func (t *term) resume(ctx context.Context, db *database.DB) error {
	c, err := t.catalog(ctx, db.Name())
	if err != nil {
		return err
	}
	now := t.o.Now()
	s := state{known: true, cursor: empty, broken: db.Log().Base() != empty, snapshot: now, begun: now.UnixMilli()}
	for _, i := range c.items {
		s.begun = max(s.begun, i.begun+1)
		if first := at(i.first); first.Before(s.snapshot) {
			s.snapshot = first
		}
	}
	if i := slices.IndexFunc(c.items, func(i item) bool { return i.form == snapshot }); i >= 0 {
		s.snapshot = at(c.items[i].last)
	}
	slices.SortStableFunc(c.items, func(i, j item) int { return cmp.Compare(i.whole(), j.whole()) })
	for _, i := range c.items {
		if i.form == snapshot && !s.broken && at(i.last).After(now.Add(-t.o.Retention)) {
			break // none of the log's transactions is stored, and it has all since the empty database
		}
		r, err := db.Log().After(i.to)
		if errors.Is(err, txlog.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		if err := r.Close(); err != nil {
			return err
		}
		s.cursor, s.broken = i.to, false
		break
	}
	t.change(db.Name(), func(c *state) { *c = s })
	if s.broken {
		t.wakeMaintenance()
	}
	return nil
}

// gathered is an object under construction.
type gathered struct {
	item

	data []byte
	n    int // transactions
}

// gather reads transactions after a position from a log, up to the size of an object.
func gather(log *txlog.Log, after ltx.Pos) (gathered, error) {
	o := gathered{item: item{form: single, from: after, to: after}}
	r, err := log.After(after)
	if err != nil {
		return o, err
	}
	defer r.Close()
	for len(o.data) < objectBytes {
		b, err := r.Next()
		if errors.Is(err, io.EOF) {
			return o, nil
		}
		if err != nil {
			return o, err
		}
		meta, err := txlog.DecodeMeta(b)
		if err != nil {
			return o, err
		}
		o.data = appendRecord(o.data, b)
		o.to = meta.Pos()
		if o.n == 0 {
			o.first = meta.Timestamp
		}
		o.last = meta.Timestamp
		o.n++
	}
	return o, nil
}

// appendRecord appends an LTX file with its length. Objects of such records can be joined.
func appendRecord(b, record []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(record)))
	return append(b, record...)
}

// readRecord returns the next record, and io.EOF after the last.
func readRecord(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > txlog.MaxRecord {
		return nil, fmt.Errorf("%w: record of %d bytes", ltx.ErrInvalidFile, n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return b, nil
}

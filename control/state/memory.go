package state

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
)

// Memory is a Store without durability, for tests and simulations. It keeps
// every version of every key until Compact.
type Memory struct {
	mu        sync.Mutex // guards all below
	closed    bool
	revision  Revision
	compacted Revision // older revisions can be neither read nor watched
	keys      map[string][]version
	history   []Batch       // one per revision above compacted, oldest first
	changed   chan struct{} // closed and replaced by every write, and closed by Close
	leases    map[LeaseID]*memoryLease
	lastLease LeaseID
}

// version is the value of a key from a revision on.
type version struct {
	revision Revision
	value    []byte
	deleted  bool
	lease    LeaseID
}

// NewMemory returns an empty Store.
func NewMemory() *Memory {
	return &Memory{revision: 1, keys: map[string][]version{}, changed: make(chan struct{}), leases: map[LeaseID]*memoryLease{}}
}

// Close ends every Watch; all later calls return ErrClosed.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		close(m.changed)
		for _, l := range m.leases {
			l.timer.Stop()
		}
	}
	return nil
}

// current implements current: several Mirrors may have one Memory.
func (m *Memory) current(ctx context.Context) (Revision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision, m.usable(ctx)
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, key string) (Item, error) {
	if err := validKey(key); err != nil {
		return Item{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return Item{}, err
	}
	item, ok := m.at(key, m.revision)
	if !ok {
		return Item{}, ErrNotFound
	}
	return item, nil
}

// List implements Store.
func (m *Memory) List(ctx context.Context, prefix string, o ListOptions) (Page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return Page{}, err
	}
	revision := m.revision
	switch {
	case o.Revision > m.revision:
		return Page{}, ErrFutureRevision
	case o.Revision > 0 && o.Revision < m.compacted:
		return Page{}, ErrCompacted
	case o.Revision > 0:
		revision = o.Revision
	}
	page := Page{Revision: revision}
	for key := range m.keys {
		if item, ok := m.at(key, revision); ok && strings.HasPrefix(key, prefix) && key > o.After {
			if o.KeysOnly {
				item.Value = nil
			}
			page.Items = append(page.Items, item)
		}
	}
	slices.SortFunc(page.Items, func(a, b Item) int { return strings.Compare(a.Key, b.Key) })
	if limit := o.limit(); len(page.Items) > limit {
		page.Items, page.More = page.Items[:limit:limit], true
	}
	return page, nil
}

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context, prefix string, from Revision) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if from < 1 {
			yield(Batch{}, fmt.Errorf("%w: watch from revision %d", ErrInvalid, from))
			return
		}
		for next := from; ctx.Err() == nil; {
			batches, now, changed, err := m.since(prefix, next)
			if err != nil {
				if ctx.Err() == nil {
					yield(Batch{}, err)
				}
				return
			}
			for _, b := range batches {
				if ctx.Err() != nil || !yield(b, nil) {
					return
				}
			}
			next = max(next, now+1)
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

// since returns the changes from a revision on, the revision up to which they are complete, and a
// channel that is closed when there are more.
func (m *Memory) since(prefix string, from Revision) ([]Batch, Revision, <-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, 0, nil, ErrClosed
	}
	if from <= m.compacted {
		return nil, 0, nil, ErrCompacted
	}
	first, _ := slices.BinarySearchFunc(m.history, from, func(b Batch, r Revision) int { return cmp.Compare(b.Revision, r) })
	var found []Batch
	for _, b := range m.history[first:] {
		var changes []Change
		for _, c := range b.Changes {
			if strings.HasPrefix(c.Key, prefix) {
				c.Value = bytes.Clone(c.Value)
				changes = append(changes, c)
			}
		}
		if len(changes) > 0 {
			found = append(found, Batch{Changes: changes, Revision: b.Revision})
		}
	}
	return found, m.revision, m.changed, nil
}

// Txn implements Store.
func (m *Memory) Txn(ctx context.Context, txn Txn) (Revision, error) {
	if err := txn.validate(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return 0, err
	}
	for _, c := range txn.If {
		if item, _ := m.at(c.Key, m.revision); item.Revision != c.Revision {
			return m.revision, ErrConflict
		}
	}
	for _, op := range txn.Then {
		if op.Lease != 0 && m.leases[op.Lease] == nil {
			return 0, ErrLeaseEnded
		}
	}
	m.write(txn.Then)
	return m.revision, nil
}

// write applies writes as one revision, if they change anything. m.mu is held.
func (m *Memory) write(ops []Op) {
	next := m.revision + 1
	batch := Batch{Revision: next}
	for _, op := range ops {
		if _, exists := m.at(op.Key, m.revision); op.Delete && !exists {
			continue
		}
		v := version{revision: next, value: bytes.Clone(op.Value), deleted: op.Delete, lease: op.Lease}
		if op.Delete {
			v.value = nil
		}
		m.keys[op.Key] = append(m.keys[op.Key], v)
		batch.Changes = append(batch.Changes, Change{
			Item:    Item{Key: op.Key, Value: bytes.Clone(v.value), Revision: next},
			Deleted: op.Delete,
		})
	}
	if len(batch.Changes) == 0 {
		return
	}
	m.revision = next
	m.history = append(m.history, batch)
	close(m.changed)
	m.changed = make(chan struct{})
}

// Compact forgets what is needed only to read or watch revisions up to revision.
func (m *Memory) Compact(ctx context.Context, revision Revision) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return err
	}
	switch {
	case revision > m.revision:
		return ErrFutureRevision
	case revision <= m.compacted:
		return ErrCompacted
	}
	m.compacted = revision
	m.history = slices.DeleteFunc(m.history, func(b Batch) bool { return b.Revision <= revision })
	for key, versions := range m.keys {
		keep := 0
		for i, v := range versions {
			if v.revision <= revision {
				keep = i
			}
		}
		versions = slices.Clone(versions[keep:])
		if versions[0].deleted && versions[0].revision <= revision {
			versions = versions[1:]
		}
		if m.keys[key] = versions; len(versions) == 0 {
			delete(m.keys, key)
		}
	}
	return nil
}

func (m *Memory) usable(ctx context.Context) error {
	if m.closed {
		return ErrClosed
	}
	return ctx.Err()
}

// at returns the item as of a revision.
func (m *Memory) at(key string, revision Revision) (Item, bool) {
	for _, v := range slices.Backward(m.keys[key]) {
		if v.revision <= revision {
			if v.deleted {
				return Item{}, false
			}
			return Item{Key: key, Value: bytes.Clone(v.value), Revision: v.revision}, true
		}
	}
	return Item{}, false
}

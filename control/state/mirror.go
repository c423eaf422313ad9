package state

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// MirrorConfig says what a Mirror keeps.
type MirrorConfig struct {
	Store Store // that is mirrored; closed by its owner, after the Mirror
	// Except are prefixes of what is not kept in memory, because it is large and
	// hardly read. Reads of it ask the Store.
	Except []string
	Log    *slog.Logger // breaks of the watch
}

const (
	mirrorRoot     = "/"                   // keys outside of it are not kept
	mirrorDegree   = 32                    // of the tree
	mirrorPatience = 10 * time.Second      // bounds the time until the watch delivers our own write
	progressAfter  = 10 * time.Millisecond // after so long, a waiter asks an etcd with other users for its progress
)

// Mirror is a Store whose reads are answered from memory, which follows a Store
// by its watch.
//
// A Get or List sees a whole state that the Store had, and never an older one than
// any read of the same Mirror before it. It sees every write that was made through
// the same Mirror and has returned; every change that a Watch of the same Mirror has
// yielded; and after a Txn that ended with ErrConflict, the write that it conflicted
// with. So with one Mirror per Store, as with embedded etcd, reads are linearizable.
// Writes of other processes are seen as soon as the watch delivers them, usually
// within milliseconds; but a Get of a missing key asks the Store first for its revision, so that
// what another process has made, and acknowledged, is never reported missing. While the Store cannot be
// reached, reads answer with what was last known. Transactions go to the Store, compare with what it
// really holds, and stay linearizable throughout: a caller that decides by a read compares its revision,
// and on ErrConflict reads again. Excepted keys are read from the Store itself, and may be ahead of the
// mirror by writes that have not returned yet. An etcd cluster that is restored from a backup needs its
// daemons restarted.
//
// Until Open has returned, every call is the Store's.
type Mirror struct {
	store  Store
	except []string
	log    *slog.Logger
	now    atomic.Pointer[image] // nil before Open
	closed atomic.Bool
	stream string // of its watch alone: see apart
	began  time.Time
	asked  atomic.Int64       // when progress was asked for last, in nanoseconds since began
	stop   context.CancelFunc // ends follow; nil before Open
	done   chan struct{}      // closed when follow has ended

	mu      sync.Mutex // guards waiters; held while now is replaced
	waiters []waiter

	misses misses
}

// image is an immutable state of the Store.
type image struct {
	items    *btree.BTreeG[Item]
	revision Revision
}

// waiter waits for a revision.
type waiter struct {
	revision Revision
	reached  chan struct{} // closed when the mirror has it
}

// progresser is a Store that can be asked to report its progress to the watches of contexts that are apart.
// Otherwise they do not learn of writes outside of their prefix.
type progresser interface {
	progress(ctx context.Context) error
}

// parsed holds the parsed value of an item.
type parsed struct{ value atomic.Pointer[any] }

// Parse returns what parse makes of the value of an item. If the item is one that a
// Mirror keeps, it is parsed once, and the result is shared: it must not be changed.
func Parse[T any](item Item, parse func([]byte) (T, error)) (T, error) {
	if item.parsed == nil {
		return parse(item.Value)
	}
	if known := item.parsed.value.Load(); known != nil {
		if v, ok := (*known).(T); ok {
			return v, nil
		}
	}
	v, err := parse(item.Value)
	if err == nil {
		known := any(v)
		item.parsed.value.Store(&known)
	}
	return v, err
}

var _ Store = (*Mirror)(nil)

// NewMirror returns a Mirror that has read nothing yet.
func NewMirror(cfg MirrorConfig) *Mirror {
	return &Mirror{store: cfg.Store, except: cfg.Except, log: cfg.Log, stream: rand.Text(), began: time.Now(), done: make(chan struct{})}
}

// Open reads the Store and follows it until Close.
func (m *Mirror) Open(ctx context.Context) error {
	first, err := m.load(ctx)
	if err != nil {
		return fmt.Errorf("state: fill the mirror: %w", err)
	}
	m.show(first)
	m.misses.open(ctx, m)
	ctx, m.stop = finish.Lifetime(ctx)
	go m.follow(ctx)
	return nil
}

// Close stops following the Store; all later calls return ErrClosed. It may be
// repeated.
func (m *Mirror) Close() error {
	if !m.closed.Swap(true) && m.stop != nil {
		m.stop()
	}
	if m.stop != nil {
		<-m.done
		m.misses.close()
	}
	return nil
}

// keeps reports whether a key is in memory.
func (m *Mirror) keeps(key string) bool {
	return strings.HasPrefix(key, mirrorRoot) && !slices.ContainsFunc(m.except, func(p string) bool { return strings.HasPrefix(key, p) })
}

// keepsAll reports whether everything below a prefix is in memory.
func (m *Mirror) keepsAll(prefix string) bool {
	return m.keeps(prefix) && !slices.ContainsFunc(m.except, func(p string) bool { return strings.HasPrefix(p, prefix) })
}

// load reads everything that is kept, as of one revision.
func (m *Mirror) load(ctx context.Context) (*image, error) {
	items := btree.NewG(mirrorDegree, func(a, b Item) bool { return a.Key < b.Key })
	var o ListOptions
	for {
		page, err := m.store.List(ctx, mirrorRoot, o)
		if err != nil {
			return nil, err
		}
		o.Revision = page.Revision
		for _, item := range page.Items {
			o.After = item.Key
			if i := slices.IndexFunc(m.except, func(p string) bool { return strings.HasPrefix(item.Key, p) }); i >= 0 {
				o.After = m.except[i] + "\xff" // sorts after all of them, because keys are text
				continue
			}
			item.parsed = new(parsed)
			items.ReplaceOrInsert(item)
		}
		if !page.More {
			return &image{items: items, revision: page.Revision}, nil
		}
	}
}

// show makes an image visible to reads, and wakes its waiters.
func (m *Mirror) show(next *image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Store(next)
	m.waiters = slices.DeleteFunc(m.waiters, func(w waiter) bool {
		if w.revision > next.revision {
			return false
		}
		close(w.reached)
		return true
	})
}

// follow is the only goroutine of a Mirror, and alone shows images.
func (m *Mirror) follow(ctx context.Context) {
	defer close(m.done)
	ctx, end := context.WithCancel(ctx)
	defer end()
	_ = pause.Between(ctx, pause.Feeds, func(ctx context.Context) error {
		err := m.watch(ctx)
		if errors.Is(err, ErrCompacted) {
			var fresh *image
			if fresh, err = m.load(ctx); err == nil {
				m.show(fresh)
			}
		}
		if errors.Is(err, ErrClosed) {
			end()
		}
		return err
	}, func(err error) {
		m.log.Warn("the cluster state cannot be followed, what was last known is used", "error", err)
	})
}

func (m *Mirror) watch(ctx context.Context) error {
	for batch, err := range m.store.Watch(apart(ctx, m.stream), mirrorRoot, m.now.Load().revision+1) {
		if err != nil {
			return err
		}
		m.apply(batch)
	}
	return ctx.Err()
}

func (m *Mirror) apply(batch Batch) {
	last := m.now.Load()
	if batch.Revision <= last.revision {
		return // it only reports the progress of the watch
	}
	next := &image{items: last.items, revision: batch.Revision}
	for _, c := range batch.Changes {
		if !m.keeps(c.Key) {
			continue
		}
		if next.items == last.items {
			next.items = last.items.Clone() // shares unchanged nodes
		}
		if c.Deleted {
			next.items.Delete(c.Item)
		} else {
			c.parsed = new(parsed)
			next.items.ReplaceOrInsert(c.Item)
		}
	}
	m.show(next)
}

// reach returns when reads see revision.
func (m *Mirror) reach(ctx context.Context, revision Revision) error {
	m.mu.Lock()
	if m.now.Load().revision >= revision {
		m.mu.Unlock()
		return nil
	}
	w := waiter{revision: revision, reached: make(chan struct{})}
	m.waiters = append(m.waiters, w)
	m.mu.Unlock()
	defer m.forget(w)

	patience := time.NewTimer(mirrorPatience)
	defer patience.Stop()
	asking := time.NewTicker(progressAfter)
	defer asking.Stop()
	for {
		select {
		case <-w.reached:
			return nil
		case <-asking.C:
			m.askProgress(ctx)
		case <-patience.C:
			return fmt.Errorf("state: revision %d was not seen within %s", revision, mirrorPatience)
		case <-m.done:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("state: wait for revision %d: %w", revision, ctx.Err())
		}
	}
}

// askProgress has the watch report its progress, once in progressAfter for all waiters. If it cannot be asked, a
// waiter asks again.
func (m *Mirror) askProgress(ctx context.Context) {
	p, ok := m.store.(progresser)
	now, last := int64(time.Since(m.began)), m.asked.Load()
	if !ok || now-last < int64(progressAfter) || !m.asked.CompareAndSwap(last, now) {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, progressAfter)
	defer cancel()
	if err := p.progress(apart(bounded, m.stream)); err != nil {
		m.log.Debug("progress of the cluster state was not asked for", "error", err)
	}
}

// forget removes a waiter that has given up.
func (m *Mirror) forget(w waiter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiters = slices.DeleteFunc(m.waiters, func(x waiter) bool { return x == w })
}

// usable returns the image that reads see, or nil before Open.
func (m *Mirror) usable(ctx context.Context) (*image, error) {
	if m.closed.Load() {
		return nil, ErrClosed
	}
	return m.now.Load(), ctx.Err()
}

// Get implements Store.
func (m *Mirror) Get(ctx context.Context, key string) (Item, error) {
	if err := validKey(key); err != nil {
		return Item{}, err
	}
	now, err := m.usable(ctx)
	if err != nil {
		return Item{}, err
	}
	if now == nil || !m.keeps(key) {
		return m.store.Get(ctx, key)
	}
	item, ok := now.items.Get(Item{Key: key})
	if !ok && m.misses.catchUp(ctx) {
		item, ok = m.now.Load().items.Get(Item{Key: key})
	}
	if !ok {
		return Item{}, cmp.Or(ctx.Err(), ErrNotFound)
	}
	return item, nil
}

// List implements Store. The state of another revision than the newest is the
// Store's to tell.
func (m *Mirror) List(ctx context.Context, prefix string, o ListOptions) (Page, error) {
	now, err := m.usable(ctx)
	if err != nil {
		return Page{}, err
	}
	if now == nil || !m.keepsAll(prefix) || o.Revision > 0 && o.Revision != now.revision {
		return m.store.List(ctx, prefix, o)
	}
	page := Page{Revision: now.revision}
	limit := o.limit()
	now.each(prefix, o, func(item Item) bool {
		if len(page.Items) == limit {
			page.More = true
			return false
		}
		page.Items = append(page.Items, item)
		return true
	})
	return page, nil
}

// all is All without pages.
func (m *Mirror) all(ctx context.Context, prefix string, keysOnly bool) ([]Item, Revision, bool, error) {
	now, err := m.usable(ctx)
	if err != nil || now == nil || !m.keepsAll(prefix) {
		return nil, 0, err != nil, err
	}
	var items []Item
	now.each(prefix, ListOptions{KeysOnly: keysOnly}, func(item Item) bool {
		items = append(items, item)
		return true
	})
	return items, now.revision, true, nil
}

// each yields the items whose keys start with prefix, after and with what the options say.
func (i *image) each(prefix string, o ListOptions, yield func(Item) bool) {
	i.items.AscendGreaterOrEqual(Item{Key: max(prefix, o.After)}, func(item Item) bool {
		if !strings.HasPrefix(item.Key, prefix) {
			return item.Key < prefix
		}
		if o.KeysOnly {
			item.Value = nil
		}
		return item.Key == o.After || yield(item)
	})
}

// Watch implements Store. It yields changes once reads see them.
func (m *Mirror) Watch(ctx context.Context, prefix string, from Revision) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if m.closed.Load() {
			yield(Batch{}, ErrClosed)
			return
		}
		for batch, err := range m.store.Watch(ctx, prefix, from) {
			if err == nil && m.now.Load() != nil && slices.ContainsFunc(batch.Changes, func(c Change) bool { return m.keeps(c.Key) }) {
				err = m.reach(ctx, batch.Revision)
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				yield(Batch{}, err)
				return
			}
			if !yield(batch, nil) {
				return
			}
		}
	}
}

// Txn implements Store. It returns when reads see its writes or, on ErrConflict,
// what it conflicted with.
func (m *Mirror) Txn(ctx context.Context, txn Txn) (Revision, error) {
	if m.closed.Load() {
		return 0, ErrClosed
	}
	revision, err := m.store.Txn(ctx, txn)
	if m.now.Load() == nil || err != nil && !errors.Is(err, ErrConflict) {
		return revision, err
	}
	kept := slices.ContainsFunc(txn.Then, func(o Op) bool { return m.keeps(o.Key) }) ||
		err != nil && slices.ContainsFunc(txn.If, func(c Compare) bool { return m.keeps(c.Key) })
	if kept {
		if late := m.reach(ctx, revision); late != nil {
			return 0, late
		}
	}
	return revision, err
}

// Grant implements Store.
func (m *Mirror) Grant(ctx context.Context, ttl time.Duration) (Lease, error) {
	if m.closed.Load() {
		return Lease{}, ErrClosed
	}
	return m.store.Grant(ctx, ttl)
}

// Renew implements Store.
func (m *Mirror) Renew(ctx context.Context, id LeaseID) (time.Duration, error) {
	if m.closed.Load() {
		return 0, ErrClosed
	}
	return m.store.Renew(ctx, id)
}

// Revoke implements Store. It returns when reads see that the keys are gone.
func (m *Mirror) Revoke(ctx context.Context, id LeaseID) (Revision, error) {
	if m.closed.Load() {
		return 0, ErrClosed
	}
	revision, err := m.store.Revoke(ctx, id)
	if err == nil && m.now.Load() != nil {
		err = m.reach(ctx, revision)
	}
	return revision, err
}

package hostnames

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/keyset"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	// DefaultLockTTL is how long the lock of an edge that has died stays.
	DefaultLockTTL = 15 * time.Second
	renewals       = 3 // of a lock within its time
	releaseWithin  = 2 * time.Second
	watchedPrefix  = "/acme" // of state.ACMEPrefix and state.ACMELocksPrefix
	listedAtOnce   = 500
)

// Orders is what edges share about an ACME server: a hangar.CertificateStore over the state. Values are
// encrypted. Notes are not: they are what the ACME server is shown. See ADR 57.
type Orders struct {
	store state.Store
	vault *vault.Vault
	ttl   time.Duration
	log   *slog.Logger
}

var _ hangar.CertificateStore = (*Orders)(nil)

// NewOrders returns the Orders of a state, and of the Vault of the same. ttl is how long the lock of an edge
// that has died stays.
func NewOrders(store state.Store, v *vault.Vault, ttl time.Duration, log *slog.Logger) *Orders {
	return &Orders{store: store, vault: v, ttl: ttl, log: log}
}

func sharedError(key string, err error) error {
	switch {
	case errors.Is(err, state.ErrNotFound):
		return hangar.Errorf(hangar.CodeNotFound, "", "nothing is shared as %s", key)
	case errors.Is(err, state.ErrConflict), errors.Is(err, state.ErrLeaseEnded):
		return &hangar.Error{Code: hangar.CodeConflict, Message: "The lock of " + key + " is lost", Err: err}
	}
	return state.HangarError(err)
}

// LoadShared implements hangar.CertificateStore.
func (o *Orders) LoadShared(ctx context.Context, key string) (value json.RawMessage, err error) {
	err = o.vault.Get(ctx, state.ACMEPrefix+key, &value)
	return value, sharedError(key, err)
}

// SharedNote implements hangar.CertificateStore.
func (o *Orders) SharedNote(ctx context.Context, key string) (json.RawMessage, error) {
	item, err := o.store.Get(ctx, state.ACMELocksPrefix+key)
	return item.Value, sharedError(key, err)
}

// WatchShared implements hangar.CertificateStore.
func (o *Orders) WatchShared(ctx context.Context) iter.Seq2[hangar.SharedBatch, error] {
	return func(yield func(hangar.SharedBatch, error) bool) {
		list := state.ListOptions{Limit: listedAtOnce}
		for more := true; more; {
			page, err := o.store.List(ctx, watchedPrefix, list)
			if err != nil {
				yield(hangar.SharedBatch{}, state.HangarError(err))
				return
			}
			changes := make([]state.Change, 0, len(page.Items))
			for _, item := range page.Items {
				changes = append(changes, state.Change{Item: item})
				list.After = item.Key
			}
			list.Revision, more = page.Revision, page.More
			if !yield(hangar.SharedBatch{Values: o.opened(ctx, changes), Listed: !more}, nil) {
				return
			}
		}
		for batch, err := range o.store.Watch(ctx, watchedPrefix, list.Revision+1) {
			if err != nil {
				yield(hangar.SharedBatch{}, state.HangarError(err))
				return
			}
			if values := o.opened(ctx, batch.Changes); len(values) > 0 && !yield(hangar.SharedBatch{Values: values, Listed: true}, nil) {
				return
			}
		}
	}
}

// opened decrypts what has changed. What cannot be read is left out.
func (o *Orders) opened(ctx context.Context, changes []state.Change) []hangar.SharedValue {
	values := make([]hangar.SharedValue, 0, len(changes))
	for _, c := range changes {
		v := hangar.SharedValue{Value: c.Value}
		v.Key, v.Note = strings.CutPrefix(c.Key, state.ACMELocksPrefix)
		if !v.Note {
			var ours bool
			if v.Key, ours = strings.CutPrefix(c.Key, state.ACMEPrefix); !ours {
				continue
			}
		}
		switch {
		case c.Deleted:
			v.Value = nil
		case !v.Note:
			var err error
			if v.Value, err = vault.Decode[json.RawMessage](o.vault, c.Item); err != nil {
				o.log.ErrorContext(ctx, "what edges share cannot be read", keyKey, c.Key, keyError, err)
				continue
			}
		}
		values = append(values, v)
	}
	return values
}

// LockShared implements hangar.CertificateStore by a key with a lease.
func (o *Orders) LockShared(ctx context.Context, key string) (hangar.CertificateLock, error) {
	l := &lock{o: o, name: key, key: state.ACMELocksPrefix + key}
	for {
		item, err := o.store.Get(ctx, l.key)
		switch {
		case errors.Is(err, state.ErrNotFound):
			if err = l.take(ctx); err == nil {
				return l, nil
			}
		case err == nil:
			err = o.deleted(ctx, item)
		}
		if err != nil && !errors.Is(err, state.ErrConflict) && !errors.Is(err, state.ErrCompacted) {
			return nil, sharedError(key, err)
		}
	}
}

// deleted returns when an item is.
func (o *Orders) deleted(ctx context.Context, item state.Item) error {
	for batch, err := range o.store.Watch(ctx, item.Key, item.Revision+1) {
		if err != nil {
			return err
		}
		for _, c := range batch.Changes {
			if c.Key == item.Key && c.Deleted {
				return nil
			}
		}
	}
	return ctx.Err()
}

// lock is one that this process has.
type lock struct {
	o      *Orders
	name   string // as the edge calls it
	key    string
	lease  state.Lease
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed when the lock is not renewed any more

	mu   sync.Mutex // held while the note is written
	item state.Item // of the lock, guarded by mu
}

// take takes the lock, or returns state.ErrConflict.
func (l *lock) take(ctx context.Context) (err error) {
	granted := time.Now()
	if l.lease, err = l.o.store.Grant(ctx, l.o.ttl); err != nil {
		return err
	}
	put := state.Put(l.key, []byte("{}"))
	put.Lease = l.lease.ID
	revision, err := l.o.store.Txn(ctx, state.Txn{If: []state.Compare{state.Absent(l.key)}, Then: []state.Op{put}})
	if err != nil {
		l.revoke(ctx)
		return err
	}
	l.item = state.Item{Key: l.key, Revision: revision}
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.ended = make(chan struct{})
	go l.keep(granted.Add(l.lease.TTL))
	return nil
}

// keep renews the lock until it is released or lost.
func (l *lock) keep(until time.Time) {
	defer close(l.ended)
	defer l.cancel()
	for pause.For(l.ctx, l.lease.TTL/renewals) == nil {
		ctx, cancel := context.WithDeadline(l.ctx, until)
		asked := time.Now()
		left, err := l.o.store.Renew(ctx, l.lease.ID)
		cancel()
		if err == nil {
			until = asked.Add(left)
		} else if errors.Is(err, state.ErrLeaseEnded) || !time.Now().Before(until) {
			return
		}
	}
}

func (l *lock) revoke(ctx context.Context) {
	_ = finish.Do(ctx, releaseWithin, func(ctx finish.Context) error {
		_, err := l.o.store.Revoke(ctx, l.lease.ID)
		return err // without it, the lock ends by itself
	})
}

// Context implements hangar.CertificateLock.
func (l *lock) Context() context.Context { return l.ctx }

// Release implements hangar.CertificateLock.
func (l *lock) Release() {
	l.cancel()
	<-l.ended
	l.revoke(l.ctx)
}

// StoreShared implements hangar.CertificateLock.
func (l *lock) StoreShared(ctx context.Context, key string, value json.RawMessage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		err := l.o.vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
			op := state.Delete(state.ACMEPrefix + key)
			var err error
			if value != nil {
				op, err = vault.Sealed(keys, op.Key, value)
			}
			return state.Txn{If: []state.Compare{state.Unchanged(l.item)}, Then: []state.Op{op}}, err
		})
		if !errors.Is(err, state.ErrConflict) {
			return sharedError(l.name, err)
		}
		now, getErr := l.o.store.Get(ctx, l.key) // if it is ours still, the encryption key was rotated
		if getErr != nil || now.Revision != l.item.Revision {
			return sharedError(l.name, err)
		}
	}
}

// Note implements hangar.CertificateLock.
func (l *lock) Note(ctx context.Context, note json.RawMessage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	put := state.Put(l.key, note)
	put.Lease = l.lease.ID
	revision, err := l.o.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(l.item)}, Then: []state.Op{put}})
	if err == nil {
		l.item.Revision = revision
	}
	return sharedError(l.name, err)
}

// Package state keeps what all hosts of a hangar cluster must agree on: small
// values under sorted keys, changed by compare-and-swap and followed by watch.
//
// Promises. Every write is durable before it is acknowledged and survives the
// death of the process. Reads, writes and transactions are linearizable. Every
// write gets a Revision that is greater than all before; a List is of one
// Revision, and a Watch that starts at the next one misses nothing and repeats
// nothing. A Watch yields changes in order, and those of one transaction together.
//
// Concurrency. A Store is safe for concurrent use. A Watch runs on its caller's
// goroutine; a slow watcher delays no other.
//
// It is not a place for blobs, logs or metrics: values are bounded by MaxTxnBytes and
// the whole store by a few gigabytes. It offers no locks. For exclusion, compare
// revisions, so that a writer that was declared dead and comes back changes nothing.
//
// OpenEtcd keeps the state in an etcd member inside this process or in an
// external etcd cluster; NewMemory is the same without durability. NewMirror
// answers reads of another Store from memory, also while that is away, at the price
// of seeing what other processes write a moment later; see Mirror.
package state

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Revision numbers the states of a Store. It grows with every write; the first
// state, which is empty, has revision 1.
type Revision int64

// Limits of one transaction, the same for every Store.
const (
	MaxTxnOps   = 128       // operations, and compares
	MaxTxnBytes = 1_400_000 // sum of the keys and values that are put
	MaxPage     = 10_000    // items of a List, also when none or a greater limit is asked for; each costs etcd a look at all that follow
	maxKeyBytes = 4096      // of a key
)

// The errors of a Store. Any other error means that the store cannot be reached
// or has failed; a Txn that ended so may or may not have happened.
var (
	ErrNotFound       = errors.New("state: key not found")
	ErrConflict       = errors.New("state: a compare of the transaction failed")
	ErrCompacted      = errors.New("state: revision was compacted")
	ErrFutureRevision = errors.New("state: revision is not reached yet")
	ErrClosed         = errors.New("state: store is closed")
	ErrInvalid        = errors.New("state: invalid request")
	ErrLeaseEnded     = errors.New("state: lease has ended")
)

// Item is a key with its value.
type Item struct {
	Key      string
	Value    []byte   // must not be changed: a Mirror shares it
	Revision Revision // of the write that gave the key this value

	parsed *parsed // nil but for what a Mirror keeps
}

// ListOptions selects a part of a List. The zero value is the first page at the
// newest revision.
type ListOptions struct {
	After    string   // only keys that sort after it
	Limit    int      // at most so many items; 0 or more than MaxPage: MaxPage
	Revision Revision // read the state as of then; 0: now
	KeysOnly bool     // leave the values out
}

// Page is a piece of a List.
type Page struct {
	Items    []Item
	Revision Revision // of the state that was read
	More     bool     // there are items after the last one
}

// Change is a key that was written or deleted.
type Change struct {
	Item         // of a deleted key without value
	Deleted bool // the key is gone
}

// Batch holds the changes of one or more whole revisions, oldest first. One
// without changes says only how far the watch is.
type Batch struct {
	Changes  []Change
	Revision Revision // of the last change; a Watch resumes at Revision+1
}

// Compare is a condition of a transaction; see Unchanged and Absent.
type Compare struct {
	Key      string
	Revision Revision // the key's; 0: the key does not exist
}

// Unchanged holds while the key has the value that was read as item.
func Unchanged(item Item) Compare { return Compare{Key: item.Key, Revision: item.Revision} }

// Absent holds while the key does not exist.
func Absent(key string) Compare { return Compare{Key: key} }

// Op is a write of a transaction; see Put and Delete.
type Op struct {
	Key    string
	Value  []byte
	Delete bool
	Lease  LeaseID // with which the key goes; 0: it stays
}

// LeaseID names a lease: see Store.Grant.
type LeaseID int64

// Lease is a time for which keys stay, unless it is renewed.
type Lease struct {
	ID  LeaseID
	TTL time.Duration // that was granted
}

// MinLease is the shortest lease; shorter ones are made so long.
const MinLease = time.Second

// Put sets the key to the value.
func Put(key string, value []byte) Op { return Op{Key: key, Value: value} }

// Delete removes the key; to delete what does not exist is no error.
func Delete(key string) Op { return Op{Key: key, Delete: true} }

// Txn makes every write of Then, or none when a compare of If fails.
type Txn struct {
	If   []Compare
	Then []Op // a key occurs at most once
}

// Store is the state of a cluster.
type Store interface {
	// Get returns ErrNotFound for a key that does not exist.
	Get(ctx context.Context, key string) (Item, error)
	// List returns the items whose keys start with prefix, sorted by key. It returns
	// ErrCompacted and ErrFutureRevision for a revision that cannot be read.
	List(ctx context.Context, prefix string, o ListOptions) (Page, error)
	// Watch yields the changes of the keys that start with prefix, from revision
	// from (which must be 1 or more), as they happen. It ends without an error when
	// ctx ends, and after yielding one otherwise: ErrCompacted when from is too old
	// (List again), ErrClosed, or the failure of the store.
	Watch(ctx context.Context, prefix string, from Revision) iter.Seq2[Batch, error]
	// Txn returns the revision of the state that the writes brought about. It
	// returns ErrConflict, with the revision of the state that was compared, when a
	// compare failed, ErrLeaseEnded when the lease of a key has ended, and ErrInvalid for a
	// transaction that breaks a limit or names a key twice. One that ended with another error may have happened: read before
	// repeating.
	Txn(ctx context.Context, txn Txn) (Revision, error)
	// Grant returns a lease that lasts at least ttl, in whole seconds, from now on, and that long again after each
	// Renew. The keys that were put with it are deleted when it ends, in one revision. Time while the Store is down
	// does not count; a lease may last longer than was granted, and never ends earlier.
	Grant(ctx context.Context, ttl time.Duration) (Lease, error)
	// Renew returns the time for which the lease lasts from the call on, or ErrLeaseEnded.
	Renew(ctx context.Context, id LeaseID) (time.Duration, error)
	// Revoke ends a lease, and returns a revision in which its keys are gone. It returns ErrLeaseEnded for one that
	// has ended.
	Revoke(ctx context.Context, id LeaseID) (Revision, error)
}

// All reads every item whose key starts with prefix, page by page, as of one
// revision, which it returns. Values are left out if keysOnly is set.
func All(ctx context.Context, s Store, prefix string, keysOnly bool) ([]Item, Revision, error) {
	if m, ok := s.(*Mirror); ok {
		if items, revision, done, err := m.all(ctx, prefix, keysOnly); done {
			return items, revision, err
		}
	}
	var items []Item
	o := ListOptions{KeysOnly: keysOnly}
	for {
		page, err := s.List(ctx, prefix, o)
		if err != nil {
			return nil, 0, err
		}
		items = append(items, page.Items...)
		o.Revision = page.Revision
		if !page.More {
			return items, page.Revision, nil
		}
		o.After = page.Items[len(page.Items)-1].Key
	}
}

// Confirm returns ErrConflict if the Store itself has another value of one of items than was read: a Mirror may have read
// an older one. An item without a revision is one that was not found. It writes nothing.
func Confirm(ctx context.Context, s Store, items ...Item) error {
	txn := Txn{Then: []Op{Delete(nothing)}}
	for _, item := range items {
		txn.If = append(txn.If, Unchanged(item))
	}
	_, err := s.Txn(ctx, txn)
	return err
}

// nothing is a key that is never written, because a transaction has at least one operation.
const nothing = "/nothing"

// validate reports what is wrong with a transaction, so that every Store refuses
// the same ones.
func (t Txn) validate() error {
	if len(t.If) > MaxTxnOps || len(t.Then) > MaxTxnOps {
		return fmt.Errorf("%w: more than %d compares or operations", ErrInvalid, MaxTxnOps)
	}
	if len(t.Then) == 0 {
		return fmt.Errorf("%w: transaction without operations", ErrInvalid)
	}
	size := 0
	seen := make(map[string]struct{}, len(t.Then))
	for _, op := range t.Then {
		if err := validKey(op.Key); err != nil {
			return err
		}
		if _, twice := seen[op.Key]; twice {
			return fmt.Errorf("%w: key %q occurs twice", ErrInvalid, op.Key)
		}
		seen[op.Key] = struct{}{}
		size += len(op.Key) + len(op.Value)
	}
	if size > MaxTxnBytes {
		return fmt.Errorf("%w: %d bytes are more than %d", ErrInvalid, size, MaxTxnBytes)
	}
	for _, c := range t.If {
		if err := validKey(c.Key); err != nil {
			return err
		}
	}
	return nil
}

func validKey(key string) error {
	if key == "" || len(key) > maxKeyBytes {
		return fmt.Errorf("%w: key of %d bytes", ErrInvalid, len(key))
	}
	return nil
}

func (o ListOptions) limit() int {
	if o.Limit <= 0 || o.Limit > MaxPage {
		return MaxPage
	}
	return o.Limit
}

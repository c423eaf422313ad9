package hangar

import (
	"context"
	"encoding/json"
	"iter"
)

// CertificateStore is what the edges of a platform share about the certificates that an ACME server issues.
// Keys are paths that the edges choose, values are JSON. Every method answers CodeUnavailable while the
// cluster state cannot be reached.
type CertificateStore interface {
	// LoadShared answers CodeNotFound.
	LoadShared(ctx context.Context, key string) (json.RawMessage, error)
	// SharedNote returns the note of the lock of a key. It answers CodeNotFound while no edge has the lock.
	SharedNote(ctx context.Context, key string) (json.RawMessage, error)
	// LockShared waits until no other edge has the lock of a key. The lock of an edge that has died ends
	// some seconds later.
	LockShared(ctx context.Context, key string) (CertificateLock, error)
	// WatchShared yields every value and note, in several batches, and then every change, until ctx ends.
	// After an error the caller starts again.
	WatchShared(ctx context.Context) iter.Seq2[SharedBatch, error]
}

// CertificateLock is the lock of a key of a CertificateStore. Writes after the loss of the lock change
// nothing and answer CodeConflict.
type CertificateLock interface {
	// Context ends when the lock is lost or released.
	Context() context.Context
	// StoreShared sets the value of any key, durably and encrypted; without a value it deletes the key.
	StoreShared(ctx context.Context, key string, value json.RawMessage) error
	// Note sets the note of the lock, which disappears with the lock.
	Note(ctx context.Context, note json.RawMessage) error
	Release()
}

// SharedBatch is a part of a CertificateStore, or what has changed in it.
type SharedBatch struct {
	Values []SharedValue
	// Listed says that the batches so far hold everything that existed when the watch began. All later
	// batches have it, too.
	Listed bool
}

// SharedValue is a value of a CertificateStore, or the note of a lock.
type SharedValue struct {
	Key   string
	Value json.RawMessage // nil: deleted
	Note  bool
}

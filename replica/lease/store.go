package lease

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Record is a value in a Store.
type Record struct {
	Value    string
	Revision int64  // of the change that gave it its value
	Session  string // with which it goes; empty: it stays
}

// Snapshot is the records of a cluster at one time.
type Snapshot struct {
	Revision int64  // of the last change of the store, or a later one
	Version  string // what the store knows this state by, for Watch
	Records  map[string]Record
}

// Condition is that a record has a revision; 0: that there is no record of the key.
type Condition struct {
	Key      string
	Revision int64
}

// Put is a record to write.
type Put struct {
	Key, Value string
	Session    string // with which it is to go; empty: it stays
}

// Change writes and deletes records if all of If holds.
type Change struct {
	If     []Condition
	Put    []Put
	Delete []string
}

// ErrSessionEnded is returned for a session that the store does not have, or no longer.
var ErrSessionEnded = errors.New("the session has ended")

// Store keeps the few records of one cluster where all its nodes reach them. Revisions only grow, by at least one with
// each change. Calls end with ctx, and an error of Swap other than ErrSessionEnded leaves open whether the change was
// made. All methods may be called concurrently.
type Store interface {
	fmt.Stringer // names the place for people

	// Open begins a session, which lasts for ttl at least from the call on, and returns for how long.
	Open(ctx context.Context, ttl time.Duration) (id string, granted time.Duration, err error)
	// Renew returns for how long the session lasts from the call on, or ErrSessionEnded.
	Renew(ctx context.Context, id string) (time.Duration, error)
	// End ends a session. Its records go.
	End(ctx context.Context, id string) error
	// Read returns all records. It is linearizable.
	Read(ctx context.Context) (Snapshot, error)
	// Watch yields what the records are after a snapshot, each time something has changed, and never an older state after
	// a newer one. It ends after an error, or when ctx does.
	Watch(ctx context.Context, after Snapshot) iter.Seq2[Snapshot, error]
	// Swap makes all of a change, and returns its revision. done is false if a condition did not hold: nothing was changed
	// then.
	Swap(ctx context.Context, c Change) (revision int64, done bool, err error)
	// Close ends all connections.
	Close()
}

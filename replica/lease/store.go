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
	Revision int64  // of the change that set the value
	Session  string // whose end removes the record; empty: none
}

// Snapshot has the records of a cluster at one time.
type Snapshot struct {
	Revision int64  // of the last change of the store, or a later one
	Version  string // identifies this state for Watch, if the store needs it
	Records  map[string]Record
}

// Condition requires that a record has a revision, or with revision 0, that it does not exist.
type Condition struct {
	Key      string
	Revision int64
}

// Put is a record to write.
type Put struct {
	Key, Value string
	Session    string // whose end removes the record; empty: none
}

// Change writes and deletes records if all conditions hold.
type Change struct {
	If     []Condition
	Put    []Put
	Delete []string
}

// ErrSessionEnded is returned for a session that has ended or never existed.
var ErrSessionEnded = errors.New("the session has ended")

// Store keeps the few records of one cluster where all its nodes reach them. Each change increases the revision. Calls
// end with ctx. All methods may be called concurrently.
type Store interface {
	fmt.Stringer // names the store in messages

	// Open begins a session that lasts for at least ttl from the call on, and returns how long it lasts.
	Open(ctx context.Context, ttl time.Duration) (id string, granted time.Duration, err error)
	// Renew extends a session. It returns how long the session lasts from the call on, or ErrSessionEnded.
	Renew(ctx context.Context, id string) (time.Duration, error)
	// End ends a session and removes its records.
	End(ctx context.Context, id string) error
	// Read returns all records. It is linearizable.
	Read(ctx context.Context) (Snapshot, error)
	// Watch yields a snapshot after each change since a given one. It may skip states, but never goes back to an older
	// one. It ends after an error, or when ctx does.
	Watch(ctx context.Context, after Snapshot) iter.Seq2[Snapshot, error]
	// Swap makes a change atomically, and returns its revision. done is false if a condition did not hold, and nothing
	// was changed. After an error other than ErrSessionEnded, the change may have been made or not.
	Swap(ctx context.Context, c Change) (revision int64, done bool, err error)
	// Close ends all connections.
	Close()
}

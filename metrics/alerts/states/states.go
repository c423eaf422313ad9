// Package states keeps the states of alerts on disk, over restarts.
//
// A Store is one file. It stores values, which it does not interpret, by kind, organization and key.
// A Save that has returned survives a loss of power, completely or not at all. Writers that arrive
// during a write share the next transaction; a single one does not wait for others.
//
// Losing a Store only causes repeated notifications. So Open renames an unusable file and starts a
// new one.
package states

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/boltfile"
)

// Kind is the kind of a value.
type Kind string

// The kinds.
const (
	Alerts  Kind = "alerts"  // states of alerts, by rule and series
	Notices Kind = "notices" // what was sent, by receiver and group
)

func kinds() []Kind { return []Kind{Alerts, Notices} }

// Store is an open file. Its methods may be called from many goroutines.
type Store struct {
	db *bolt.DB

	mu      sync.Mutex // guards what follows
	writing bool       // a writer is in a transaction, and will signal waiting
	waiting []*change
}

// change is the write of one caller. It gets one signal: when it is written, or when its caller must
// write for all waiting ones.
type change struct {
	apply  func(tx *bolt.Tx) error
	signal chan struct{} // buffered 1
	lead   bool
	err    error
}

// write runs apply in a transaction that it shares with other callers.
func (s *Store) write(apply func(tx *bolt.Tx) error) error {
	own := &change{apply: apply, signal: make(chan struct{}, 1)}
	s.mu.Lock()
	s.waiting = append(s.waiting, own)
	busy := s.writing
	s.writing = true
	s.mu.Unlock()
	if busy {
		if <-own.signal; !own.lead {
			return own.err
		}
	}
	s.mu.Lock()
	batch := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	s.commit(batch)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = len(s.waiting) > 0
	if s.writing {
		s.waiting[0].lead = true
		s.waiting[0].signal <- struct{}{}
	}
	return own.err
}

// commit writes changes in one transaction, which succeeds or fails for all of them.
func (s *Store) commit(batch []*change) {
	err := boltfile.Update(s.db, func(tx *bolt.Tx) error {
		for _, c := range batch {
			if err := c.apply(tx); err != nil {
				return err
			}
		}
		return nil
	})
	for _, c := range batch {
		c.err = err
		if !c.lead {
			c.signal <- struct{}{}
		}
	}
}

// lockTimeout is how long Open waits for another process to release the file.
const lockTimeout = 2 * time.Second

// ErrLocked reports that another process has the file open.
var ErrLocked = errors.New("the file with the states of alerts is in use by another process")

// Open opens a file, or creates it.
func Open(path string, log *slog.Logger) (*Store, error) {
	options := bolt.Options{Timeout: lockTimeout, FreelistType: bolt.FreelistMapType}
	db, err := boltfile.OpenReplaceable(path, options, makeBuckets, func(err error) {
		log.Error("cannot read the states of alerts: notifications may be repeated", "path", path, "error", err)
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, ErrLocked
	case err != nil:
		return nil, err
	}
	return &Store{db: db}, nil
}

func makeBuckets(tx *bolt.Tx) error {
	for _, k := range kinds() {
		if _, err := tx.CreateBucketIfNotExists([]byte(k)); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the file after running calls have ended.
func (s *Store) Close() error { return s.db.Close() }

// Load returns all values of a kind that an organization has.
func (s *Store) Load(kind Kind, org hangar.OrgID) (map[string][]byte, error) {
	all := map[string][]byte{}
	err := boltfile.View(s.db, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(kind)).Bucket([]byte(org))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			all[string(k)] = append([]byte(nil), v...)
			return nil
		})
	})
	return all, err
}

// Save writes values by their keys, which must not be empty; nil removes a value.
func (s *Store) Save(kind Kind, org hangar.OrgID, values map[string][]byte) error {
	if len(values) == 0 {
		return nil
	}
	return s.write(func(tx *bolt.Tx) error {
		b, err := tx.Bucket([]byte(kind)).CreateBucketIfNotExists([]byte(org))
		if err != nil {
			return err
		}
		for k, v := range values {
			if v == nil {
				err = b.Delete([]byte(k))
			} else {
				err = b.Put([]byte(k), v)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Forget removes all values of an organization.
func (s *Store) Forget(org hangar.OrgID) error {
	return s.write(func(tx *bolt.Tx) error {
		for _, k := range kinds() {
			err := tx.Bucket([]byte(k)).DeleteBucket([]byte(org))
			if err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
				return err
			}
		}
		return nil
	})
}

// Orgs returns the organizations that have any values, in no particular order.
func (s *Store) Orgs() ([]hangar.OrgID, error) {
	seen := map[hangar.OrgID]struct{}{}
	err := boltfile.View(s.db, func(tx *bolt.Tx) error {
		for _, kind := range kinds() {
			err := tx.Bucket([]byte(kind)).ForEachBucket(func(k []byte) error {
				seen[hangar.OrgID(k)] = struct{}{}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	list := make([]hangar.OrgID, 0, len(seen))
	for org := range seen {
		list = append(list, org)
	}
	return list, err
}

// LoadNotices loads values of the kind Notices.
func (s *Store) LoadNotices(org hangar.OrgID) (map[string][]byte, error) { return s.Load(Notices, org) }

// SaveNotices saves values of the kind Notices.
func (s *Store) SaveNotices(org hangar.OrgID, values map[string][]byte) error {
	return s.Save(Notices, org, values)
}

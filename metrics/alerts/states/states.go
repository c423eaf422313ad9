// Package states keeps on disk what the evaluation of alerts has to remember over a restart.
//
// A Store is one file. It has values by kind, organization and key; what they mean is their
// writer's matter. What Save has written when it returns survives the loss of power, all of it
// or nothing. Several writers at once share one fsync.
//
// What is in a Store is worth a repeated notification, not more. So a file that cannot be used
// is put aside, and a new one is begun.
package states

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/hangar-platform/hangar"
)

// Kind is what values are about.
type Kind string

// The kinds.
const (
	Alerts  Kind = "alerts"  // states of alerts, by rule and series
	Notices Kind = "notices" // what was sent, by receiver and group
)

func kinds() []Kind { return []Kind{Alerts, Notices} }

// Store is an open file. Its methods may be called from many goroutines.
type Store struct{ db *bolt.DB }

// lockTimeout is how long Open waits for another process to let go.
const lockTimeout = 2 * time.Second

// damaged is the suffix of a file that was put aside. Another one replaces it.
const damaged = ".damaged"

// ErrLocked says that another process has the file open.
var ErrLocked = errors.New("the file with the states of alerts is in use by another process")

// Open opens a file or makes it.
func Open(path string, log *slog.Logger) (*Store, error) {
	s, err := open(path)
	switch {
	case err == nil || errors.Is(err, ErrLocked):
		return s, err
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		log.Error("states of alerts cannot be read: notifications may be repeated", "path", path, "err", err)
		if err := os.Rename(path, path+damaged); err != nil {
			return nil, err
		}
		return open(path)
	default:
		return nil, err
	}
}

func open(path string) (*Store, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout, FreelistType: bolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, ErrLocked
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, k := range kinds() {
			if _, err := tx.CreateBucketIfNotExists([]byte(k)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return &Store{db}, nil
}

// Close closes the file, after the calls that run.
func (s *Store) Close() error { return s.db.Close() }

// Load returns all values of a kind that an organization has.
func (s *Store) Load(kind Kind, org hangar.OrgID) (map[string][]byte, error) {
	all := map[string][]byte{}
	err := s.db.View(func(tx *bolt.Tx) error {
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

// Save writes values by their keys, which must not be empty; nil removes one.
func (s *Store) Save(kind Kind, org hangar.OrgID, values map[string][]byte) error {
	if len(values) == 0 {
		return nil
	}
	return s.db.Batch(func(tx *bolt.Tx) error {
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

// Forget removes all that an organization has.
func (s *Store) Forget(org hangar.OrgID) error {
	return s.db.Batch(func(tx *bolt.Tx) error {
		for _, k := range kinds() {
			err := tx.Bucket([]byte(k)).DeleteBucket([]byte(org))
			if err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
				return err
			}
		}
		return nil
	})
}

// Orgs returns the organizations of which there is something, in no order.
func (s *Store) Orgs() ([]hangar.OrgID, error) {
	seen := map[hangar.OrgID]struct{}{}
	err := s.db.View(func(tx *bolt.Tx) error {
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

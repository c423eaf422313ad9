package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/boltfile"
	"github.com/hangar-platform/hangar/internal/machinejson"
)

// view reads in one consistent transaction. A damaged page or a failing disk is an error, ErrFormat,
// because one bad sector must not stop the daemon.
func (j *Journal) view(fn func(tx *bolt.Tx) error) error {
	err := boltfile.View(j.db, fn)
	switch {
	case errors.Is(err, bolterrors.ErrDatabaseNotOpen):
		return ErrClosed
	case errors.Is(err, boltfile.ErrDamaged):
		return fmt.Errorf("%w: reading %s: %w", ErrFormat, j.path, err)
	default:
		return err
	}
}

// machinesPerRead bounds how long Machines keeps a read transaction open.
const machinesPerRead = 256

// Machines yields every record, sorted by id, until yield fails, and returns its error. A record that
// does not parse is logged, counted and skipped; IDs still returns its id. yield may use the Journal.
// Records that are written meanwhile may or may not be seen.
func (j *Journal) Machines(yield func(*Record) error) error {
	var after []byte
	for {
		batch, next, err := j.machinesAfter(after)
		if err != nil {
			return err
		}
		for _, r := range batch {
			if err := yield(r); err != nil {
				return err
			}
		}
		if next == nil {
			return nil
		}
		after = next
	}
}

// machinesAfter reads the records that follow after. next is nil after the last one.
func (j *Journal) machinesAfter(after []byte) (batch []*Record, next []byte, err error) {
	var read []written
	err = j.view(func(tx *bolt.Tx) error {
		c, health := tx.Bucket(bucketMachines).Cursor(), tx.Bucket(bucketHealth)
		k, v := c.Seek(after)
		if after != nil && bytes.Equal(k, after) {
			k, v = c.Next()
		}
		for ; k != nil; k, v = c.Next() {
			read = append(read, written{id: hangar.MachineID(k), record: bytes.Clone(v), health: bytes.Clone(health.Get(k))})
			if len(read) == machinesPerRead {
				next = bytes.Clone(k)
				return nil
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return j.parse(read), next, nil
}

// written is a record as stored in the file.
type written struct {
	id             hangar.MachineID
	record, health []byte
}

// parse parses records on every processor, because the start of the daemon waits for all of them.
func (j *Journal) parse(read []written) []*Record {
	records := make([]*Record, len(read))
	workers := runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for first := range workers {
		wg.Go(func() {
			for i := first; i < len(read); i += workers {
				r, err := decodeRecord(read[i].record, &j.pool)
				if err != nil {
					j.skipped("machine", read[i].id, err)
					continue
				}
				j.addHealth(r, read[i].health)
				records[i] = r
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(records, func(r *Record) bool { return r == nil })
}

func (j *Journal) skipped(what string, id hangar.MachineID, err error) {
	j.unreadable.Add(1)
	j.log.Error("journal entry is unreadable, skipped", "what", what, "machine", string(id), "error", err)
}

// IDs returns the ids of all Machines with a record, sorted. They include those whose record does not
// parse, because such a Machine still owns resources on the host.
func (j *Journal) IDs() ([]hangar.MachineID, error) {
	var ids []hangar.MachineID
	err := j.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketMachines).ForEach(func(k, _ []byte) error {
			ids = append(ids, hangar.MachineID(k))
			return nil
		})
	})
	return ids, err
}

// errUnreadable: a record does not parse.
var errUnreadable = errors.New("unreadable")

// Machine returns the record of a Machine, or ErrNotFound. A record that does not parse is logged,
// counted and not found.
func (j *Journal) Machine(id hangar.MachineID) (*Record, error) {
	var r *Record
	err := j.view(func(tx *bolt.Tx) (err error) {
		if r, err = readRecord(tx.Bucket(bucketMachines), id, &j.pool); err == nil {
			j.addHealth(r, tx.Bucket(bucketHealth).Get([]byte(id)))
		}
		return err
	})
	if errors.Is(err, errUnreadable) {
		j.skipped("machine", id, err)
		return nil, fmt.Errorf("machine %s: %w", id, ErrNotFound)
	}
	return r, err
}

// addHealth adds the stored result of health checks to a record; nil: no result.
func (j *Journal) addHealth(r *Record, v []byte) {
	if v == nil {
		return
	}
	h := new(Health)
	if err := json.Unmarshal(v, h); err != nil {
		j.skipped("health", r.Machine.ID, err)
		return
	}
	r.Health, r.Seq = h, max(r.Seq, h.Seq)
}

func readRecord(b *bolt.Bucket, id hangar.MachineID, pool *machinejson.Pool) (*Record, error) {
	v := b.Get([]byte(id))
	if v == nil {
		return nil, fmt.Errorf("machine %s: %w", id, ErrNotFound)
	}
	r, err := decodeRecord(v, pool)
	if err != nil {
		return nil, fmt.Errorf("decode machine %s: %w: %w", id, errUnreadable, err)
	}
	return r, nil
}

// Lease returns the last lease that PutLease wrote for a Machine, even an expired one, or nil. A
// lease that does not parse is logged, counted and ignored: it expires soon.
func (j *Journal) Lease(id hangar.MachineID) (*hangar.Lease, error) {
	var lease *hangar.Lease
	err := j.view(func(tx *bolt.Tx) error {
		v := tx.Bucket(bucketLeases).Get([]byte(id))
		if v == nil {
			return nil
		}
		l := new(hangar.Lease)
		if err := json.Unmarshal(v, l); err != nil {
			j.skipped("lease", id, err)
			return nil
		}
		lease = l
		return nil
	})
	return lease, err
}

// Busy returns the last time that PutBusy wrote for a Machine, even a past one. A value that does
// not parse is logged, counted and ignored.
func (j *Journal) Busy(id hangar.MachineID) (time.Time, error) {
	var until time.Time
	err := j.view(func(tx *bolt.Tx) error {
		v := tx.Bucket(bucketBusy).Get([]byte(id))
		if v == nil {
			return nil
		}
		got, err := time.Parse(time.RFC3339Nano, string(v))
		if err != nil {
			j.skipped("busy time", id, err)
			return nil
		}
		until = got
		return nil
	})
	return until, err
}

// Events returns at most limit events of a Machine, newest first; limit 0: all kept events. An
// unknown Machine has no events.
func (j *Journal) Events(id hangar.MachineID, limit int) ([]hangar.Event, error) {
	var events []hangar.Event
	err := j.view(func(tx *bolt.Tx) error {
		series{tx.Bucket(bucketEvents), id}.newestFirst(func(v []byte) bool {
			var e hangar.Event
			if err := json.Unmarshal(v, &e); err != nil {
				j.skipped("event", id, err)
				return true
			}
			events = append(events, e)
			return limit <= 0 || len(events) < limit
		})
		return nil
	})
	return events, err
}

// EventsAfter returns the events that were appended after the named one, oldest first. If that event
// is not kept, it returns those with a greater id; if after is empty, all kept events.
func (j *Journal) EventsAfter(id hangar.MachineID, after hangar.EventID) ([]hangar.Event, error) {
	events, err := j.Events(id, 0)
	if err != nil {
		return nil, err
	}
	if after != "" {
		at := slices.IndexFunc(events, func(e hangar.Event) bool { return e.ID == after })
		if at >= 0 {
			events = events[:at]
		} else {
			events = slices.DeleteFunc(events, func(e hangar.Event) bool { return e.ID <= after })
		}
	}
	slices.Reverse(events)
	return events, nil
}

// Versions returns the versions of a Machine, newest first.
func (j *Journal) Versions(id hangar.MachineID) ([]hangar.MachineVersion, error) {
	var versions []hangar.MachineVersion
	err := j.view(func(tx *bolt.Tx) error {
		series{tx.Bucket(bucketVersions), id}.newestFirst(func(b []byte) bool {
			var v hangar.MachineVersion
			if err := json.Unmarshal(b, &v); err != nil {
				j.skipped("version", id, err)
				return true
			}
			versions = append(versions, v)
			return true
		})
		return nil
	})
	return versions, err
}

// Setting returns the value that SetSetting stored under key, or ErrNotFound.
func (j *Journal) Setting(key string) ([]byte, error) {
	var value []byte
	err := j.view(func(tx *bolt.Tx) (err error) {
		value, err = readSetting(tx, key)
		return err
	})
	return value, err
}

func readSetting(tx *bolt.Tx, key string) ([]byte, error) {
	v := tx.Bucket(bucketSettings).Get([]byte(key))
	if v == nil {
		return nil, fmt.Errorf("setting %q: %w", key, ErrNotFound)
	}
	return bytes.Clone(v), nil
}

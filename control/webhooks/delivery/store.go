package delivery

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/boltfile"
	"github.com/hangar-platform/hangar/internal/pause"
)

// The buckets. Each receiver has one of its own below bucketReceivers.
var (
	bucketCursor    = []byte("cursor")    // keyCursor → number of the last event taken
	bucketReceivers = []byte("receivers") // id → bucket
	bucketQueue     = []byte("queue")     // number → waiting entry
	bucketDead      = []byte("dead")      // number → entry that was given up
	bucketLog       = []byte("log")       // number → entry that was delivered
	keyMeta         = []byte("meta")      // meta
	keyCursor       = []byte("host")
)

// meta has the totals of a receiver's buckets.
type meta struct {
	Org       hangar.OrgID `json:"org,omitempty"`
	Waiting   int          `json:"waiting"`
	Bytes     int64        `json:"bytes"` // of waiting entries
	Logged    int          `json:"logged"`
	Dead      int          `json:"dead"`
	DeadBytes int64        `json:"dead_bytes"`
	Dropped   uint64       `json:"dropped"` // dead letters that were dropped
}

// insert is an entry for the end of a receiver's queue.
type insert struct {
	receiver string
	org      hangar.OrgID
	entry    entry
}

// ingestion is a batch of events from the host, up to a cursor.
type ingestion struct {
	cursor  uint64
	inserts []insert
}

// result is what becomes of an entry after an attempt.
type result byte

const (
	retried   result = iota // it stays in the queue
	delivered               // it goes to the log
	givenUp                 // it goes to the dead letters
	removed                 // it goes
)

// outcome is a change of one entry.
type outcome struct {
	receiver string
	number   uint64
	result   result
	entry    entry
}

type storeOptions struct {
	limits  Limits
	admit   func(bytes int64) error
	now     func() time.Time
	log     *slog.Logger
	noSync  bool
	counts  *counts
	evicted func(receiver string, upTo uint64) // called after entries up to a number were removed from a queue
}

// store keeps the queues of all receivers in one file. A committed transaction survives a loss of
// power. Outcomes of attempts are committed a moment later: events whose outcome a crash loses are
// delivered again.
type store struct {
	o     storeOptions
	db    *bolt.DB
	begin uint64 // number of the last event that was taken before the start

	writing sync.Mutex // held by the writer

	mu       sync.Mutex    // guards what follows
	outcomes []outcome     // not written yet
	written  []outcome     // in the transaction that is being committed
	flushed  chan struct{} // closed, and replaced, when outcomes were committed
	metas    map[string]meta
	total    int64 // bytes of waiting entries
	closed   bool

	pending chan struct{} // has room for one: there are outcomes
}

// maxOutcomes bounds the outcomes that are not written yet.
const maxOutcomes = 8192

// initialMap is the address space reserved for the file at first, which costs no memory.
const initialMap = 64 << 20

const (
	lockTimeout = 2 * time.Second
	writePause  = 5 * time.Second // after outcomes could not be written
	readPause   = time.Minute     // after a queue could not be read
)

func openStore(path string, o storeOptions) (s *store, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	s = &store{o: o, flushed: make(chan struct{}), pending: make(chan struct{}, 1)}
	options := bolt.Options{Timeout: lockTimeout, FreelistType: bolt.FreelistMapType, InitialMmapSize: initialMap, NoSync: o.noSync}
	s.db, err = boltfile.OpenReplaceable(path, options, s.load, func(err error) {
		o.log.Error("queues of webhooks cannot be read, and are put aside: what waited there is not delivered", "path", path, keyError, err)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// load makes missing buckets, and reads what the store has in memory.
func (s *store) load(tx *bolt.Tx) error {
	s.begin, s.metas, s.total = 0, map[string]meta{}, 0
	for _, name := range [][]byte{bucketCursor, bucketReceivers} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	if raw := tx.Bucket(bucketCursor).Get(keyCursor); len(raw) == 8 {
		s.begin = binary.BigEndian.Uint64(raw)
	}
	return tx.Bucket(bucketReceivers).ForEachBucket(func(id []byte) error {
		var m meta
		if raw := tx.Bucket(bucketReceivers).Bucket(id).Get(keyMeta); raw != nil {
			if err := json.Unmarshal(raw, &m); err != nil {
				return fmt.Errorf("receiver %s: %w", id, err)
			}
		}
		s.metas[string(id)] = m
		s.total += m.Bytes
		return nil
	})
}

// close commits the remaining outcomes and closes the file.
func (s *store) close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if !first {
		return nil
	}
	return errors.Join(s.flush(), s.db.Close())
}

// queues returns the receivers that have buckets, with their organizations.
func (s *store) queues() map[string]hangar.OrgID {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]hangar.OrgID, len(s.metas))
	for id, m := range s.metas {
		all[id] = m.Org
	}
	return all
}

// meta returns the totals of a receiver's buckets.
func (s *store) meta(id string) meta {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.metas[id]
}

// remove removes everything of a receiver.
func (s *store) remove(id string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	err := boltfile.Update(s.db, func(tx *bolt.Tx) error {
		err := tx.Bucket(bucketReceivers).DeleteBucket([]byte(id))
		if errors.Is(err, bolterrors.ErrBucketNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total -= s.metas[id].Bytes
	delete(s.metas, id)
	return nil
}

// settle queues an outcome for the next transaction. It waits while maxOutcomes are queued, as on a
// full disk, until ctx ends.
func (s *store) settle(ctx context.Context, o outcome) {
	for {
		s.mu.Lock()
		flushed := s.flushed
		if len(s.outcomes) < maxOutcomes {
			s.outcomes = append(s.outcomes, o)
			s.mu.Unlock()
			s.signal()
			return
		}
		s.mu.Unlock()
		select {
		case <-flushed:
		case <-ctx.Done():
			return // it is delivered again
		}
	}
}

func (s *store) signal() {
	select {
	case s.pending <- struct{}{}:
	default:
	}
}

// flushes commits queued outcomes until ctx ends.
func (s *store) flushes(ctx context.Context, every time.Duration) {
	for {
		select {
		case <-s.pending:
		case <-ctx.Done():
			return
		}
		if pause.For(ctx, every) != nil {
			return
		}
		if err := s.flush(); err != nil {
			s.o.log.Warn("deliveries of webhooks are not written down", keyError, err)
			_ = pause.For(ctx, writePause)
			s.signal()
		}
	}
}

func (s *store) flush() error { return s.write(nil) }

// ingest puts events into queues, and stores the cursor.
func (s *store) ingest(in ingestion) error { return s.write(&in) }

// write commits the queued outcomes, and in if it is not nil, in one transaction.
func (s *store) write(in *ingestion) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	outcomes := s.outcomes
	s.outcomes, s.written = nil, outcomes
	t := &transaction{store: s, metas: map[string]meta{}, total: s.total}
	s.mu.Unlock()
	if in == nil && len(outcomes) == 0 {
		return nil
	}
	err := boltfile.Update(s.db, func(tx *bolt.Tx) error {
		t.tx = tx
		return t.apply(in, outcomes)
	})
	s.mu.Lock()
	s.written = nil
	if err != nil {
		s.outcomes = append(outcomes, s.outcomes...)
		s.mu.Unlock()
		return err
	}
	close(s.flushed)
	s.flushed = make(chan struct{})
	s.mu.Unlock()
	s.committed(t)
	return nil
}

// committed takes over the totals of a committed transaction. s.writing is held.
func (s *store) committed(t *transaction) {
	s.mu.Lock()
	maps.Copy(s.metas, t.metas)
	s.total = t.total
	s.mu.Unlock()
	for id, upTo := range t.evicted {
		s.o.evicted(id, upTo)
	}
	for _, reason := range t.deaths {
		s.o.counts.dead.WithLabelValues(string(reason)).Inc()
	}
}

// item is an entry of a queue in memory.
type item struct {
	number uint64
	size   int64
	entry
}

// next returns the entries of a queue after a number: at most most of them, and at least one even if it exceeds size
// bytes.
func (s *store) next(id string, after uint64, most int, size int64) (items []*item, err error) {
	latest := s.unwritten(id) // before the transaction: an outcome that is missing here is then visible there
	err = boltfile.View(s.db, func(tx *bolt.Tx) error {
		b := s.bucket(tx, id, bucketQueue)
		if b == nil {
			return nil
		}
		c := b.Cursor()
		for k, v := c.Seek(numberKey(after + 1)); k != nil && len(items) < most; k, v = c.Next() {
			o := latest[binary.BigEndian.Uint64(k)]
			if o != nil && o.result != retried {
				continue
			}
			if size -= int64(len(v)); size < 0 && len(items) > 0 {
				return nil
			}
			it := &item{number: binary.BigEndian.Uint64(k), size: int64(len(v))}
			if o != nil {
				it.entry = o.entry
			} else {
				it.entry, err = decodeEntry(v)
			}
			if err != nil { // it has no id
				s.o.log.Error("entry of a queue cannot be read", keyReceiver, id, keyError, err)
				it.entry, err = entry{}, nil
			}
			items = append(items, it)
		}
		return nil
	})
	return items, err
}

// unwritten returns the outcomes of a queue's entries that are not committed yet.
func (s *store) unwritten(id string) map[uint64]*outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	latest := map[uint64]*outcome{}
	for _, list := range [][]outcome{s.written, s.outcomes} {
		for i := range list {
			if list[i].receiver == id {
				latest[list[i].number] = &list[i]
			}
		}
	}
	return latest
}

// bucket returns one of a receiver's buckets, or nil.
func (s *store) bucket(tx *bolt.Tx, id string, name []byte) *bolt.Bucket {
	own := tx.Bucket(bucketReceivers).Bucket([]byte(id))
	if own == nil {
		return nil
	}
	return own.Bucket(name)
}

func numberKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// newest yields the entries of a bucket, the newest first.
func newest(b *bolt.Bucket, yield func(key []byte, e entry) bool) {
	if b == nil {
		return
	}
	c := b.Cursor()
	for k, v := c.Last(); k != nil; k, v = c.Prev() {
		if e, err := decodeEntry(v); err == nil && !yield(bytes.Clone(k), e) {
			return
		}
	}
}

// Package journal is the durable memory of one host: every Machine that it owns, with the Machine's
// versions, events and lease, every volume, and the changes that are not published to the cluster
// yet.
//
// A commit is on disk when Commit returns nil, survives a loss of power, and is applied completely or
// not at all. Every commit has a number that only grows; PutMachine and PutVolume put it on the
// record, so that two versions of a record always differ. The same commit marks each change as
// unpublished (the outbox), so that a crash between a change and its publication repeats the
// publication instead of losing it.
//
// All methods may be called from any goroutine. One goroutine, which Open starts and Close ends, does
// all writes. It takes all waiting functions into one transaction with one fsync, so that a hundred
// concurrent writers cost little more than one, and a single writer never waits for others. Reads
// never wait for writes. Memory does not grow with the number of Machines, only with the content that
// they share.
//
// The journal makes no decisions: it does not know which state may follow another, which records
// belong together, or when one may be forgotten. Exactly one process has it open.
package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/hangar-platform/hangar/internal/boltfile"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/machinejson"
)

// Bounds of the records kept per Machine. The oldest are dropped first.
const (
	MaxEvents   = 200
	MaxVersions = 20
)

// DefaultLockTimeout is how long Open waits for another process to release the lock.
const DefaultLockTimeout = 2 * time.Second

// The errors of the journal, wrapped.
var (
	// ErrClosed: the journal is closed.
	ErrClosed = errors.New("journal closed")
	// ErrNotFound: the record or setting does not exist.
	ErrNotFound = errors.New("not in the journal")
	// ErrLocked: another process has the journal open.
	ErrLocked = errors.New("journal is in use by another process")
	// ErrFormat: the file is not a journal, is damaged, or is of another format.
	ErrFormat = errors.New("not a usable journal")
	// ErrBroken: the disk failed during a commit, so that the state after a crash is unknown, or does
	// not read what every commit needs. Every later commit is refused until the journal is opened
	// again.
	ErrBroken = errors.New("journal is in an unknown state after a disk error")
)

// Options of a journal.
type Options struct {
	Log *slog.Logger // nil: discard
	// LockTimeout is how long Open waits for the file lock; 0: DefaultLockTimeout.
	LockTimeout time.Duration
	// NoSync omits every fsync. Only for tests that write a lot and need no durability.
	NoSync bool
}

// Stats count since Open.
type Stats struct {
	Commits      uint64 // calls of Commit that wrote something and returned nil
	Transactions uint64 // transactions made durable; each costs a flush of the disk
	Failures     uint64 // calls of Commit that could not be written to disk
	Reruns       uint64 // functions that ran again because another in their transaction failed
	Unreadable   uint64 // stored values that did not parse and were skipped
}

// Journal is an open journal.
type Journal struct {
	db   *bolt.DB
	path string
	log  *slog.Logger

	mu     sync.Mutex // guards what follows
	queue  []*call    // waiting for the committer, oldest first
	acked  map[outboxKey]struct{}
	closed bool

	pool machinejson.Pool // of the records that are read

	wake    chan struct{} // buffered 1: the queue is not empty, or closed was set
	changed chan struct{} // buffered 1: see Changed
	fed     chan struct{} // buffered 1: see Fed
	done    chan struct{} // closed when the committer has ended
	fault   chan struct{} // closed when broken is set

	broken       error // written and read by the committer only
	commits      atomic.Uint64
	transactions atomic.Uint64
	failures     atomic.Uint64
	reruns       atomic.Uint64
	unreadable   atomic.Uint64
	latency      prometheus.Histogram // of commits that wrote
}

// freshSuffix ends the name of a journal that is being created.
const freshSuffix = ".new"

// initialMap is the address space that is reserved for the file at first. It costs no memory. While
// the journal is smaller, readers need not wait for a bigger map.
const initialMap = 64 << 20

// Open opens the journal at path, or creates it; its directory must exist. It returns ErrLocked when
// another process has it open, and ErrFormat when the file is not a usable journal; it never alters
// such a file.
func Open(path string, o Options) (*Journal, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = DefaultLockTimeout
	}
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		if err := create(path, o); err != nil {
			return nil, fmt.Errorf("create journal %s: %w", path, err)
		}
	}
	if err := checkFile(path); err != nil {
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	db, err := openBolt(path, o)
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	j := &Journal{
		db:      db,
		path:    path,
		log:     o.Log,
		acked:   make(map[outboxKey]struct{}),
		wake:    make(chan struct{}, 1),
		changed: make(chan struct{}, 1),
		fed:     make(chan struct{}, 1),
		done:    make(chan struct{}),
		fault:   make(chan struct{}),
		latency: newLatency(),
	}
	var unpublished bool
	err = j.view(func(tx *bolt.Tx) error {
		if err := checkFormat(tx); err != nil {
			return err
		}
		unpublished = lagging(tx)
		return nil
	})
	if err == nil {
		err = unusable(addBuckets(db))
	}
	if err != nil {
		_ = db.Close() // the error above matters
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	if unpublished {
		j.changed <- struct{}{}
	}
	j.takeRoom()
	go j.run()
	return j, nil
}

// Close waits for accepted commits, refuses later ones, and releases the file. It may be repeated.
func (j *Journal) Close() error {
	j.mu.Lock()
	first := !j.closed
	j.closed = true
	j.mu.Unlock()
	signal(j.wake)
	<-j.done
	if !first {
		return nil
	}
	if err := j.db.Close(); err != nil {
		return fmt.Errorf("close journal %s: %w", j.path, err)
	}
	return nil
}

// Stats returns the counters.
func (j *Journal) Stats() Stats {
	return Stats{
		Commits:      j.commits.Load(),
		Transactions: j.transactions.Load(),
		Failures:     j.failures.Load(),
		Reruns:       j.reruns.Load(),
		Unreadable:   j.unreadable.Load(),
	}
}

// create makes an empty journal under another name and renames it. Otherwise a crash could leave a
// partial file, which the next Open would consider damaged.
func create(path string, o Options) error {
	fresh := path + freshSuffix
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	db, err := openBolt(fresh, o)
	if err != nil {
		return err
	}
	err = db.Update(writeFormat)
	if cerr := db.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return durable.SyncDir(filepath.Dir(path))
}

// openBolt opens the database.
func openBolt(path string, o Options) (*bolt.DB, error) {
	db, err := boltfile.Open(path, bolt.Options{
		Timeout:         o.LockTimeout,
		NoSync:          o.NoSync,
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: initialMap,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag, mode)
			if err == nil && strings.HasSuffix(name, freshSuffix) {
				err = diskspace.InPlace(f)
			}
			return f, err
		},
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, ErrLocked
	}
	return db, unusable(err)
}

// unusable adds ErrFormat to the error of a damaged file.
func unusable(err error) error {
	if errors.Is(err, boltfile.ErrDamaged) {
		err = fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return err
}

// headroom is how many bytes of the disk the file reserves in advance: more than bbolt's growth step.
const headroom = 32 << 20

// roomEvery is the number of transactions between two checks of the headroom.
const roomEvery = 64

// takeRoom reserves the headroom on disk, so that commits continue after others have filled the disk.
// If the disk is full, a later call tries again, and the rest of the earlier reserve serves until
// then. A commit without room is refused and does no harm.
func (j *Journal) takeRoom() {
	f, err := os.OpenFile(j.path, os.O_RDWR, 0)
	if err != nil {
		j.log.Warn("take room for the journal", "error", err)
		return
	}
	defer f.Close()
	fi, err := f.Stat()
	if err == nil {
		err = diskspace.Extend(f, fi.Size()+headroom)
	}
	if err != nil {
		j.log.Debug("take room for the journal", "error", err)
	}
}

// Commit runs fn and makes its writes durable; they are on disk when Commit returns nil. On an error
// none of them is applied, except for ErrBroken, after which only the next Open shows. Commit returns
// an error of fn unchanged.
//
// fn may run more than once, because another commit in the same transaction failed. It must touch
// nothing but tx and the values that it passes to tx, give the same result each time, and not call
// the Journal. A panic in fn reaches the caller of Commit.
//
// Commit takes no context, because nothing interrupts it: its result is never ambiguous, and fn never
// runs after Commit has returned.
func (j *Journal) Commit(fn func(tx *Tx) error) error {
	began := time.Now()
	c := &call{fn: fn, pool: &j.pool, done: make(chan struct{})}
	if err := j.enqueue(c); err != nil {
		return err
	}
	<-c.done
	if c.panicked != nil {
		panic(c.panicked)
	}
	if c.err == nil && c.wrote {
		j.latency.Observe(time.Since(began).Seconds())
	}
	return c.err
}

// Pool holds the content that the records of several Machines share. Every record that is read uses
// it, and so may the user of the Journal for records that it writes.
func (j *Journal) Pool() *machinejson.Pool { return &j.pool }

// Changed receives a value after something became unpublished, and once after Open if something is
// unpublished already. Pending signals are merged into one. It is for a single receiver and is never
// closed.
func (j *Journal) Changed() <-chan struct{} { return j.changed }

// Broken is closed when a commit has failed with ErrBroken: the journal records nothing until it is
// opened again, which its user should do.
func (j *Journal) Broken() <-chan struct{} { return j.fault }

// signal puts a value in a channel of capacity 1 unless it has one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

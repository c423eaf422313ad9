// Package backup keeps the databases of a node in a directory or an S3 bucket, so that they can be
// restored to a point in time.
//
// The primary stores the content of its log: every Delay, the transactions since the last time as
// one object. It stores a snapshot when the log no longer reaches back to the end of the backup, and
// after each SnapshotInterval, so that a restore applies few transactions. Transactions older than
// Exact are merged to one state for each hour. Objects that no restore within Retention needs are
// removed.
//
// A backup never delays a commit: it reads the log and copies pages, and retries after a failure. It
// resumes from the content of the store, so it keeps nothing on the disk of the node, and any node
// can continue where another was killed. Objects are never changed. The name of an object has its
// first and last position, its epoch and its time. Every position has a checksum of the whole
// database, which a restore compares.
package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"sync"
	"time"

	"github.com/superfly/ltx"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/database"
)

const (
	uploads      = 4                // databases that are stored concurrently
	maxRetry     = time.Minute      // the longest pause after an error
	maintain     = time.Minute      // between checks for due snapshots
	tidyInterval = 10 * time.Minute // between checks for objects to merge or remove
	lastPass     = 5 * time.Second  // time to store the rest when the node stops
)

// Node is the node whose databases are stored.
type Node interface {
	// Leading returns the cluster and the epoch while the node is the primary. The channel is closed at the end
	// of that time.
	Leading() (cluster string, epoch uint64, over <-chan struct{}, ok bool)
	All() []*database.DB
}

// Options configure a Backup.
type Options struct {
	Node  Node
	Store Store
	Dir   string // for temporary files; no other Backup uses it
	// Delay is how long a transaction waits for others before it is stored.
	Delay            time.Duration
	SnapshotInterval time.Duration
	// Exact is how far back a restore can choose each single transaction.
	Exact time.Duration
	// Retention is how far back a restore can go.
	Retention time.Duration
	Log       *slog.Logger
	Now       func() time.Time // nil: time.Now
}

// Backup stores the databases of one node.
type Backup struct {
	o      Options
	counts counts

	mu     sync.Mutex
	states map[string]*state
	wake   chan struct{} // a database needs a snapshot
}

// state is the progress of a database's backup while the node is primary.
type state struct {
	known    bool      // cursor is known
	cursor   ltx.Pos   // everything up to here is in the store
	broken   bool      // the log does not continue at cursor; a snapshot is needed
	snapshot time.Time // time of the last one, or of the start of the backup
	begun    int64     // when the node began to store, in milliseconds since 1970; greater than that of every existing object
}

// New returns a Backup, which Run starts.
func New(o Options) *Backup {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Store = steady{o.Store}
	return &Backup{o: o, states: map[string]*state{}, wake: make(chan struct{}, 1)}
}

// Run stores databases while the node is primary until ctx ends, and then the rest.
func (b *Backup) Run(ctx context.Context) error {
	if err := os.RemoveAll(b.o.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(b.o.Dir, 0o700); err != nil {
		return err
	}
	for pause.For(ctx, b.o.Delay) == nil {
		cluster, epoch, over, ok := b.o.Node.Leading()
		if !ok {
			continue
		}
		b.lead(ctx, cluster, epoch, over)
	}
	return nil
}

// Needs returns the last transaction of a database that the log need not keep.
func (b *Backup) Needs(db string) ltx.TXID {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.states[db]; s != nil && s.known {
		return s.cursor.TXID
	}
	return math.MaxUint64
}

// term is the time during which the node is primary.
type term struct {
	*Backup

	epoch uint64
}

// lead stores databases until the node is no longer primary or ctx ends.
func (b *Backup) lead(ctx context.Context, cluster string, epoch uint64, over <-chan struct{}) {
	inTerm, end := context.WithCancel(ctx)
	defer end()
	go func() {
		select {
		case <-over:
			end()
		case <-inTerm.Done():
		}
	}()
	b.mu.Lock()
	clear(b.states)
	b.mu.Unlock()
	t := &term{b, epoch}
	if b.repeat(inTerm, func(ctx context.Context) error { return b.claim(ctx, cluster) }) != nil {
		return
	}
	var g errgroup.Group
	g.Go(func() error {
		for pause.For(inTerm, b.o.Delay) == nil {
			_ = b.repeat(inTerm, t.pass) // fails when the term ends
		}
		return nil
	})
	g.Go(func() error {
		t.maintain(inTerm)
		return nil
	})
	_ = g.Wait() // the functions return no errors
	if _, now, _, ok := b.o.Node.Leading(); ctx.Err() != nil && ok && now == epoch {
		if err := finish.Do(ctx, lastPass, func(ctx finish.Context) error { return t.pass(ctx) }); err != nil {
			b.o.Log.Warn("the newest transactions are not in the backup", "error", err)
		}
	}
}

// repeat retries do until it succeeds or ctx ends. It logs the first failure, and the success after
// it.
func (b *Backup) repeat(ctx context.Context, do func(context.Context) error) error {
	for retry, failed := b.o.Delay, false; ; retry = min(2*retry, maxRetry) {
		err := do(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			if failed {
				b.o.Log.Info("the backup continues", "store", b.o.Store.String())
			}
			return nil
		}
		b.counts.failed()
		if !failed {
			b.o.Log.Error("the backup failed and will be retried", "store", b.o.Store.String(), "error", err)
		}
		failed = true
		if err := pause.For(ctx, retry); err != nil {
			return err
		}
	}
}

// clusterName is the object that names the cluster of a backup.
const clusterName = "cluster.json"

type clusterFile struct {
	Cluster string `json:"cluster"`
}

// claim writes the ID of the cluster to a new store, and returns an error if the store is of another
// cluster.
func (b *Backup) claim(ctx context.Context, cluster string) error {
	r, err := b.o.Store.Get(ctx, clusterName)
	if errors.Is(err, ErrNotFound) {
		text, err := json.Marshal(clusterFile{cluster})
		if err != nil {
			return err
		}
		return b.o.Store.Put(ctx, clusterName, bytes.NewReader(text), int64(len(text)))
	}
	if err != nil {
		return err
	}
	defer r.Close()
	var c clusterFile
	if err := json.NewDecoder(io.LimitReader(r, 4096)).Decode(&c); err != nil {
		return fmt.Errorf("%s: %w", clusterName, err)
	}
	if c.Cluster != cluster {
		return fmt.Errorf("the backup at %s is of cluster %s, this node of %s: use another URL", b.o.Store, c.Cluster, cluster)
	}
	return nil
}

// catalogs lists the stored objects of all databases, or of one.
func catalogs(ctx context.Context, s Store, prefix string) (map[string][]item, error) {
	all := map[string][]item{}
	err := s.List(ctx, prefix, func(name string, size int64) error {
		if db, i, ok := parseItem(name, size); ok {
			all[db] = append(all[db], i)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the backup: %w", err)
	}
	return all, nil
}

func (b *Backup) catalog(ctx context.Context, db string) (*catalog, error) {
	all, err := catalogs(ctx, b.o.Store, dirOf(db))
	if err != nil {
		return nil, err
	}
	return newCatalog(all[db]), nil
}

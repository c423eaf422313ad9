package state

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"

	"github.com/hangar-platform/hangar/internal/diskspace"
)

// The defaults of EtcdConfig.
const (
	DefaultPrefix     = "/hangar"
	DefaultQuotaBytes = 8 << 30
	DefaultTimeout    = 10 * time.Second
	DefaultHistory    = 2_000
)

// streamName is the key of metadata with which apart names streams.
const streamName = "stream"

const (
	tickMillis      = 10  // a single member elects itself; short ticks only shorten its start
	electionMillis  = 100 // ten ticks
	dialTimeout     = 5 * time.Second
	keepAlive       = 10 * time.Second // gRPC pings no more often
	defragAbove     = 16 << 20         // bytes; smaller files are not worth it
	maxRequestBytes = 1 << 21          // MaxTxnBytes plus etcd's overhead
	replayedAtMost  = 1000             // writes that a start applies again; with etcd's own 10,000 a busy host starts slowly
	// keptWrites stay in memory after a snapshot. A start must not drop what it has to apply: raft
	// panics if it begins an election (after electionMillis) while its first writes are still being
	// synced to a slow disk, and writes applied meanwhile are gone (go.etcd.io/raft:
	// hasUnappliedConfChanges).
	keptWrites = 2 * replayedAtMost
	keptLogs   = 2 // old log files, of 64 MB each
)

// memberDir is etcd's own directory below the state's.
const memberDir = "member"

// EtcdConfig says where the state is kept.
type EtcdConfig struct {
	Dir        string      // of the embedded member; unused with Endpoints
	Endpoints  []string    // of an external cluster, e.g. "https://10.0.0.1:2379"; empty: embedded
	TLS        *tls.Config // towards the Endpoints; nil: as their scheme says
	Prefix     string      // of every key, for clusters that share an etcd; empty: DefaultPrefix
	QuotaBytes int64       // of the embedded member, beyond which it refuses to grow; 0: DefaultQuotaBytes
	// Timeout bounds every call but Watch, so that a cluster that is away is an
	// error and not a wait without end; 0: DefaultTimeout.
	Timeout time.Duration
	Log     *slog.Logger // warnings and errors of etcd
	// History is how many revisions the embedded member keeps at least, and at most twice as
	// many, of which a start reads every one; 0: DefaultHistory.
	History int64
	// Space is the disk that Dir is on: writes are refused before it is full, because the
	// embedded member does not survive that. nil: its room is not checked.
	Space *diskspace.Space
	// NoSync leaves out every fsync of the embedded member. Only for tests.
	NoSync bool
}

// ErrLocked says that another process has the directory open.
var ErrLocked = errors.New("state: directory is in use by another process")

// Etcd is a Store on etcd.
type Etcd struct {
	client *clientv3.Client
	dial   func(endpoints []string) (*clientv3.Client, error) // of other members; nil with an embedded member
	member *embed.Etcd                                        // nil with an external cluster
	lock   *os.File                                           // nil with an external cluster
	prefix string
	limit  time.Duration // of a call
	log    *slog.Logger
	room   *room // of the member; nil with an external cluster
	// compactor is that of the member; nil with an external cluster, which has its own.
	compactor *compactor
	closed    atomic.Bool
}

// OpenEtcd opens the embedded member, or a client of the external cluster, which
// is dialled in the background. The embedded member listens nowhere. It returns
// ErrLocked if another process has the directory. ctx bounds the start only.
func OpenEtcd(ctx context.Context, cfg EtcdConfig) (*Etcd, error) {
	s := &Etcd{prefix: cfg.Prefix, limit: cfg.Timeout, log: cfg.Log}
	s.prefix = cmp.Or(s.prefix, DefaultPrefix)
	s.limit = cmp.Or(s.limit, DefaultTimeout)
	if len(cfg.Endpoints) > 0 {
		s.dial = cfg.dial
		var err error
		if s.client, err = s.dial(cfg.Endpoints); err != nil {
			return nil, err
		}
		return s, nil
	}
	if err := s.openMember(ctx, cfg); err != nil {
		return nil, err
	}
	return s, nil
}

func (cfg EtcdConfig) dial(endpoints []string) (*clientv3.Client, error) {
	return connect(endpoints, cfg.TLS, dialTimeout, cfg.Log)
}

func (s *Etcd) openMember(ctx context.Context, cfg EtcdConfig) (err error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if s.lock, err = lockDir(cfg.Dir); err != nil {
		return err
	}
	s.room = &room{dir: filepath.Join(cfg.Dir, memberDir, "member"), space: cfg.Space}
	if err := s.room.open(cfg.Dir); err != nil {
		return errors.Join(err, s.lock.Close())
	}
	defer func() {
		if err != nil {
			_ = s.lock.Close()
		}
	}()
	member, err := embed.StartEtcd(memberConfig(cfg))
	if err != nil {
		return fmt.Errorf("state: start etcd in %s: %w", cfg.Dir, err)
	}
	select {
	case <-member.Server.ReadyNotify():
	case <-member.Server.StopNotify():
		member.Close()
		return fmt.Errorf("state: etcd in %s stopped while starting", cfg.Dir)
	case <-ctx.Done():
		member.Close()
		return fmt.Errorf("state: start etcd in %s: %w", cfg.Dir, context.Cause(ctx))
	}
	s.member, s.client = member, v3client.New(member.Server)
	if err := s.room.keepProbe(); err != nil {
		s.log.Warn("the next start needs room on the disk", "error", err)
	}
	s.compactor = newCompactor(ctx, s, cmp.Or(cfg.History, DefaultHistory))
	s.makeRoom(ctx)
	return nil
}

// makeRoom returns free pages of the file to the file system, and clears the alarm of a member that
// had reached its quota; if it still exceeds the quota, the alarm is raised again.
func (s *Etcd) makeRoom(ctx context.Context) {
	if db := s.member.Server.Backend(); db.Size() > defragAbove && db.SizeInUse() < db.Size()/2 && s.room.admitCopy(db) == nil {
		defragment(db, s.log)
	}
	disarm(ctx, s.client, s.limit, s.log)
}

// disarm clears the alarms of members that have reached their quota.
func disarm(ctx context.Context, client *clientv3.Client, limit time.Duration, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if _, err := client.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		log.Warn("alarms of the state were not lifted", "error", err)
	}
}

// memberConfig is a cluster of one that cannot be reached from outside: its URLs are only names
// that etcd records, and it does not listen on them.
func memberConfig(cfg EtcdConfig) *embed.Config {
	c := embed.NewConfig()
	c.Name = "hangar"
	c.Dir = filepath.Join(cfg.Dir, memberDir)
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ListenPeerUrls, c.ListenClientUrls = nil, nil
	c.TickMs, c.ElectionMs = tickMillis, electionMillis
	c.QuotaBackendBytes = cfg.QuotaBytes
	c.QuotaBackendBytes = cmp.Or(c.QuotaBackendBytes, DefaultQuotaBytes)
	c.MaxRequestBytes = maxRequestBytes
	c.MaxWalFiles = keptLogs
	c.SnapshotCount, c.SnapshotCatchUpEntries = replayedAtMost, keptWrites
	c.EnableGRPCGateway = false
	c.UnsafeNoFsync = cfg.NoSync
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(slogCore{log: cfg.Log}))
	return c
}

// lockDir keeps a second process from blocking on etcd's own lock. The kernel releases the lock
// when the process dies.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, dir)
		}
		return nil, fmt.Errorf("state: lock %s: %w", dir, err)
	}
	return f, nil
}

// Close ends every Watch and the embedded member; all later calls return
// ErrClosed. It may be repeated.
func (s *Etcd) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	if s.compactor != nil {
		s.compactor.stop()
	}
	err := s.client.Close()
	if errors.Is(err, context.Canceled) {
		err = nil // closing an in-process client always returns it
	}
	if s.member != nil {
		s.member.Close()
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// Get implements Store.
func (s *Etcd) Get(ctx context.Context, key string) (Item, error) {
	if err := validKey(key); err != nil {
		return Item{}, err
	}
	if err := s.usable(ctx, "get", key); err != nil {
		return Item{}, err
	}
	bounded, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	r, err := s.client.Get(bounded, s.prefix+key)
	if err != nil {
		return Item{}, s.classify(ctx, "get", key, err)
	}
	if len(r.Kvs) == 0 {
		return Item{}, ErrNotFound
	}
	return s.item(r.Kvs[0]), nil
}

// List implements Store.
func (s *Etcd) List(ctx context.Context, prefix string, o ListOptions) (Page, error) {
	if err := s.usable(ctx, "list", prefix); err != nil {
		return Page{}, err
	}
	from := s.prefix + prefix
	end := clientv3.GetPrefixRangeEnd(from)
	if o.After != "" && o.After >= prefix {
		from = s.prefix + o.After + "\x00" // past end if After is; etcd then returns nothing
	}
	opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(int64(o.limit())), clientv3.WithRev(int64(o.Revision))}
	if o.KeysOnly {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	bounded, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	r, err := s.client.Get(bounded, from, opts...)
	if err != nil {
		return Page{}, s.classify(ctx, "list", prefix, err)
	}
	page := Page{Revision: Revision(r.Header.Revision), More: r.More}
	if o.Revision > 0 {
		page.Revision = o.Revision
	}
	for _, kv := range r.Kvs {
		page.Items = append(page.Items, s.item(kv))
	}
	return page, nil
}

// Watch implements Store.
func (s *Etcd) Watch(ctx context.Context, prefix string, from Revision) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if from < 1 {
			yield(Batch{}, fmt.Errorf("%w: watch from revision %d", ErrInvalid, from))
			return
		}
		if s.closed.Load() {
			yield(Batch{}, ErrClosed)
			return
		}
		watching, cancel := context.WithCancel(s.watchContext(ctx))
		defer cancel() // ends the watch when the caller stops iterating
		for r := range s.client.Watch(watching, s.prefix+prefix, clientv3.WithPrefix(), clientv3.WithRev(int64(from))) {
			if err := r.Err(); err != nil {
				if ctx.Err() == nil {
					yield(Batch{}, s.classify(ctx, "watch", prefix, err))
				}
				return
			}
			b := s.batch(r.Events)
			if r.IsProgressNotify() {
				b.Revision = Revision(r.Header.Revision)
			}
			if b.Revision > 0 && (ctx.Err() != nil || !yield(b, nil)) {
				return
			}
		}
		switch {
		case ctx.Err() != nil:
		case s.closed.Load():
			yield(Batch{}, ErrClosed)
		default: // the client drops the reason if the watch was not waiting for it
			yield(Batch{}, errWatchEnded)
		}
	}
}

var errWatchEnded = errors.New("state: the watch has ended")

// apart returns a context whose watches share a stream only with those of the same name. The client gives progress to
// all watches of a stream, also to one that was just created and has not received earlier changes yet.
func apart(ctx context.Context, name string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, streamName, name)
}

// watchContext is the context of every watch. Watches with the same context metadata share a
// stream.
func (s *Etcd) watchContext(ctx context.Context) context.Context {
	if s.member == nil {
		return clientv3.WithRequireLeader(ctx) // a member without quorum then returns an error instead of staying silent
	}
	return ctx
}

// progress makes the watches whose contexts are apart with the same name yield their progress.
func (s *Etcd) progress(ctx context.Context) error {
	if err := s.client.RequestProgress(s.watchContext(ctx)); err != nil {
		return s.classify(ctx, "ask for progress of", "watches", err)
	}
	return nil
}

// current implements current. An embedded single member has no other writer.
func (s *Etcd) current(ctx context.Context) (Revision, error) {
	if s.member != nil {
		return 0, nil
	}
	r, err := s.client.Get(ctx, s.prefix, clientv3.WithCountOnly()) // any linearizable read
	if err != nil {
		return 0, s.classify(ctx, "get", "the newest revision", err)
	}
	return Revision(r.Header.Revision), nil
}

// Txn implements Store.
func (s *Etcd) Txn(ctx context.Context, txn Txn) (Revision, error) {
	if err := txn.validate(); err != nil {
		return 0, err
	}
	if err := s.usable(ctx, "txn", txn.Then[0].Key); err != nil {
		return 0, err
	}
	if s.room != nil {
		if err := s.room.admit(txn); err != nil {
			return 0, err
		}
	}
	compares := make([]clientv3.Cmp, 0, len(txn.If))
	for _, c := range txn.If {
		compares = append(compares, clientv3.Compare(clientv3.ModRevision(s.prefix+c.Key), "=", int64(c.Revision)))
	}
	ops := make([]clientv3.Op, 0, len(txn.Then))
	for _, op := range txn.Then {
		if op.Delete {
			ops = append(ops, clientv3.OpDelete(s.prefix+op.Key))
		} else {
			ops = append(ops, clientv3.OpPut(s.prefix+op.Key, string(op.Value), clientv3.WithLease(clientv3.LeaseID(op.Lease))))
		}
	}
	bounded, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	r, err := s.client.Txn(bounded).If(compares...).Then(ops...).Commit()
	if err != nil {
		return 0, s.classify(ctx, "txn", txn.Then[0].Key, err)
	}
	if !r.Succeeded {
		return Revision(r.Header.Revision), ErrConflict
	}
	if s.compactor != nil {
		s.compactor.made(r.Header.Revision)
	}
	return Revision(r.Header.Revision), nil
}

// Compact forgets what is needed only to read or watch revisions before
// revision. The embedded member does it by itself.
func (s *Etcd) Compact(ctx context.Context, revision Revision) error {
	if s.closed.Load() {
		return ErrClosed
	}
	if err := s.compact(ctx, int64(revision)); err != nil {
		return s.classify(ctx, "compact", "", err)
	}
	return nil
}

func (s *Etcd) compact(ctx context.Context, revision int64) error {
	bounded, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	_, err := s.client.Compact(bounded, revision, clientv3.WithCompactPhysical())
	return err
}

func (s *Etcd) item(kv *mvccpb.KeyValue) Item {
	return Item{Key: strings.TrimPrefix(string(kv.Key), s.prefix), Value: kv.Value, Revision: Revision(kv.ModRevision)}
}

func (s *Etcd) batch(events []*clientv3.Event) Batch {
	b := Batch{Changes: make([]Change, 0, len(events))}
	for _, e := range events {
		c := Change{Item: s.item(e.Kv), Deleted: e.Type == clientv3.EventTypeDelete}
		b.Changes = append(b.Changes, c)
		b.Revision = c.Revision
	}
	return b
}

// usable returns the error of a call that cannot begin. The client may answer although ctx has ended.
func (s *Etcd) usable(ctx context.Context, verb, key string) error {
	if s.closed.Load() || ctx.Err() != nil {
		return s.classify(ctx, verb, key, ctx.Err())
	}
	return nil
}

// classify converts errors that callers distinguish into those of this package. The end of the
// caller's own context remains one; exceeding a call's limit does not look like it.
func (s *Etcd) classify(ctx context.Context, verb, key string, err error) error {
	switch {
	case s.closed.Load():
		return ErrClosed
	case errors.Is(err, rpctypes.ErrCompacted):
		return ErrCompacted
	case errors.Is(err, rpctypes.ErrFutureRev):
		return ErrFutureRevision
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return ErrLeaseEnded
	case ctx.Err() != nil:
		return fmt.Errorf("state: %s %s: %w", verb, key, ctx.Err())
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("state: %s %s: no answer within %s", verb, key, s.limit)
	default:
		return fmt.Errorf("state: %s %s: %w", verb, key, err)
	}
}

package stream

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// maxVector bounds the checksums that a replica sends for one database: enough for 128 million
// pages.
const maxVector = 1 << 30

// Primary is the node whose transactions a Sender sends.
type Primary interface {
	// Leading returns the cluster and the epoch while this node is the primary. The channel is closed at the end
	// of that time.
	Leading() (cluster string, epoch uint64, over <-chan struct{}, ok bool)
	// All returns the databases in the order of their names.
	All() []*database.DB
	// Find returns the database with a name, or nil.
	Find(name string) *database.DB
}

// Sender serves the replicas of a primary.
type Sender struct {
	Primary  Primary
	Hostname string
	Log      *slog.Logger

	mu        sync.Mutex
	followers map[*follower]struct{}
	news      chan struct{} // the channel of News; nil without waiters
}

// follower is one connected replica.
type follower struct {
	node      uint64
	name      string
	candidate bool
	wake      chan struct{}
	summed    chan struct{} // receives a value when sums has a new element

	mu        sync.Mutex
	dirty     map[string]struct{} // databases with transactions to send
	sums      map[string]vector   // by database: received last, and not used yet
	acked     map[string]ltx.TXID // by database: position of the replica, by which the log is trimmed
	confirmed map[string]ltx.TXID // by database: like acked, and known to be a transaction of the primary
}

func newFollower(h hello) *follower {
	return &follower{
		node: h.Node, name: h.Hostname, candidate: h.Candidate, wake: make(chan struct{}, 1), summed: make(chan struct{}, 1),
		dirty: map[string]struct{}{}, sums: map[string]vector{}, acked: map[string]ltx.TXID{}, confirmed: map[string]ltx.TXID{},
	}
}

// vector is the page checksums of a database on a replica.
type vector struct {
	name     string
	pageSize uint32
	sums     []ltx.Checksum
}

// Changed notifies the replicas of a change. It does not wait.
func (s *Sender) Changed(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.followers {
		f.mu.Lock()
		f.dirty[name] = struct{}{}
		f.mu.Unlock()
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// Count is the number of connected replicas.
func (s *Sender) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.followers)
}

// Needs returns the transaction of a database that all connected replicas have.
func (s *Sender) Needs(name string) ltx.TXID {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := ltx.TXID(math.MaxUint64)
	for f := range s.followers {
		f.mu.Lock()
		all = min(all, f.acked[name])
		f.mu.Unlock()
	}
	return all
}

// ServeHTTP serves one replica until it disconnects or this node is no longer the primary.
func (s *Sender) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor < 2 {
		http.Error(w, "the stream needs HTTP/2", http.StatusUpgradeRequired)
		return
	}
	cluster, epoch, over, ok := s.Primary.Leading()
	if !ok {
		http.Error(w, database.ErrFenced.Error(), http.StatusServiceUnavailable)
		return
	}
	kind, payload, _, err := readFrame(r.Body, nil)
	var h hello
	if err == nil && kind == kindHello {
		err = json.Unmarshal(payload, &h)
	}
	switch {
	case err != nil || kind != kindHello || h.Version != Version:
		http.Error(w, fmt.Sprintf("want a greeting of version %d", Version), http.StatusBadRequest)
		return
	case h.Cluster != "" && h.Cluster != cluster:
		http.Error(w, "the replica belongs to another cluster", http.StatusConflict)
		return
	}
	f := newFollower(h)
	at := map[string]ltx.Pos{}
	for name, text := range h.Positions {
		pos, err := parsePos(text)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		at[name], f.acked[name] = pos, pos.TXID
	}
	s.add(f)
	defer s.remove(f)
	w.Header().Set("Content-Type", ContentType)
	out := newWriter(w, http.NewResponseController(w).Flush)
	if err := errors.Join(out.json(kindWelcome, welcome{cluster, s.Hostname, epoch}), out.send()); err != nil {
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	known := func(name string) bool { return s.Primary.Find(name) != nil }
	go func() { cancel(f.listen(r.Body, known, s.Announce)) }()
	t := &transfer{
		s: s, f: f, out: out, at: at, logs: map[string]*txlog.Reader{}, epochs: map[string]uint64{},
		waiting: map[string]bool{}, differs: map[string]bool{},
	}
	defer t.close()
	if err := t.run(ctx, over); err != nil && context.Cause(ctx) == nil {
		s.Log.Warn("stream to a replica ended", "replica", f.name, "error", err)
		panic(http.ErrAbortHandler)
	}
}

func (s *Sender) add(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.followers == nil {
		s.followers = map[*follower]struct{}{}
	}
	s.followers[f] = struct{}{}
	s.announce()
	s.Log.Info("replica connected", "replica", f.name)
}

func (s *Sender) remove(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.followers, f)
	s.announce()
	s.Log.Info("replica disconnected", "replica", f.name)
}

// errGone ends the stream of a replica that disconnected.
var errGone = errors.New("the replica has gone")

// listen reads frames from the replica, and returns why it ended. It never waits for a frame to be sent, because the
// replica may not read that frame before it has sent all of its own. known reports whether a database exists.
func (f *follower) listen(r io.Reader, known func(name string) bool, acknowledged func()) error {
	var buf []byte
	sums := assembly{limit: maxVector}
	for {
		k, payload, grown, err := readFrame(r, buf)
		if err != nil {
			return errors.Join(errGone, err)
		}
		buf = grown
		switch k {
		case kindAck:
			var p position
			if err := json.Unmarshal(payload, &p); err != nil {
				return err
			}
			pos, err := parsePos(p.Pos)
			if err != nil {
				return err
			}
			f.mu.Lock()
			f.acked[p.Name], f.confirmed[p.Name] = pos.TXID, pos.TXID
			f.mu.Unlock()
			acknowledged()
		case kindSums:
			p, err := parsePart(payload)
			if err != nil {
				return err
			}
			whole, err := sums.add(p)
			if err != nil {
				return err
			}
			if !whole {
				continue
			}
			v, err := parseVector(sums.name, sums.data)
			if err != nil {
				return err
			}
			sums.data = nil
			if known(v.name) {
				f.putSums(v)
			}
		default:
		}
	}
}

// putSums keeps the checksums of a database until they are taken.
func (f *follower) putSums(v vector) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sums[v.name] = v
	select {
	case f.summed <- struct{}{}:
	default:
	}
}

// takeSums removes and returns the checksums of any database. It reports false if there are none.
func (f *follower) takeSums() (vector, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, v := range f.sums {
		delete(f.sums, name)
		return v, true
	}
	return vector{}, false
}

func parseVector(name string, b []byte) (vector, error) {
	if len(b) < 4 || (len(b)-4)%8 != 0 {
		return vector{}, errFrame
	}
	v := vector{name: name, pageSize: binary.BigEndian.Uint32(b), sums: make([]ltx.Checksum, (len(b)-4)/8)}
	for i := range v.sums {
		v.sums[i] = ltx.Checksum(binary.BigEndian.Uint64(b[4+8*i:]))
	}
	return v, nil
}

// transfer sends a replica what it lacks.
type transfer struct {
	s       *Sender
	f       *follower
	out     *writer
	at      map[string]ltx.Pos       // what the replica has or has been sent
	logs    map[string]*txlog.Reader // at those positions
	epochs  map[string]uint64        // by database: sent to the replica last
	waiting map[string]bool          // for the checksums of the replica
	differs map[string]bool          // the replica has another transaction than this node
}

func (t *transfer) close() {
	for _, r := range t.logs {
		_ = r.Close() // it was only read
	}
}

func (t *transfer) run(ctx context.Context, over <-chan struct{}) error {
	for _, db := range t.s.Primary.All() {
		if err := t.advance(db); err != nil {
			return err
		}
	}
	ticker := time.NewTicker(Beat)
	defer ticker.Stop()
	if err := t.beat(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over:
			return errors.Join(t.out.frame(kindEnd), t.out.send())
		case <-t.f.summed:
			for v, ok := t.f.takeSums(); ok; v, ok = t.f.takeSums() {
				if err := t.pages(ctx, v); err != nil {
					return err
				}
			}
		case <-t.f.wake:
			if err := t.changed(); err != nil {
				return err
			}
		case <-ticker.C:
			if err := t.beat(); err != nil {
				return err
			}
		}
	}
}

func (t *transfer) beat() error {
	b := beat{Positions: map[string]string{}}
	for _, db := range t.s.Primary.All() {
		b.Positions[db.Name()] = db.Pos().String()
	}
	return errors.Join(t.out.json(kindBeat, b), t.out.send())
}

// changed sends the new transactions of changed databases.
func (t *transfer) changed() error {
	t.f.mu.Lock()
	dirty := t.f.dirty
	t.f.dirty = map[string]struct{}{}
	t.f.mu.Unlock()
	for name := range dirty {
		if db := t.s.Primary.Find(name); db != nil {
			if err := t.advance(db); err != nil {
				return err
			}
		}
	}
	return t.out.send()
}

// advance sends the transactions of a database that the replica lacks. If the log does not have
// them, it requests the checksums of the replica's pages.
func (t *transfer) advance(db *database.DB) error {
	name := db.Name()
	if t.waiting[name] {
		return nil
	}
	at, ok := t.at[name]
	if !ok {
		at = ltx.Pos{PostApplyChecksum: ltx.ChecksumFlag}
	}
	r := t.logs[name]
	if r == nil {
		if at == db.Pos() {
			t.at[name] = at
			t.f.confirm(name, at.TXID, t.s.Announce)
			return nil
		}
		var err error
		if r, err = db.Log().After(at); err != nil {
			probe, inRange := db.Log().AfterID(at.TXID)
			if inRange == nil {
				_ = probe.Close() // it was not read
			}
			t.differs[name] = inRange == nil
			return t.need(name, err)
		}
		t.logs[name] = r
		t.f.confirm(name, at.TXID, t.s.Announce)
	}
	for {
		b, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return t.need(name, err)
		}
		meta, err := txlog.DecodeMeta(b)
		if err != nil {
			return err
		}
		if epoch := r.Epoch(); t.epochs[name] != epoch {
			if err := t.out.json(kindEpoch, epochOf{name, epoch}); err != nil {
				return err
			}
			t.epochs[name] = epoch
		}
		if err := t.out.parts(kindTx, name, b); err != nil {
			return err
		}
		t.at[name] = meta.Pos()
	}
}

func (t *transfer) need(name string, cause error) error {
	if !errors.Is(cause, txlog.ErrGone) {
		return cause
	}
	if r := t.logs[name]; r != nil {
		_ = r.Close() // it was only read
		delete(t.logs, name)
	}
	t.waiting[name] = true
	t.s.Log.Info("replica needs pages", "replica", t.f.name, "db", name)
	return errors.Join(t.out.parts(kindNeed, name, nil), t.out.send())
}

// pages sends the pages that differ from a replica's.
func (t *transfer) pages(ctx context.Context, v vector) error {
	db := t.s.Primary.Find(v.name)
	if db == nil {
		return nil
	}
	if r := t.logs[v.name]; r != nil {
		_ = r.Close() // it was only read
		delete(t.logs, v.name)
	}
	head := partHead(v.name)
	var number [4]byte
	change, err := db.Copy(ctx, v.pageSize, v.sums, func(page uint32, data []byte) error {
		binary.BigEndian.PutUint32(number[:], page)
		return t.out.frame(kindPages, head, number[:], data)
	})
	if err != nil {
		return err
	}
	t.at[v.name] = change.Pos
	delete(t.waiting, v.name)
	if err := t.out.json(kindPos, position{
		Name: v.name, Pos: change.Pos.String(), PageSize: change.PageSize, Pages: change.Pages, Timestamp: change.Timestamp,
		Epoch: change.Epoch, Chain: database.Chain{History: db.Log().History(), Last: change.Pos.TXID, Differs: t.differs[v.name]},
	}); err != nil {
		return err
	}
	// Commits since then.
	return errors.Join(t.advance(db), t.out.send())
}

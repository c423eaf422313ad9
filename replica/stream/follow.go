package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// Replica is a node that follows a primary.
type Replica interface {
	// Database returns the database with a name. If it does not exist, Database creates an empty one if
	// create is set, and otherwise returns nil.
	Database(name string, create bool) (*database.DB, error)
	// Positions returns the positions of all databases. A checksum of 0 means that the content does not
	// match the position.
	Positions() map[string]ltx.Pos
	// Join checks and records the primary that the node follows. An error ends the connection.
	Join(cluster, hostname string, epoch uint64) error
	// Current returns an error if the node has seen a later epoch.
	Current(epoch uint64) error
	// CaughtUp records that the node had all of the primary's transactions at a time.
	CaughtUp(at time.Time)
}

// Follower connects a replica to its primary.
type Follower struct {
	Replica  Replica
	Client   *http.Client // for HTTP/2
	Node     uint64
	Hostname string
	Cluster  string
	// Candidate says that this node may become the primary. Commits wait only for candidates.
	Candidate bool
}

// Follow follows the primary at a URL until the connection or ctx ends. It always returns an error.
func (f *Follower) Follow(ctx context.Context, url string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, send := io.Pipe()
	defer send.Close()
	// The transport does not notice the end of ctx while it reads the body.
	defer context.AfterFunc(ctx, func() { _ = send.CloseWithError(context.Cause(ctx)) })()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(url, "/")+"/stream", body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", ContentType)
	watch := time.AfterFunc(Silence, func() { cancel(fmt.Errorf("nothing heard for %s", Silence)) })
	defer watch.Stop()
	out := newWriter(send, nil)
	greeted := make(chan error, 1)
	go func() { greeted <- f.greet(out) }()
	resp, err := f.Client.Do(req)
	if err != nil {
		_ = send.CloseWithError(err)
		return errors.Join(err, <-greeted, context.Cause(ctx))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		_ = send.CloseWithError(io.ErrClosedPipe)
		return errors.Join(fmt.Errorf("primary answers %s: %s", resp.Status, bytes.TrimSpace(text)), <-greeted)
	}
	if err := <-greeted; err != nil {
		return err
	}
	r := &reception{
		f: f, out: out, in: bufio.NewReaderSize(resp.Body, 256<<10), watch: watch,
		tx: assembly{limit: txlog.MaxRecord}, spools: map[string]*database.Spool{}, resyncing: map[string]bool{},
		epochs: map[string]uint64{},
	}
	defer r.close()
	err = r.run(ctx)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (f *Follower) greet(out *writer) error {
	h := hello{Version: Version, Node: f.Node, Hostname: f.Hostname, Cluster: f.Cluster, Candidate: f.Candidate, Positions: map[string]string{}}
	for name, pos := range f.Replica.Positions() {
		h.Positions[name] = pos.String()
	}
	return errors.Join(out.json(kindHello, h), out.send())
}

// reception is one connection to a primary.
type reception struct {
	f         *Follower
	out       *writer
	in        *bufio.Reader
	watch     *time.Timer
	buf       []byte
	tx        assembly
	spools    map[string]*database.Spool
	resyncing map[string]bool   // checksums were sent, and not all pages have arrived
	term      uint64            // epoch of the primary
	epochs    map[string]uint64 // epochs of the transactions that follow
}

func (r *reception) close() {
	for _, s := range r.spools {
		_ = s.Close() // the next start removes leftovers
	}
}

// errEnded is returned when the primary has ended the stream.
var errEnded = errors.New("the primary has ended the stream")

func (r *reception) run(ctx context.Context) error {
	for {
		// The timeout covers waiting for the primary, but not the work.
		r.watch.Reset(Silence)
		k, payload, buf, err := readFrame(r.in, r.buf)
		r.watch.Stop()
		if err != nil {
			return err
		}
		r.buf = buf
		if err := r.frame(ctx, k, payload); err != nil {
			return err
		}
		if r.in.Buffered() == 0 {
			if err := r.out.send(); err != nil {
				return err
			}
		}
	}
}

func (r *reception) frame(ctx context.Context, k kind, payload []byte) error {
	switch k {
	case kindWelcome:
		var w welcome
		if err := json.Unmarshal(payload, &w); err != nil {
			return err
		}
		r.term = w.Epoch
		return r.f.Replica.Join(w.Cluster, w.Hostname, w.Epoch)
	case kindEpoch:
		var e epochOf
		if err := json.Unmarshal(payload, &e); err != nil {
			return err
		}
		r.epochs[e.Name] = e.Epoch
		return nil
	case kindTx:
		p, err := parsePart(payload)
		if err != nil {
			return err
		}
		if whole, err := r.tx.add(p); err != nil || !whole {
			return err
		}
		err = r.apply(ctx, r.tx.name, r.tx.data)
		r.tx.data = r.tx.data[:0]
		return err
	case kindNeed:
		p, err := parsePart(payload)
		if err != nil {
			return err
		}
		return r.resync(p.name)
	case kindPages:
		return r.page(payload)
	case kindPos:
		return r.replace(ctx, payload)
	case kindBeat:
		return r.beat(payload)
	case kindEnd:
		return errEnded
	default:
		return nil
	}
}

func (r *reception) database(name string) (*database.DB, error) {
	return r.f.Replica.Database(name, true)
}

// apply applies a transaction, or requests pages if it does not follow the position.
func (r *reception) apply(ctx context.Context, name string, encoded []byte) error {
	if r.resyncing[name] {
		return nil // sent before the primary knew of the resync
	}
	db, err := r.database(name)
	if err != nil {
		return err
	}
	t, err := txlog.Decode(encoded)
	if err != nil {
		return err
	}
	if err := r.f.Replica.Current(r.term); err != nil {
		return err
	}
	if t.NodeID == r.f.Node && db.Has(t.Pos()) {
		// It was committed here, under a right that the primary granted.
		return r.out.json(kindAck, position{Name: name, Pos: t.Pos().String()})
	}
	err = db.Apply(ctx, t, encoded, r.epochs[name])
	if errors.Is(err, database.ErrDiverged) {
		return r.resync(name)
	}
	if err != nil {
		return fmt.Errorf("apply %s of %s: %w", t.MinTXID, name, err)
	}
	return r.out.json(kindAck, position{Name: name, Pos: t.Pos().String()})
}

// resync sends the checksums of a database's pages.
func (r *reception) resync(name string) error {
	if r.resyncing[name] {
		return nil
	}
	db, err := r.database(name)
	if err != nil {
		return err
	}
	if err := db.Absorb(); err != nil {
		return err
	}
	r.resyncing[name] = true
	pageSize, sums := db.Vector()
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+8*len(sums)), pageSize)
	return errors.Join(r.out.parts(kindSums, name, database.PutVector(b, sums)), r.out.send())
}

// page stores a page that differs.
func (r *reception) page(payload []byte) error {
	p, err := parsePart(payload)
	if err != nil {
		return err
	}
	if len(p.data) < 4 {
		return errFrame
	}
	s := r.spools[p.name]
	if s == nil {
		db, err := r.database(p.name)
		if err != nil {
			return err
		}
		if s, err = db.NewSpool(); err != nil {
			return err
		}
		r.spools[p.name] = s
	}
	return s.Add(binary.BigEndian.Uint32(p.data), p.data[4:])
}

// replace replaces the database with the received pages.
func (r *reception) replace(ctx context.Context, payload []byte) error {
	var p position
	if err := json.Unmarshal(payload, &p); err != nil {
		return err
	}
	pos, err := parsePos(p.Pos)
	if err != nil {
		return err
	}
	db, err := r.database(p.Name)
	if err != nil {
		return err
	}
	s := r.spools[p.Name]
	if s == nil {
		if s, err = db.NewSpool(); err != nil {
			return err
		}
	}
	delete(r.spools, p.Name)
	delete(r.resyncing, p.Name)
	defer s.Close()
	if err := r.f.Replica.Current(r.term); err != nil {
		return err
	}
	if err := db.Replace(ctx, s, database.Change{
		Name: p.Name, Pos: pos, PageSize: p.PageSize, Pages: p.Pages, Timestamp: p.Timestamp, Epoch: p.Epoch,
	}, p.Chain); err != nil {
		return fmt.Errorf("replace %s: %w", p.Name, err)
	}
	return r.out.json(kindAck, p)
}

// beat compares the primary's positions with the node's.
func (r *reception) beat(payload []byte) error {
	var b beat
	if err := json.Unmarshal(payload, &b); err != nil {
		return err
	}
	mine := r.f.Replica.Positions()
	for name, pos := range b.Positions {
		if mine[name].String() != pos && pos != "0000000000000000/8000000000000000" {
			return nil
		}
	}
	r.f.Replica.CaughtUp(time.Now())
	return nil
}

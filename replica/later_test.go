package replica_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/lease"
)

// turns is a lease whose terms a test makes.
type turns struct {
	*lease.Static

	mu      sync.Mutex
	term    lease.Term
	changed chan struct{}
}

func (l *turns) Term() (lease.Term, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term, l.changed
}

func (l *turns) Valid(epoch uint64) bool {
	term, _ := l.Term()
	return term.Held && term.Epoch == epoch
}

func (l *turns) turn(t lease.Term) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term = t
	close(l.changed)
	l.changed = make(chan struct{})
}

// heard is a log that reports a message.
type heard struct {
	slog.Handler

	message string
	said    chan struct{}
}

func (h heard) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == h.message {
		select {
		case h.said <- struct{}{}:
		default:
		}
	}
	return h.Handler.Handle(ctx, r)
}

// hear returns an option of a node, and a function that reports whether its log has had a message since the last call.
func hear(message string) (with func(*replica.Config), said func() bool) {
	c := make(chan struct{}, 1)
	with = func(config *replica.Config) { config.Log = slog.New(heard{config.Log.Handler(), message, c}) }
	return with, func() bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
}

// TestRoleWithoutDisk: a node that cannot write its files has no role until it can.
func TestRoleWithoutDisk(t *testing.T) {
	root := t.TempDir()
	identity := filepath.Join(root, "data", "cluster.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(identity), 0o700), os.WriteFile(identity, []byte(`{"node":7,"epoch":1}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	l := &turns{Static: lease.NewStatic(true, lease.Peer{}), changed: make(chan struct{})}
	with, failed := hear("the node cannot take its role yet")
	n := startNode(t, nodeConfig{root: root, capture: replica.Tail, lease: func(string) lease.Lease { return l }, with: with})
	for _, term := range []lease.Term{
		{Epoch: 1, Held: true}, // has to write the cluster
		{Epoch: 2, Held: true}, // has to write the epoch
		{Epoch: 3, Primary: lease.Peer{URL: "http://127.0.0.1:1"}},
	} {
		saved := filepath.Join(root, "saved")
		if err := errors.Join(os.Rename(identity, saved), os.MkdirAll(filepath.Join(identity, "x"), 0o700)); err != nil {
			t.Fatal(err)
		}
		l.turn(term)
		eventually(t, "a failure", failed)
		if n.Writable() || n.Hub().Role().IsPrimary {
			t.Errorf("%+v: the node leads", term)
		}
		if err := errors.Join(os.RemoveAll(identity), os.Rename(saved, identity)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the role", func() bool {
			b, err := os.ReadFile(identity)
			return err == nil && strings.Contains(string(b), `"cluster"`) && n.Info().Epoch == term.Epoch && (n.PrimaryEpoch() == term.Epoch) == term.Held
		})
		failed() // perhaps once more than it was awaited
	}
}

// TestFollowLater: a node whose databases cannot be prepared follows its primary once they can.
func TestFollowLater(t *testing.T) {
	primary := startNode(t, nodeConfig{capture: replica.Tail})
	primary.ready()
	root := t.TempDir()
	journal := filepath.Join(root, "mnt", "app.db-journal")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(root, "data", "log", "app.db"), 0o700), os.MkdirAll(filepath.Dir(journal), 0o700), os.Symlink(journal, journal),
	); err != nil {
		t.Fatal(err)
	}
	with, failed := hear("not connected to the primary")
	n := startNode(t, nodeConfig{root: root, capture: replica.Tail, primary: primary.url, with: with})
	eventually(t, "a failure", failed)
	if err := os.Remove(journal); err != nil {
		t.Fatal(err)
	}
	n.ready()
}

// TestAskMarks: a node that becomes the primary asks a node that has published only a summary, and fetches what it
// lacks.
func TestAskMarks(t *testing.T) {
	other := startNode(t, nodeConfig{})
	other.ready()
	for _, db := range []string{"a.db", "b.db"} {
		other.exec(db, "wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
	}
	marks := map[string]lease.Mark{}
	for _, db := range other.All() {
		epoch, id := db.Mark()
		marks[db.Name()] = lease.Mark{Epoch: epoch, TXID: uint64(id)}
	}
	summary := lease.Summarize(marks)
	l := &turns{Static: lease.NewStatic(true, lease.Peer{}), changed: make(chan struct{})}
	n := startNode(t, nodeConfig{lease: func(string) lease.Lease { return l }})
	l.turn(lease.Term{
		Epoch: 2, Held: true, Heard: []lease.Standing{{Peer: lease.Peer{URL: other.url}, Summary: &summary}},
		Quorum: lease.Quorum{Nodes: []uint64{other.ID(), n.ID()}, Copies: 2},
	})
	n.ready()
	for _, db := range other.All() {
		if got := n.Find(db.Name()); got == nil || got.Pos() != db.Pos() {
			t.Errorf("%s was not fetched", db.Name())
		}
	}
}

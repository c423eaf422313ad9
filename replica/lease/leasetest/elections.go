package leasetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/replica/lease"
)

// Open opens another client of a cluster's store, whose connections Link.Dial makes.
type Open func(l *Link) lease.Store

// Link makes the connections of a node to its store. A test can cut them.
type Link struct {
	mu    sync.Mutex
	away  bool
	conns map[net.Conn]bool
}

// Dial makes a connection, unless the link is cut.
func (l *Link) Dial(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away {
		return nil, errors.New("cut")
	}
	c, err := dial(ctx)
	if err == nil {
		if l.conns == nil {
			l.conns = map[net.Conn]bool{}
		}
		l.conns[c] = true
	}
	return c, err
}

func (l *Link) cut(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = away
	for c := range l.conns {
		c.Close()
		delete(l.conns, c)
	}
}

// Elections tests that nodes elect their primary through the stores that open returns. Each call of open is for
// another cluster.
func Elections(t *testing.T, open func(t *testing.T) Open) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Open){
		"election": election, "handoff": handoff, "away": away, "quorum": quorum, "lost store": lostStore, "records": records,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// ttl is long enough for nodes that stall for a moment: a call of the store may take half of it, and a report in an
// election a fifth.
const ttl = 5 * time.Second

// node is a member of an election.
type node struct {
	*lease.Elected
	Link

	mu      sync.Mutex
	id      uint64
	cluster string
	epoch   uint64
	marks   map[string]lease.Mark
	stop    func() error
	ended   chan struct{}
}

func (n *node) Identity() (uint64, string, uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.id, n.cluster, n.epoch
}

func (n *node) Adopt(cluster string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cluster = cluster
	return nil
}

func (n *node) Marks() map[string]lease.Mark {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.marks
}

func at(epoch, id uint64) map[string]lease.Mark {
	return map[string]lease.Mark{"app.db": {Epoch: epoch, TXID: id}}
}

func start(t *testing.T, open Open, id uint64, candidate bool, marks map[string]lease.Mark, with func(*node)) *node {
	t.Helper()
	n := &node{id: id, marks: marks}
	if with != nil {
		with(n)
	}
	n.Elected = lease.NewElected(lease.Config{
		Store: open(&n.Link), Candidate: candidate, TTL: ttl, LockDelay: 100 * time.Millisecond,
		Self: lease.Peer{Hostname: fmt.Sprint("n", id), URL: fmt.Sprint("http://n", id)}, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	n.ended = make(chan struct{})
	go func() { defer close(n.ended); done <- n.Run(ctx, n) }()
	n.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { n.stop() })
	return n
}

// await waits for a term of a node.
func await(t *testing.T, n *node, what string, ok func(lease.Term) bool) lease.Term {
	t.Helper()
	limit := time.After(patience)
	for {
		term, changed := n.Term()
		if ok(term) {
			return term
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("node %d, timed out: %s; %+v", n.id, what, term)
		}
	}
}

func held(t lease.Term) bool { return t.Held }

func follows(id uint64) func(lease.Term) bool {
	return func(t lease.Term) bool { return !t.Held && t.Primary.Node == id }
}

// election stops the primary: the candidate that is furthest ahead becomes the next one, with a
// greater epoch.
func election(t *testing.T, open Open) {
	a := start(t, open, 1, true, at(0, 5), nil)
	first := await(t, a, "to be the primary", held)
	if !a.Valid(first.Epoch) || a.Valid(first.Epoch-1) {
		t.Error("the term is not valid, or another is")
	}
	b := start(t, open, 2, true, at(first.Epoch, 7), nil)
	c := start(t, open, 3, true, at(first.Epoch, 9), nil)
	d := start(t, open, 4, false, at(first.Epoch, 11), nil)
	for _, n := range []*node{b, c, d} {
		if term := await(t, n, "to follow", follows(1)); term.Epoch != first.Epoch || term.Primary.URL != "http://n1" || n.Valid(term.Epoch) {
			t.Errorf("node %d: %+v", n.id, term)
		}
	}
	a.stop()
	second := await(t, c, "the candidate that is furthest", held)
	if second.Epoch <= first.Epoch || a.Valid(first.Epoch) {
		t.Errorf("epoch %d after %d", second.Epoch, first.Epoch)
	}
	// Nodes that are silent for a fifth of the TTL are missing in Heard.
	for _, heard := range second.Heard {
		if ahead := len(heard.Ahead(c.marks)); ahead > 0 != (heard.Node == 4) {
			t.Errorf("heard %+v", heard)
		}
	}
	await(t, b, "to follow the new one", follows(3))
	await(t, d, "to follow the new one", follows(3))
}

// handoff hands the lease to another node, and gives it up.
func handoff(t *testing.T, open Open) {
	a := start(t, open, 1, true, nil, nil)
	first := await(t, a, "to be the primary", held)
	b := start(t, open, 2, true, nil, nil)
	c := start(t, open, 3, false, nil, nil)
	await(t, b, "to follow", follows(1))
	await(t, c, "to follow", follows(1))
	for _, id := range []uint64{3, 9} {
		if err := a.Handoff(t.Context(), id); err == nil || !a.Valid(first.Epoch) {
			t.Errorf("handed over to %d: %v", id, err)
		}
	}
	if err := b.Handoff(t.Context(), 1); !errors.Is(err, lease.ErrNotHeld) {
		t.Error(err)
	}
	if err := a.Handoff(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if a.Valid(first.Epoch) {
		t.Error("valid after the hand-off")
	}
	second := await(t, b, "to be the primary", held)
	await(t, a, "to follow", follows(2))
	if second.Epoch <= first.Epoch {
		t.Errorf("epoch %d after %d", second.Epoch, first.Epoch)
	}
	if err := b.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if third := await(t, a, "to be the primary again", held); third.Epoch <= second.Epoch {
		t.Errorf("epoch %d after %d", third.Epoch, second.Epoch)
	}
}

// away cuts the primary off from the store: its lease becomes invalid before another takes it, and
// it follows that one later.
func away(t *testing.T, open Open) {
	a := start(t, open, 1, true, nil, nil)
	first := await(t, a, "to be the primary", held)
	b := start(t, open, 2, true, nil, nil)
	await(t, b, "to follow", follows(1))
	a.cut(true)
	second := await(t, b, "to be the primary", func(term lease.Term) bool {
		if term.Held && a.Valid(first.Epoch) {
			t.Error("two nodes are valid")
		}
		return term.Held
	})
	await(t, a, "to know that it lost the lease", func(term lease.Term) bool { return !term.Held })
	a.cut(false)
	if term := await(t, a, "to follow", follows(2)); term.Epoch != second.Epoch {
		t.Errorf("epoch %d, not %d", term.Epoch, second.Epoch)
	}
	// Shorter than the lease.
	b.cut(true)
	b.cut(false)
	await(t, b, "to be the primary", held)
	if !b.Valid(second.Epoch) {
		t.Error("a short cut ended the term")
	}
}

// quorum: a candidate waits for nodes that may have acknowledged transactions, unless it has a
// claim.
func quorum(t *testing.T, open Open) {
	a := start(t, open, 1, true, at(1, 5), nil)
	first := await(t, a, "to be the primary", held)
	b := start(t, open, 2, true, at(1, 5), nil)
	c := start(t, open, 3, true, at(1, 6), nil)
	await(t, b, "to follow", follows(1))
	await(t, c, "to follow", follows(1))
	if err := b.SetQuorum(t.Context(), first.Epoch, lease.Quorum{}); !errors.Is(err, lease.ErrNotHeld) {
		t.Error("a replica changes the quorum: ", err)
	}
	if err := a.SetQuorum(t.Context(), first.Epoch, lease.Quorum{Nodes: []uint64{1, 2, 3}, Copies: 2}); err != nil {
		t.Fatal(err)
	}
	c.stop()
	a.stop()
	// It takes two of three: node 2 alone is not enough, even after longer than an election takes.
	gone := await(t, b, "the primary to go", func(term lease.Term) bool { return term.Primary.Node == 0 })
	select {
	case <-time.After(ttl * 3 / 2):
	case <-changedOf(b):
		t.Errorf("without a quorum: %+v", gone)
	}
	c = start(t, open, 3, true, at(1, 6), nil)
	if term := await(t, c, "to be the primary", held); term.Quorum.Copies != 2 {
		t.Errorf("quorum %+v", term.Quorum)
	}
	await(t, b, "to follow", follows(3))
	c.stop()
	await(t, b, "the primary to go", func(term lease.Term) bool { return term.Primary.Node == 0 })
	if err := b.Claim(); err != nil {
		t.Fatal(err)
	}
	await(t, b, "to be the primary by a claim", held)
}

func changedOf(n *node) <-chan struct{} {
	_, changed := n.Term()
	return changed
}

// lostStore starts nodes that have seen higher epochs than the store has revisions: epochs do not
// restart.
func lostStore(t *testing.T, open Open) {
	a := start(t, open, 1, true, nil, func(n *node) { n.cluster, n.epoch = "LFSC1", 1_000_000 })
	if term := await(t, a, "to be the primary", held); term.Epoch <= 1_000_000 {
		t.Errorf("epoch %d", term.Epoch)
	}
	// A node joins that has seen an even higher epoch.
	a.stop()
	b := start(t, open, 2, true, nil, func(n *node) { n.cluster, n.epoch = "LFSC1", 2_000_000 })
	if term := await(t, b, "to be the primary", held); term.Epoch <= 2_000_000 {
		t.Errorf("epoch %d", term.Epoch)
	}
	c := start(t, open, 3, true, nil, func(n *node) { n.cluster = "LFSC2" })
	select {
	case <-c.ended:
	case <-time.After(patience):
		t.Error("a node of another cluster still runs")
	}
	if err := c.stop(); !errors.Is(err, lease.ErrCluster) {
		t.Error(err)
	}
}

// records checks that a stopped node leaves only records that are meant to outlive it.
func records(t *testing.T, open Open) {
	a := start(t, open, 1, true, nil, nil)
	await(t, a, "to be the primary", held)
	a.stop()
	s := open(&Link{})
	defer s.Close()
	var keys []string
	for key := range read(t.Context(), t, s).Records {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if got := strings.Join(keys, " "); got != "cluster term" {
		t.Error(got)
	}
}

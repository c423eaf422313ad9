// Package lease decides which node of a cluster is the primary: the one whose databases may be written.
//
// A Lease has terms. The number of a term, its epoch, only grows, and so distinguishes late messages of an
// earlier primary from those of the present one. Static is the lease of a cluster whose primary the
// configuration names. Elected elects a primary, and another one if the primary is lost, with records in a
// Store: see the packages etcd and platform.
package lease

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Peer is how other nodes and clients know a node.
type Peer struct {
	Node     uint64 `json:"node,omitempty"` // ID; 0 if it is not known
	Hostname string `json:"hostname"`       // for clients
	URL      string `json:"url"`            // of its HTTP server
}

// Mark is how far a database of a node is: the epoch in which its last transaction was committed, and the ID
// of that transaction. The node with the greater of two marks has every transaction of the other node that
// is still valid.
type Mark struct {
	Epoch uint64 `json:"epoch"`
	TXID  uint64 `json:"txID"`
}

// Before reports whether m is less than o.
func (m Mark) Before(o Mark) bool {
	return m.Epoch < o.Epoch || m.Epoch == o.Epoch && m.TXID < o.TXID
}

// Standing is what a node has published about itself for an election.
type Standing struct {
	Peer
	Candidate bool            `json:"candidate"`
	Marks     map[string]Mark `json:"marks"` // by database; nil with a Summary
	Summary   *Summary        `json:"summary,omitempty"`
}

// Summary stands for Marks that are too long for a store.
type Summary struct {
	Hash string `json:"hash"` // of all marks
	// Total has the highest epoch and the sum of the transaction IDs. Of two nodes, the one with the greater
	// Total is probably ahead.
	Total Mark `json:"total"`
}

// Summarize returns the summary of marks.
func Summarize(marks map[string]Mark) Summary {
	var s Summary
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(marks)) {
		m := marks[name]
		fmt.Fprintf(h, "%q %d %d\n", name, m.Epoch, m.TXID)
		s.Total.Epoch = max(s.Total.Epoch, m.Epoch)
		s.Total.TXID += m.TXID
	}
	s.Hash = hex.EncodeToString(h.Sum(nil))
	return s
}

// Unclear reports whether s may be ahead of marks for databases that only its node can name.
func (s Standing) Unclear(marks map[string]Mark) bool {
	return s.Summary != nil && s.Summary.Hash != Summarize(marks).Hash
}

// leads reports whether s is ahead of marks, and marks are not ahead of s.
func (s Standing) leads(marks map[string]Mark) bool {
	if s.Summary != nil {
		return Summarize(marks).Total.Before(s.Summary.Total)
	}
	return len(s.Ahead(marks)) > 0 && len(Standing{Marks: marks}.Ahead(s.Marks)) == 0
}

// Ahead returns the databases for which s is ahead of marks.
func (s Standing) Ahead(marks map[string]Mark) []string {
	var names []string
	for name, m := range s.Marks {
		if marks[name].Before(m) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Quorum says where acknowledged transactions are: on at least Copies of the Nodes. The zero Quorum, and
// one with a single copy, promise nothing.
type Quorum struct {
	Nodes  []uint64 `json:"nodes"` // IDs
	Copies int      `json:"copies"`
}

// Promises reports whether the quorum says anything about nodes other than the primary.
func (q Quorum) Promises() bool { return q.Copies > 1 }

// Covers reports whether the nodes for which has is true together have every acknowledged transaction: the
// missing nodes are too few to be the only ones with a transaction.
func (q Quorum) Covers(has func(node uint64) bool) bool {
	return !q.Promises() || q.count(has) > len(q.Nodes)-q.Copies
}

// Stores reports whether a transaction may be acknowledged when the nodes for which has is true have it.
func (q Quorum) Stores(has func(node uint64) bool) bool { return q.count(has) >= q.Copies }

func (q Quorum) count(has func(node uint64) bool) int {
	n := 0
	for _, node := range q.Nodes {
		if has(node) {
			n++
		}
	}
	return n
}

// Equal reports whether two quorums have the same nodes and copies.
func (q Quorum) Equal(o Quorum) bool { return q.Copies == o.Copies && slices.Equal(q.Nodes, o.Nodes) }

// Term is a period with one primary, or without any.
type Term struct {
	Epoch   uint64
	Held    bool // by this node
	Primary Peer // the zero Peer if no node is known to be primary
	// Heard are the nodes whose standing counted in the election, if this node has won it. This node must fetch
	// the transactions in which they are ahead of it before it leads, and ask those that are Unclear.
	Heard []Standing
	// Quorum says where acknowledged transactions are when the term begins.
	Quorum Quorum
}

// Member is the node for which a Lease runs.
type Member interface {
	// Identity returns the ID of the node, its cluster, empty if it has never been in one, and the highest epoch
	// that it has seen.
	Identity() (node uint64, cluster string, epoch uint64)
	// Adopt makes the node a member of a cluster. It fails if the node belongs to another one.
	Adopt(cluster string) error
	// Marks returns how far the databases are. After it, the node accepts no transaction of an earlier term.
	Marks() map[string]Mark
}

// Lease is this node's view of the primary.
type Lease interface {
	// Run takes part in elections for a node until ctx ends.
	Run(ctx context.Context, m Member) error
	// Term returns the present term, and a channel that is closed when the term changes.
	Term() (Term, <-chan struct{})
	// Valid reports whether this node may commit at this moment, as the primary of an epoch. It is cheap. If the
	// lease cannot be renewed, Valid becomes false before another node can take the lease.
	Valid(epoch uint64) bool
	// Handoff transfers the lease from this node to another one. Valid is false before the other node has the
	// lease. If the transfer fails, this node may hold the lease again, in a later term. The errors are ErrFixed
	// for a lease that cannot be transferred, and ErrNotHeld if this node does not hold it.
	Handoff(ctx context.Context, to uint64) error
	// Resign gives the lease up. For some time, this node does not take it again. Errors are those of Handoff.
	Resign(ctx context.Context) error
	// Claim makes this node take a lease that no node holds, even if that may lose acknowledged transactions.
	Claim() error
	// SetQuorum records the quorum, on the node that holds the lease. After an error other than ErrNotHeld the
	// quorum may have been recorded or not.
	SetQuorum(ctx context.Context, epoch uint64, q Quorum) error
}

// ErrFixed is returned by operations that would change a fixed primary.
var ErrFixed = errors.New("the primary is fixed by the configuration")

// ErrNotHeld is returned by operations that need the lease.
var ErrNotHeld = errors.New("this node does not hold the lease")

// NewClusterID returns the ID of a new cluster.
func NewClusterID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("LFSC%X", b)
}

// Static is the lease of a cluster with a fixed primary.
type Static struct{ term Term }

// NewStatic returns the lease of a node that is always the primary if held, and otherwise always follows
// primary.
func NewStatic(held bool, primary Peer) *Static {
	return &Static{Term{Epoch: 1, Held: held, Primary: primary}}
}

// Run implements Lease.
func (*Static) Run(ctx context.Context, _ Member) error {
	<-ctx.Done()
	return nil
}

// Term implements Lease.
func (s *Static) Term() (Term, <-chan struct{}) { return s.term, nil }

// Valid implements Lease.
func (s *Static) Valid(epoch uint64) bool { return s.term.Held && epoch == s.term.Epoch }

// Handoff implements Lease.
func (*Static) Handoff(context.Context, uint64) error { return ErrFixed }

// Resign implements Lease.
func (*Static) Resign(context.Context) error { return ErrFixed }

// Claim implements Lease.
func (*Static) Claim() error { return ErrFixed }

// SetQuorum implements Lease. It does nothing, because only elections need the quorum.
func (*Static) SetQuorum(context.Context, uint64, Quorum) error { return nil }

// Package lease says which node of a cluster is the primary: the one whose databases may be written.
//
// A Lease has terms. Each has a number, its epoch, that only grows, so that late messages of an earlier primary
// are told from those of the present one. Static is the lease of a cluster whose primary the configuration
// names; Elected elects one, and another when that one is lost, by records in a Store: see the packages etcd
// and platform.
package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
)

// Peer is a node as others know it.
type Peer struct {
	Node     uint64 `json:"node,omitempty"` // its ID; 0 if it is not known
	Hostname string `json:"hostname"`       // what its users know it by
	URL      string `json:"url"`            // where it serves its stream
}

// Mark is how far a database of a node is: the epoch in which its last transaction was committed, and the ID of
// that transaction. Of two marks of one database the greater one has what the other has, or what counts.
type Mark struct {
	Epoch uint64 `json:"epoch"`
	TXID  uint64 `json:"txID"`
}

// Before reports whether o is further than m.
func (m Mark) Before(o Mark) bool {
	return m.Epoch < o.Epoch || m.Epoch == o.Epoch && m.TXID < o.TXID
}

// Standing is a node as it was known in an election.
type Standing struct {
	Peer
	Candidate bool            `json:"candidate"`
	Marks     map[string]Mark `json:"marks"` // by database
}

// Ahead returns the databases of which s has more than marks.
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

// Quorum says where transactions are that were acknowledged to programs: on Copies of the Nodes at least. The
// zero Quorum, and one of a single copy, promise nothing.
type Quorum struct {
	Nodes  []uint64 `json:"nodes"` // IDs
	Copies int      `json:"copies"`
}

// Promises reports whether the quorum says anything about nodes other than the primary.
func (q Quorum) Promises() bool { return q.Copies > 1 }

// Covers reports whether the nodes for which has is true have every acknowledged transaction between them: those
// that are missing are too few to have one to themselves.
func (q Quorum) Covers(has func(node uint64) bool) bool {
	return !q.Promises() || q.count(has) > len(q.Nodes)-q.Copies
}

// Stores reports whether a transaction that the nodes have for which has is true is on enough of them to be
// acknowledged.
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

// Term is one time for which a node is primary.
type Term struct {
	Epoch   uint64
	Held    bool // by this node
	Primary Peer // the zero Peer if no node is known to be primary
	// Heard are the nodes whose standing counted in the election, if this node has won it. It must not lead
	// before it has of each what that one has more.
	Heard []Standing
	// Quorum is where acknowledged transactions are when the term begins.
	Quorum Quorum
}

// Member is the node that a Lease is of.
type Member interface {
	// Identity returns the ID of the node, the cluster that it belongs to, empty if it has been in none, and the
	// highest epoch that it has seen.
	Identity() (node uint64, cluster string, epoch uint64)
	// Adopt makes the node one of a cluster. It fails if the node belongs to another one.
	Adopt(cluster string) error
	// Marks returns how far the databases are. No transaction of an earlier term is received after it.
	Marks() map[string]Mark
}

// Lease is this node's view of the primary.
type Lease interface {
	// Run keeps the lease for a node until ctx ends.
	Run(ctx context.Context, m Member) error
	// Term returns the present term, and a channel that is closed when there is another.
	Term() (Term, <-chan struct{})
	// Valid reports whether this node may commit at this moment, as primary of an epoch. It is cheap, and
	// becomes false by itself when the lease cannot be renewed, before another node can have it.
	Valid(epoch uint64) bool
	// Handoff gives the lease that this node holds to another one. From the call on Valid is false, unless
	// Handoff fails. It returns ErrFixed if there is none to give, and ErrNotHeld if this node has it not.
	Handoff(ctx context.Context, to uint64) error
	// Resign gives the lease up. This node lets others have it first. Errors are those of Handoff.
	Resign(ctx context.Context) error
	// Claim has this node take a lease that no node holds, even if acknowledged transactions may be lost by that.
	Claim() error
	// SetQuorum changes where acknowledged transactions are, from the node that holds the lease. An error leaves
	// open whether it was changed.
	SetQuorum(ctx context.Context, epoch uint64, q Quorum) error
}

// ErrFixed is returned for a change of a lease that does not change hands.
var ErrFixed = errors.New("the primary is fixed by the configuration")

// ErrNotHeld is returned by operations that need the lease.
var ErrNotHeld = errors.New("this node does not hold the lease")

// NewClusterID returns the ID of a new cluster.
func NewClusterID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("LFSC%X", b)
}

// Static is the lease of a cluster whose primary is fixed.
type Static struct{ term Term }

// NewStatic returns the lease of a node that is the primary permanently, or follows another permanently.
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

// SetQuorum implements Lease. Without elections nothing is to be remembered.
func (*Static) SetQuorum(context.Context, uint64, Quorum) error { return nil }

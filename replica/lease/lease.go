// Package lease says which node of a cluster is the primary: the one whose databases may be written.
//
// A Lease has terms. Each has a number, its epoch, that only grows, so that what an earlier primary
// sends late can be told from what the present one does.
package lease

import (
	"context"
	"errors"
)

// Peer is a node as others know it.
type Peer struct {
	Hostname string // what its users know it by
	URL      string // where it serves its stream
}

// Term is one time for which a node is primary.
type Term struct {
	Epoch   uint64
	Held    bool // by this node
	Primary Peer // the zero Peer if no node is known to be primary
}

// Lease is this node's view of who is primary.
type Lease interface {
	// Run keeps the lease until ctx ends.
	Run(ctx context.Context) error
	// Term returns the present term, and a channel that is closed when there is another.
	Term() (Term, <-chan struct{})
	// Valid reports whether this node may commit at this moment. It is cheap, and becomes false by
	// itself when the lease cannot be renewed, before another node can have it.
	Valid() bool
	// Handoff gives the lease to another node. It returns ErrFixed if there is none to give.
	Handoff(ctx context.Context, to string) error
}

// ErrFixed is returned for a change of a lease that does not change hands.
var ErrFixed = errors.New("the primary is fixed by the configuration")

// Static is the lease of a cluster whose primary is fixed.
type Static struct{ term Term }

// NewStatic returns the lease of a node that is the primary for ever, or follows another for ever.
func NewStatic(held bool, primary Peer) *Static {
	return &Static{Term{Epoch: 1, Held: held, Primary: primary}}
}

// Run implements Lease.
func (*Static) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Term implements Lease.
func (s *Static) Term() (Term, <-chan struct{}) { return s.term, nil }

// Valid implements Lease.
func (s *Static) Valid() bool { return s.term.Held }

// Handoff implements Lease.
func (*Static) Handoff(context.Context, string) error { return ErrFixed }

package lease

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Keys below the prefix of a cluster.
const (
	keyCluster = "cluster" // clusterRecord; made once
	keyPrimary = "primary" // Peer; with the lease of the holder
	keyTerm    = "term"    // termRecord; changes with each change of the primary, and when one resigns
	keyQuorum  = "quorum"  // Quorum
	keyNode    = "node/"   // nodeRecord by ID; with the lease of the node
	nodeDigits = "%016x"   // of an ID in a key
)

// clusterRecord says which cluster the keys are of. Epochs are Base and the revision of the primary's key: a base
// that is not 0 makes them greater than those of an etcd that was lost.
type clusterRecord struct {
	ID   string `json:"id"`
	Base uint64 `json:"base,omitempty"`
}

// termRecord is of the last change of the primary. Its revision names the time without a primary that may follow.
type termRecord struct {
	Peer
	Resigned bool `json:"resigned,omitempty"` // it holds no lease any more, and has not committed since
}

// nodeRecord is a node that is alive.
type nodeRecord struct {
	Standing
	// Vacancy is 1 more than the revision of the termRecord after which this node saw no primary, and received no
	// transaction of the one before. Marks are of that time.
	Vacancy int64 `json:"vacancy,omitempty"`
}

// view is what is in etcd.
type view struct {
	cluster    clusterRecord
	primary    Peer
	primaryRev int64 // 0: there is no primary
	primaryOf  int64 // its lease
	term       termRecord
	termRev    int64
	quorum     Quorum
	nodes      map[uint64]liveNode
}

type liveNode struct {
	nodeRecord
	lease int64
}

func newView() *view { return &view{nodes: map[uint64]liveNode{}} }

// epoch is that of the primary.
func (v *view) epoch() uint64 { return v.cluster.Base + uint64(v.primaryRev) }

// set notes a key that was put. name is the key without the prefix.
func (v *view) set(name string, kv *mvccpb.KeyValue) error {
	var err error
	switch name {
	case keyCluster:
		err = json.Unmarshal(kv.Value, &v.cluster)
	case keyPrimary:
		v.primary = Peer{}
		err = json.Unmarshal(kv.Value, &v.primary)
		v.primaryRev, v.primaryOf = kv.ModRevision, kv.Lease
	case keyTerm:
		v.term = termRecord{}
		err = json.Unmarshal(kv.Value, &v.term)
		v.termRev = kv.ModRevision
	case keyQuorum:
		v.quorum = Quorum{}
		err = json.Unmarshal(kv.Value, &v.quorum)
	default:
		id, ok := parseNode(name)
		if !ok {
			return nil
		}
		n := liveNode{lease: kv.Lease}
		err = json.Unmarshal(kv.Value, &n.nodeRecord)
		v.nodes[id] = n
	}
	if err != nil {
		return fmt.Errorf("etcd key %s: %w", name, err)
	}
	return nil
}

// remove notes a key that was deleted.
func (v *view) remove(name string) {
	switch name {
	case keyPrimary:
		v.primary, v.primaryRev, v.primaryOf = Peer{}, 0, 0
	default:
		if id, ok := parseNode(name); ok {
			delete(v.nodes, id)
		}
	}
}

func parseNode(name string) (uint64, bool) {
	hex, ok := strings.CutPrefix(name, keyNode)
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseUint(hex, 16, 64)
	return id, err == nil
}

// poll is what the candidates of a vacancy know of each other.
type poll struct {
	heard   []Standing // of the other nodes, since the vacancy began
	missing bool       // a node that is alive has not said anything yet
	ahead   bool       // a candidate is further than this node, and this node is not further than it
	covered bool       // no acknowledged transaction can be missed
}

// poll counts for the node of an ID, which is at marks.
func (v *view) poll(me uint64, marks map[string]Mark) poll {
	p := poll{}
	has := map[uint64]bool{me: true}
	for id, n := range v.nodes {
		if id == me {
			continue
		}
		if n.Vacancy != v.termRev+1 {
			p.missing = true
			continue
		}
		has[id] = true
		p.heard = append(p.heard, n.Standing)
		mine := Standing{Marks: marks}
		if n.Candidate && len(n.Ahead(marks)) > 0 && len(mine.Ahead(n.Marks)) == 0 {
			p.ahead = true
		}
	}
	p.covered = v.quorum.Covers(func(node uint64) bool { return has[node] })
	return p
}

package lease

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Keys of the records of a cluster.
const (
	keyCluster = "cluster" // clusterRecord; created once
	keyPrimary = "primary" // Peer; belongs to the holder's session
	keyTerm    = "term"    // termRecord; changes with each change of the primary, and when one resigns
	keyQuorum  = "quorum"  // Quorum
	keyNode    = "node/"   // nodeRecord by ID; belongs to the node's session
	nodeDigits = "%016x"   // format of an ID in a key
)

// nodeKey is the key of a node's record.
func nodeKey(id uint64) string { return keyNode + fmt.Sprintf(nodeDigits, id) }

// clusterRecord names the cluster of the records. An epoch is Base plus the revision of the
// primary's record. A Base other than 0 makes epochs greater than those of a lost store.
type clusterRecord struct {
	ID   string `json:"id"`
	Base uint64 `json:"base,omitempty"`
}

// termRecord is the last change of the primary. Its revision identifies the vacancy that follows it.
type termRecord struct {
	Peer
	Resigned bool `json:"resigned,omitempty"` // the primary gave up the lease, so no node need wait for it to expire
}

// nodeRecord is a live node.
type nodeRecord struct {
	Standing
	// Vacancy identifies the vacancy for which Marks were reported: it is 1 more than the revision of the
	// termRecord. The node has accepted no transactions of the previous primary since then.
	Vacancy int64 `json:"vacancy,omitempty"`
}

// view is the content of the records.
type view struct {
	cluster    clusterRecord
	primary    Peer
	primaryRev int64  // 0: no primary
	primaryOf  string // its session
	term       termRecord
	termRev    int64
	quorum     Quorum
	nodes      map[uint64]liveNode
}

type liveNode struct{ nodeRecord }

func newView(of Snapshot) (*view, error) {
	v := &view{nodes: map[uint64]liveNode{}}
	for key, r := range of.Records {
		if err := v.set(key, r); err != nil {
			return nil, fmt.Errorf("record %s: %w", key, err)
		}
	}
	return v, nil
}

// epoch is the primary's epoch.
func (v *view) epoch() uint64 { return v.cluster.Base + uint64(v.primaryRev) }

// set updates a record.
func (v *view) set(key string, r Record) error {
	value := []byte(r.Value)
	switch key {
	case keyCluster:
		return json.Unmarshal(value, &v.cluster)
	case keyPrimary:
		v.primaryRev, v.primaryOf = r.Revision, r.Session
		return json.Unmarshal(value, &v.primary)
	case keyTerm:
		v.termRev = r.Revision
		return json.Unmarshal(value, &v.term)
	case keyQuorum:
		return json.Unmarshal(value, &v.quorum)
	}
	id, ok := parseNode(key)
	if !ok {
		return nil
	}
	var n liveNode
	err := json.Unmarshal(value, &n.nodeRecord)
	v.nodes[id] = n
	return err
}

func parseNode(name string) (uint64, bool) {
	hex, ok := strings.CutPrefix(name, keyNode)
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseUint(hex, 16, 64)
	return id, err == nil
}

// poll is what a candidate knows about the other nodes during a vacancy.
type poll struct {
	heard   []Standing // of the other nodes since the vacancy began
	missing bool       // a live node has not reported yet
	ahead   bool       // a candidate is ahead of this node, and this node is not ahead of it
	covered bool       // no acknowledged transaction can be missed
}

// poll evaluates the view for the node me, whose databases are at marks.
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
		if n.Candidate && n.leads(marks) {
			p.ahead = true
		}
	}
	p.covered = v.quorum.Covers(func(node uint64) bool { return has[node] })
	return p
}

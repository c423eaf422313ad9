package replica

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/stream"
)

// Bounds of the pause between attempts to connect to the primary. Jitter of up to the same length
// is added.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// follow follows a primary until ctx ends.
func (n roles) follow(ctx context.Context, primary lease.Peer) {
	transport := n.newTransport()
	defer transport.CloseIdleConnections()
	backoff := minBackoff
	for ctx.Err() == nil {
		side := &follower{Node: n.Node, peer: primary}
		err := n.settle(ctx)
		if err == nil {
			err = n.connect(ctx, side, transport)
		}
		if side.joined {
			backoff = minBackoff
			n.connected(lease.Peer{})
		}
		if ctx.Err() != nil {
			return
		}
		n.c.Log.Warn("not connected to the primary", "primary", primary.URL, "error", err)
		jitter := rand.N(backoff) //nolint:gosec // spreads load; not a secret
		if pause.For(ctx, backoff+jitter) != nil {
			return
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// connect follows a primary until the connection or ctx ends. It always returns an error.
func (n roles) connect(ctx context.Context, side *follower, transport *http.Transport) error {
	n.mu.Lock()
	f := stream.Follower{
		Replica: side, Client: &http.Client{Transport: transport},
		Node: n.id.Node, Hostname: n.c.Hostname, Cluster: n.id.Cluster, Candidate: n.c.Candidate,
	}
	n.mu.Unlock()
	connection, end := context.WithCancel(ctx)
	defer end()
	n.endConnection.Store(&end)
	return f.Follow(connection, side.peer.URL)
}

// settle prepares the databases for transactions of a primary.
func (n roles) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for _, db := range n.All() {
		if err := db.Settle(ctx); err != nil {
			return fmt.Errorf("database %s: %w", db.Name(), err)
		}
	}
	return nil
}

// reconnect closes the connection to the primary, so that a new one is opened.
func (n *Node) reconnect() {
	if end := n.endConnection.Load(); end != nil {
		(*end)()
	}
}

// settleTimeout bounds the wait for programs that have a database open, before a replica connects.
const settleTimeout = time.Second

func (n *Node) newTransport() *http.Transport {
	var p http.Protocols
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols:           &p,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: stream.Silence, PingTimeout: stream.Silence},
		TLSHandshakeTimeout: stream.Silence,
		TLSClientConfig:     n.c.TLS.Clone(),
		DialContext:         n.c.Dial,
	}
}

// follower implements the interfaces of package stream during one connection.
type follower struct {
	*Node

	peer   lease.Peer
	joined bool
}

// Positions implements stream.Replica.
func (f *follower) Positions() map[string]ltx.Pos {
	all := map[string]ltx.Pos{}
	for _, db := range f.All() {
		pos := db.Pos()
		if diverged, _ := db.Diverged(); diverged {
			pos.PostApplyChecksum = 0
		}
		all[db.Name()] = pos
	}
	return all
}

// Join implements stream.Replica.
func (f *follower) Join(cluster, hostname string, epoch uint64) error {
	n := f.Node
	n.mu.Lock()
	if n.id.Cluster != "" && n.id.Cluster != cluster {
		mine := n.id.Cluster
		n.mu.Unlock()
		return fmt.Errorf("the primary belongs to cluster %s, and this node to %s", cluster, mine)
	}
	if epoch < n.id.Epoch {
		mine := n.id.Epoch
		n.mu.Unlock()
		return fmt.Errorf("the primary has epoch %d, but this node has seen %d", epoch, mine)
	}
	err := n.identify(cluster, epoch)
	n.mu.Unlock()
	if err != nil {
		return err
	}
	for _, db := range n.All() {
		db.SetEpoch(epoch)
	}
	f.joined = true
	if hostname == "" {
		hostname = f.peer.Hostname
	}
	n.connected(lease.Peer{Hostname: hostname, URL: f.peer.URL})
	return nil
}

// Current implements stream.Replica.
func (f *follower) Current(epoch uint64) error {
	if latest := f.epoch(); epoch < latest {
		return fmt.Errorf("the primary has epoch %d, older than %d", epoch, latest)
	}
	return nil
}

// CaughtUp implements stream.Replica.
func (f *follower) CaughtUp(at time.Time) {
	n := f.Node
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard, n.followed = at, true
	n.once.Do(func() { close(n.ready) })
}

// Leading implements stream.Primary.
func (n *Node) Leading() (string, uint64, <-chan struct{}, bool) {
	term, over := n.c.Lease.Term()
	if !n.Writable() || term.Epoch != n.leading.Load() {
		return "", 0, nil, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.id.Cluster, n.id.Epoch, over, true
}

// published is called after each change of a database.
func (n *Node) published(c database.Change) {
	n.hub.Publish(c)
	n.sender.Changed(c.Name)
	n.observers.notify()
}

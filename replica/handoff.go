package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/stream"
)

// HandoffTimeout bounds a hand-off, including the wait for current writers and for the other node to
// catch up.
const HandoffTimeout = 10 * time.Second

// Errors of Handoff and Promote.
var (
	ErrNoCandidate  = errors.New("no candidate that has all transactions is connected")
	ErrNotCandidate = errors.New("this node is not a candidate")
	ErrNoPrimary    = errors.New("no primary is known")
)

// Handoff makes another node the primary, without loss. It lets no program begin to write, waits until
// current writers are done and the other node has caught up, and transfers the lease. to is the other
// node's ID or hostname; empty means any candidate. Handoff returns its hostname. The errors are
// ErrNoCandidate, lease.ErrFixed, those of lease.Lease.Handoff, and database.ErrFenced if this node is
// not the primary.
func (n *Node) Handoff(ctx context.Context, to string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, HandoffTimeout)
	defer cancel()
	if !n.Writable() {
		return "", database.ErrFenced
	}
	if n.fixed() {
		return "", lease.ErrFixed
	}
	// Without any candidate there is no reason to block writers.
	if _, err := (transfer{n}).successor(to, nil); err != nil {
		return "", err
	}
	n.holds.Add(1)
	defer n.holds.Add(-1)
	marks, err := transfer{n}.quiet(ctx)
	if err != nil {
		return "", err
	}
	for {
		news := n.sender.News()
		target, err := transfer{n}.successor(to, marks)
		if err == nil {
			if err := n.c.Lease.Handoff(ctx, target.Node); err != nil {
				return "", err
			}
			n.c.Log.Info("handed over", "to", target.Hostname)
			return target.Hostname, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return "", err
		}
	}
}

// transfer moves the lease from one node to another.
type transfer struct{ *Node }

// successor returns a connected candidate that has all of marks.
func (n transfer) successor(to string, marks map[string]ltx.TXID) (stream.Connected, error) {
	for _, f := range n.sender.Followers(marks) {
		if f.Candidate && (to == "" || to == f.Hostname || strings.EqualFold(to, fmt.Sprintf("%016X", f.Node))) {
			return f, nil
		}
	}
	return stream.Connected{}, ErrNoCandidate
}

// quiet waits until no program writes, and returns the positions of the databases. The caller keeps
// programs from beginning to write.
func (n transfer) quiet(ctx context.Context) (map[string]ltx.TXID, error) {
	marks := map[string]ltx.TXID{}
	for _, db := range n.All() {
		if err := n.quietOf(ctx, db); err != nil {
			return nil, err
		}
		marks[db.Name()] = db.Pos().TXID
	}
	return marks, nil
}

func (n transfer) quietOf(ctx context.Context, db *database.DB) error {
	for !n.captures().Quiet(db.Name()) {
		if err := pause.For(ctx, 2*time.Millisecond); err != nil {
			return fmt.Errorf("a program does not end its transaction of %s: %w", db.Name(), err)
		}
	}
	if n.strict {
		return nil
	}
	return db.CaptureWAL(true)
}

// Retire gives up the role of the primary before the node stops. It hands over if it can, and otherwise
// resigns, so that another node need not wait until the lease expires. It does nothing on a replica, or
// with a fixed primary.
func (n *Node) Retire(ctx context.Context) error {
	if !n.Writable() || n.fixed() {
		return nil
	}
	_, err := n.Handoff(ctx, "")
	if err == nil {
		return nil
	}
	if !errors.Is(err, ErrNoCandidate) {
		n.c.Log.Warn("not handed over", "error", err)
	}
	n.holds.Add(1)
	defer n.holds.Add(-1)
	if _, err := (transfer{n}).quiet(ctx); err != nil {
		return err
	}
	err = n.c.Lease.Resign(ctx)
	if errors.Is(err, lease.ErrNotHeld) {
		return nil
	}
	return err
}

// Promote makes this node the primary, and waits until it is. It asks the present primary to hand over.
// If there is none, it needs force: the node then takes the lease even if unreachable nodes have
// acknowledged transactions that it lacks, which are lost. The errors are ErrNotCandidate,
// ErrNoPrimary, lease.ErrFixed, and the refusal of the primary.
func (n *Node) Promote(ctx context.Context, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*HandoffTimeout)
	defer cancel()
	switch {
	case n.Writable():
		return nil
	case !n.c.Candidate:
		return ErrNotCandidate
	case n.fixed():
		return lease.ErrFixed
	}
	term, _ := n.c.Lease.Term()
	switch {
	case term.Primary.URL != "":
		if err := (transfer{n}).askHandoff(ctx, term.Primary); err != nil {
			return err
		}
	case force:
		if err := n.c.Lease.Claim(); err != nil {
			return err
		}
	default:
		return ErrNoPrimary
	}
	return transfer{n}.awaitPrimary(ctx)
}

// awaitPrimary waits until programs may begin to write on this node.
func (n transfer) awaitPrimary(ctx context.Context) error {
	for !n.Writable() || !n.hub.Role().IsPrimary {
		if err := pause.For(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("not the primary yet: %w", err)
		}
	}
	return nil
}

func (n transfer) askHandoff(ctx context.Context, primary lease.Peer) error {
	query := url.Values{"nodeID": {fmt.Sprintf("%016X", n.ID())}}
	if _, err := n.ask(ctx, primary, http.MethodPost, "/handoff", query, nil); err != nil {
		return fmt.Errorf("ask the primary: %w", err)
	}
	return nil
}

func (n endpoints) serveHandoff(w http.ResponseWriter, r *http.Request) {
	to, err := n.Handoff(r.Context(), cmp.Or(r.URL.Query().Get("nodeID"), r.URL.Query().Get("node")))
	if err != nil {
		n.refuse(w, err)
		return
	}
	answerName(w, to)
}

func (n endpoints) servePromote(w http.ResponseWriter, r *http.Request) {
	if err := n.Promote(r.Context(), r.URL.Query().Get("force") == "true"); err != nil {
		n.refuse(w, err)
		return
	}
	answerName(w, n.c.Hostname)
}

// answerName responds with the name of the primary.
func answerName(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = io.WriteString(w, name+"\n") //nolint:gosec // plain text, which browsers do not sniff; the client may be gone
}

// refuse responds with the reason why a role does not change.
func (n endpoints) refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, lease.ErrFixed), errors.Is(err, ErrNotCandidate), errors.Is(err, ErrNoCandidate):
		status = http.StatusConflict
	case errors.Is(err, database.ErrFenced), errors.Is(err, lease.ErrNotHeld), errors.Is(err, ErrNoPrimary), errors.Is(err, ErrNotSynced):
		status = http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	}
	http.Error(w, err.Error(), status)
}

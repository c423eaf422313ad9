package replica

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/lease"
)

// forward is this replica's right, granted by the primary, to write to a database.
type forward struct {
	id      string
	epoch   uint64
	primary lease.Peer
	expires time.Time
	sent    ltx.Pos // last position that was sent to the primary
}

// forwards are the rights of a node.
type forwards struct {
	mu   sync.Mutex
	held map[string]forward // by database
}

// haltMargin is how much earlier this node considers the right expired than the primary does.
const haltMargin = 5 * time.Second

// forwarding returns the right to write to a database, if this node holds it.
func (n *Node) forwarding(db string) (forward, bool) {
	n.forwards.mu.Lock()
	f, ok := n.forwards.held[db]
	n.forwards.mu.Unlock()
	return f, ok && time.Now().Before(f.expires) && f.epoch == n.epoch()
}

// programs is the node as local programs see it through the mount.
type programs struct{ *Node }

// Writes implements mount.Databases.
func (n programs) Writes(db *database.DB) bool {
	if n.Writable() {
		return true
	}
	_, ok := n.forwarding(db.Name())
	return ok
}

// Halt implements mount.Databases. On a replica it takes the halt lock of the primary, and waits
// until this node has caught up with the primary.
func (n programs) Halt(ctx context.Context, db *database.DB) error {
	if n.Writable() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, HaltTimeout)
	defer cancel()
	primary, self, ok := n.PrimaryPeer()
	if self || !ok {
		return ErrNoPrimary
	}
	name := db.Name()
	f := forward{id: rand.Text(), primary: primary, expires: time.Now().Add(HaltTTL - haltMargin)}
	b, err := n.ask(ctx, primary, http.MethodPost, "/halt", url.Values{"name": {name}, "id": {f.id}}, nil)
	if err != nil {
		return err
	}
	var l Halted
	if err := json.Unmarshal(b, &l); err != nil {
		return fmt.Errorf("halt lock: %w", err)
	}
	f.epoch = l.Epoch
	if err := n.reach(ctx, db, l.Pos); err != nil {
		n.unhalt(ctx, name, f)
		return err
	}
	f.sent = db.Pos()
	n.forwards.mu.Lock()
	n.forwards.held[name] = f
	n.forwards.mu.Unlock()
	return nil
}

// reach waits until a database is at the position of a halt lock.
func (n programs) reach(ctx context.Context, db *database.DB, pos HaltedPos) error {
	id, err := ltx.ParseTXID(pos.TXID)
	if err != nil {
		return err
	}
	if err := n.WaitTXID(ctx, db.Name(), id); err != nil {
		return fmt.Errorf("wait for the position of the primary: %w", err)
	}
	if at := db.Pos(); at.String() != pos.TXID+"/"+pos.Checksum {
		return fmt.Errorf("%w: at %s, the primary at %s/%s", database.ErrDiverged, at, pos.TXID, pos.Checksum)
	}
	return nil
}

// Unhalt implements mount.Databases.
func (n programs) Unhalt(ctx context.Context, db *database.DB) {
	n.forwards.mu.Lock()
	f, ok := n.forwards.held[db.Name()]
	delete(n.forwards.held, db.Name())
	n.forwards.mu.Unlock()
	if ok {
		n.unhalt(ctx, db.Name(), f)
	}
}

// unhalt releases the primary's lock. If that fails, the lock expires.
func (n programs) unhalt(ctx context.Context, db string, f forward) {
	err := finish.Do(ctx, HaltTimeout/5, func(ctx finish.Context) error {
		_, err := n.ask(ctx, f.primary, http.MethodDelete, "/halt", url.Values{"name": {db}, "id": {f.id}}, nil)
		return err
	})
	if err != nil {
		n.c.Log.Warn("the halt lock was not released", "db", db, "error", err)
	}
}

// send sends the primary the transactions that were committed here under the right to write.
func (n programs) send(ctx context.Context, db *database.DB, f forward) error {
	name := db.Name()
	r, err := db.Log().After(f.sent)
	if err != nil {
		return err
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(ctx, HaltTimeout)
	defer cancel()
	for {
		b, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			_, err = n.ask(ctx, f.primary, http.MethodPost, "/tx",
				url.Values{"name": {name}, "lockID": {f.id}, "epoch": {fmt.Sprint(f.epoch)}}, b)
		}
		if err != nil {
			// A new connection puts transactions aside that the primary lacks.
			n.forwards.mu.Lock()
			delete(n.forwards.held, name)
			n.forwards.mu.Unlock()
			n.reconnect()
			return fmt.Errorf("send a transaction of %s to the primary: %w", name, err)
		}
	}
	f.sent = db.Pos()
	n.forwards.mu.Lock()
	if held, ok := n.forwards.held[name]; ok && held.id == f.id {
		n.forwards.held[name] = f
	}
	n.forwards.mu.Unlock()
	return nil
}

// maxAnswer bounds the response of another node, in bytes.
const maxAnswer = 64 << 10

// ask sends a request to another node, and returns the response if it succeeded.
func (n *Node) ask(ctx context.Context, node lease.Peer, method, path string, query url.Values, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(node.URL, "/")+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	transport := n.newTransport()
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s: %s", node.URL, resp.Status, bytes.TrimSpace(b))
	}
	return b, nil
}

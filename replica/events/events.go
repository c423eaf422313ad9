// Package events streams the changes of a node's databases to its subscribers, as lines of JSON: each
// transaction, and each change of the primary.
//
// The first event of a subscription has the current state. Every later change follows exactly once.
// Events of a database are in the order of its transactions. A subscriber that does not keep up is
// disconnected, so that it notices that it has missed events.
package events

import (
	"encoding/json"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
)

// Limits of a Hub.
const (
	Buffer         = 1024 // events that wait for one subscriber
	MaxSubscribers = 256
)

// Role says whether a node is the primary, and if not, to which primary it is connected.
type Role struct {
	IsPrimary bool   `json:"isPrimary"`
	Hostname  string `json:"hostname,omitempty"`
}

// Position is the position of a database in an event.
type Position struct {
	TXID     ltx.TXID     `json:"txID"`
	Checksum ltx.Checksum `json:"postApplyChecksum"`
}

type event struct {
	Type string `json:"type"`
	DB   string `json:"db,omitempty"`
	Data any    `json:"data"`
}

type initData struct {
	Role
	Positions map[string]Position `json:"positions"`
}

// txData is one transaction. The names and meanings of its fields are those of LiteFS.
type txData struct {
	Position
	PageSize  uint32    `json:"pageSize"`
	Commit    uint32    `json:"commit"`
	Timestamp time.Time `json:"timestamp"`
}

// Transaction encodes the event of a change.
func Transaction(c database.Change) []byte {
	return encode(event{Type: "tx", DB: c.Name, Data: txData{
		Position: Position{c.Pos.TXID, c.Pos.PostApplyChecksum},
		PageSize: c.PageSize, Commit: c.Pages, Timestamp: time.UnixMilli(c.Timestamp).UTC(),
	}})
}

func encode(e event) []byte {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // cannot fail: values of these types can be encoded
	}
	return append(b, '\n')
}

// ErrFull is returned if there are MaxSubscribers, or if the Hub is closed.
var ErrFull = errors.New("too many subscribers")

// Hub distributes events to subscribers.
type Hub struct {
	mu        sync.Mutex
	role      Role
	positions map[string]Position
	subs      map[*Subscription]struct{}
	cut       int
}

// New returns a Hub of a node that is not the primary, and not connected to one.
func New() *Hub {
	return &Hub{positions: map[string]Position{}, subs: map[*Subscription]struct{}{}}
}

// Subscription receives events from C, which Close of the Hub closes. Lost is closed when the
// subscriber does not keep up: C then lacks events.
type Subscription struct {
	C    chan []byte
	Lost chan struct{}

	h *Hub
	// Positions are those of the databases when the subscription began.
	Positions map[string]Position
}

// Subscribe begins a subscription, which Cancel ends.
func (h *Hub) Subscribe() (*Subscription, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subs) >= MaxSubscribers || h.subs == nil {
		return nil, ErrFull
	}
	s := &Subscription{C: make(chan []byte, Buffer), Lost: make(chan struct{}), h: h, Positions: maps.Clone(h.positions)}
	s.C <- encode(event{Type: "init", Data: initData{h.role, s.Positions}})
	h.subs[s] = struct{}{}
	return s, nil
}

// Cancel ends a subscription.
func (s *Subscription) Cancel() {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	delete(s.h.subs, s)
}

// Know sets the position of an existing database, without an event.
func (h *Hub) Know(name string, pos ltx.Pos) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.positions[name] = Position{pos.TXID, pos.PostApplyChecksum}
}

// Publish sends a change of a database to subscribers. It never waits.
func (h *Hub) Publish(c database.Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.positions[c.Name] = Position{c.Pos.TXID, c.Pos.PostApplyChecksum}
	if len(h.subs) > 0 {
		h.send(Transaction(c))
	}
}

// SetRole sets the role, and sends it to subscribers if it has changed.
func (h *Hub) SetRole(r Role) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r == h.role {
		return
	}
	h.role = r
	h.send(encode(event{Type: "primaryChange", Data: r}))
}

// Role returns the role that SetRole has set last.
func (h *Hub) Role() Role {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.role
}

func (h *Hub) send(line []byte) {
	for s := range h.subs {
		select {
		case s.C <- line:
		default:
			h.cut++
			delete(h.subs, s)
			close(s.Lost)
		}
	}
}

// Count returns how many subscribers there are, and how many were cut off so far.
func (h *Hub) Count() (now, cut int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subs), h.cut
}

// Close ends all subscriptions after their queued events. Subscribe then fails.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		close(s.C)
	}
	h.subs = nil
}

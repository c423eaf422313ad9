// Package events streams, as lines of JSON, the changes of a node's databases to its subscribers:
// each transaction, and which node is primary.
//
// The first event of a subscription is the current state; the next ones have every change since,
// none twice. Events of a database are in the order of its transactions. A subscriber that does not
// keep up is disconnected, so that it knows that it has missed something.
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

// Role is whether a node is primary, and otherwise which primary it is connected to.
type Role struct {
	IsPrimary bool   `json:"isPrimary"`
	Hostname  string `json:"hostname,omitempty"`
}

// Position is the position of a database as events have it.
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

// ErrFull is returned to one subscriber too many.
var ErrFull = errors.New("too many subscribers")

// Hub distributes events to subscribers. The zero Hub is not usable; see New.
type Hub struct {
	mu        sync.Mutex
	role      Role
	positions map[string]Position
	subs      map[*Subscription]struct{}
	cut       int
}

// New returns a Hub of a node that is no primary and knows none.
func New() *Hub {
	return &Hub{positions: map[string]Position{}, subs: map[*Subscription]struct{}{}}
}

// Subscription is a series of events. C has them; it is closed after Close of the Hub. Lost is
// closed when the subscriber did not keep up: C then lacks some events.
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

// Know sets the position of an existing database, which is no event.
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

// SetRole sends the primary to subscribers, if it has changed.
func (h *Hub) SetRole(r Role) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r == h.role {
		return
	}
	h.role = r
	h.send(encode(event{Type: "primaryChange", Data: r}))
}

// Role returns what SetRole has set.
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

// Close ends all subscriptions after what they have, and lets no other begin.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		close(s.C)
	}
	h.subs = nil
}

// Package traffic counts the traffic of the edge, for each App and each Machine.
//
// Counting costs a request a few atomic additions and no lock: a caller holds an *App or a
// *Machine, which is looked up once for each connection of a client and once for each permit.
// Bytes are not counted as they pass, but read from the kernel when a connection ends and when
// counts are read: see Flow.
//
// What is kept is bounded. An App has as many entries as there are registered statuses of HTTP
// and MaxServerNames; a Table has an entry for each App with a connection since the last Sweep,
// and a Flow for each connection. The maker of the counts of a Machine keeps them.
//
// All methods may be called from many goroutines.
package traffic

import (
	"cmp"
	"crypto/tls"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
)

// Table has the counts of Apps. Use NewTable.
type Table struct {
	mu    sync.RWMutex // guards what follows
	apps  map[hangar.AppID]*App
	flows map[*Flow]struct{} // those whose App is known and that have not ended

	failures map[hangar.EdgeCode]*atomic.Uint64 // of each code; the map is never changed
}

// NewTable returns an empty Table.
func NewTable() *Table {
	t := &Table{
		apps: make(map[hangar.AppID]*App), flows: make(map[*Flow]struct{}), failures: make(map[hangar.EdgeCode]*atomic.Uint64),
	}
	for _, code := range hangar.EdgeCodes() {
		t.failures[code] = new(atomic.Uint64)
	}
	return t
}

// Failed counts a request or a connection that the edge could not serve. A code that is none of
// hangar.EdgeCodes counts as EdgeInternal.
func (t *Table) Failed(code hangar.EdgeCode) {
	n, ok := t.failures[code]
	if !ok {
		n = t.failures[hangar.EdgeInternal]
	}
	n.Add(1)
}

// Failures yields how often Failed was called with each code.
func (t *Table) Failures(yield func(code hangar.EdgeCode, n uint64) bool) {
	for code, n := range t.failures {
		if !yield(code, n.Load()) {
			return
		}
	}
}

// App returns the counts of an App, which begin with the first call.
func (t *Table) App(id hangar.AppID) *App {
	t.mu.RLock()
	a := t.apps[id]
	t.mu.RUnlock()
	if a != nil {
		return a
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if a = t.apps[id]; a == nil {
		a = &App{id: id}
		t.apps[id] = a
	}
	return a
}

// Apps returns the counts of all Apps, sorted by id, including the traffic of open connections
// until now.
func (t *Table) Apps() []*App {
	t.mu.RLock()
	flows := make([]*Flow, 0, len(t.flows))
	for f := range t.flows {
		flows = append(flows, f)
	}
	list := make([]*App, 0, len(t.apps))
	for _, a := range t.apps {
		list = append(list, a)
	}
	t.mu.RUnlock()
	for _, f := range flows {
		f.account()
	}
	slices.SortFunc(list, func(a, b *App) int { return cmp.Compare(a.id, b.id) })
	return list
}

// Sweep forgets the Apps that are not known any more. Connections that are still open for one
// are not counted.
func (t *Table) Sweep(known func(hangar.AppID) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.apps {
		if !known(id) {
			delete(t.apps, id)
		}
	}
}

// MaxServerNames is how many names the failed TLS handshakes of an App are counted by. Those of
// others are counted without a name.
const MaxServerNames = 256

// App has the counts of an App.
type App struct {
	id        hangar.AppID
	responses responses

	connects, disconnects atomic.Uint64
	in, out               atomic.Uint64 // bytes

	handshakes [2]histogram // of TLS 1.2 and 1.3

	mu        sync.Mutex // guards what follows
	tlsErrors map[hangar.Hostname]uint64
}

// ID is the App's.
func (a *App) ID() hangar.AppID { return a.id }

// Response counts an answer to a client, and how long it took until its header was written.
func (a *App) Response(status int, took time.Duration) { a.responses.observe(status, took) }

// Received and Sent count bytes that came from clients and went to them, beside those of a Flow.
func (a *App) Received(n int) { a.in.Add(uint64(n)) }

// Sent is described with Received.
func (a *App) Sent(n int) { a.out.Add(uint64(n)) }

// Handshake counts a TLS handshake, by its version of crypto/tls.
func (a *App) Handshake(version uint16, took time.Duration) {
	switch version {
	case tls.VersionTLS12:
		a.handshakes[0].observe(took)
	case tls.VersionTLS13:
		a.handshakes[1].observe(took)
	}
}

// HandshakeFailed counts a TLS handshake that failed. The name must be one that is configured for
// the App, or empty, so that clients cannot make up series.
func (a *App) HandshakeFailed(name hangar.Hostname) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tlsErrors == nil {
		a.tlsErrors = make(map[hangar.Hostname]uint64)
	}
	if _, ok := a.tlsErrors[name]; !ok && len(a.tlsErrors) >= MaxServerNames {
		name = ""
	}
	a.tlsErrors[name]++
}

// Machine has the counts of a Machine. The zero value is ready.
type Machine struct {
	responses             responses
	connect               histogram
	connects, disconnects atomic.Uint64
}

// Response counts an answer of the Machine, and how long it took until its header came.
func (m *Machine) Response(status int, took time.Duration) { m.responses.observe(status, took) }

// Connected counts a connection to the Machine, and how long it took.
func (m *Machine) Connected(took time.Duration) {
	m.connects.Add(1)
	m.connect.observe(took)
}

// Disconnected counts the end of a connection to the Machine.
func (m *Machine) Disconnected() { m.disconnects.Add(1) }

// Package balance decides which Machine serves a request, and wakes one when none runs.
//
// It follows the rows of edge/catalog and keeps, for each App that is asked for, a table of
// its public ports and, behind each port, the Machines that serve it, by what they are good
// for: to be entered, to be woken, to be waited for. A request takes a Seat: in the nearest
// region that has room, in a Machine below its soft limit rather than one above, in the
// least loaded of them. A Seat counts until it is left.
//
// The host of a Machine has the last word (hangar.MachineGate). What it refuses is tried
// elsewhere, and what the rows say is believed again when they change or a short while has
// passed. A request is never sent to a Machine that is cordoned or whose checks keep requests
// away, and, as far as this edge alone knows, never to one at its hard limit. Nobody waits
// while a seat that would do is free, and those who wait for the same are served in the order
// in which they came; no poll is needed for that.
//
// All methods may be called by any goroutine. One lock for each App is held for a time that
// does not grow with the number of its Machines; a change of one row costs as little. What
// runs in the background (starting a Machine goes on when nobody waits for it any more)
// belongs to Run. It opens no connection but by Seat.Dial, and reads no request.
package balance

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
)

// What Options leave out.
const (
	DefaultQueueLimit = 1000
	DefaultQueueWait  = 30 * time.Second
	DefaultWakeWait   = 30 * time.Second
)

// Options are what a Balancer works with.
type Options struct {
	Catalog *catalog.Catalog
	Gates   hangar.MachineGates
	Region  hangar.Region // of this edge: its Machines are the nearest
	// QueueLimit is how many requests may wait for one App, QueueWait for how long while all
	// that run are at their hard limits, and WakeWait for how long for a Machine to be started.
	// 0: the defaults.
	QueueLimit          int
	QueueWait, WakeWait time.Duration
	Log                 *slog.Logger
}

// Balancer chooses Machines. Use New.
type Balancer struct {
	o     Options
	log   *slog.Logger
	epoch time.Time

	mu      sync.RWMutex // guards what follows; taken before that of an app
	apps    map[hangar.AppID]*app
	onStale []func(hangar.MachineID) // replaced, never altered

	portsChanged struct {
		sync.Mutex               // taken after that of an app
		next       chan struct{} // closed at the next change of public ports, then replaced
	}
	jobs jobs
}

// New returns a Balancer that follows the catalog. Machines are woken while Run runs.
func New(o Options) *Balancer {
	if o.QueueLimit == 0 {
		o.QueueLimit = DefaultQueueLimit
	}
	if o.QueueWait == 0 {
		o.QueueWait = DefaultQueueWait
	}
	if o.WakeWait == 0 {
		o.WakeWait = DefaultWakeWait
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Balancer{o: o, log: o.Log, epoch: time.Now(), apps: make(map[hangar.AppID]*app)}
	b.portsChanged.next = make(chan struct{})
	b.jobs.ready = make(chan struct{}, 1)
	o.Catalog.Observe(b.observe)
	return b
}

// now is the time since the Balancer was made, in nanoseconds from 1.
func (b *Balancer) now() int64 { return int64(time.Since(b.epoch)) + 1 }

// Endpoint is a public port of an App. It never changes: after a change, another one is
// returned, and one whose Handling is no longer that of the port finds no Machine.
type Endpoint struct {
	Route    *hangar.AppRoute
	UDP      bool
	Port     int // public
	Handling hangar.Handling
	// Options are those of the newest version that serves the port.
	Options *hangar.ServicePort

	app *app
}

// Endpoint returns a public port of an App; false if none of its Machines serves it. When
// they disagree on how it is handled, those that run outvote the others, and among them the
// newest version decides.
func (b *Balancer) Endpoint(route *hangar.AppRoute, udp bool, port int) (*Endpoint, bool) {
	a := b.app(route.ID)
	if a == nil {
		return nil, false
	}
	e := a.ports.Load().find(udp, port)
	if e == nil {
		return nil, false
	}
	if ep := e.endpoint.Load(); ep != nil && ep.Route == route && ep.Port == port && ep.app == a {
		return ep, true
	}
	ep := &Endpoint{Route: route, UDP: udp, Port: port, Handling: e.handling, Options: e.options, app: a}
	e.endpoint.Store(ep)
	return ep, true
}

// segment is what serves the endpoint now, or nil.
func (ep *Endpoint) entry(t *portTable) *entry {
	if e := t.find(ep.UDP, ep.Port); e != nil && e.handling == ep.Handling {
		return e
	}
	return nil
}

// PortRange is public ports that are handled alike.
type PortRange struct {
	UDP         bool
	First, Last int
	Handling    hangar.Handling
}

// Ports returns the public ports of an App, whether or not any Machine runs: sorted, TCP
// first. The slice may not be modified.
func (b *Balancer) Ports(route *hangar.AppRoute) []PortRange {
	a := b.app(route.ID)
	if a == nil {
		return nil
	}
	return a.ports.Load().ranges
}

// Changed returns a channel that is closed when Ports of some App may be others than at the
// time of the call.
func (b *Balancer) PortsChanged() <-chan struct{} {
	b.portsChanged.Lock()
	defer b.portsChanged.Unlock()
	return b.portsChanged.next
}

func (b *Balancer) signalPortsChanged() {
	b.portsChanged.Lock()
	defer b.portsChanged.Unlock()
	close(b.portsChanged.next)
	b.portsChanged.next = make(chan struct{})
}

// Gone adds a function that is called when a Machine leaves the state started, has got
// another version or has lost its connections: those that were made before are void. It is called with rows being held up, and asks
// nothing of the Balancer but Leave and Failed of seats.
func (b *Balancer) OnStale(fn func(id hangar.MachineID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.onStale = append(slices.Clip(b.onStale), fn)
}

// app returns what is known of an App, or nil if it has no Machines.
func (b *Balancer) app(id hangar.AppID) *app {
	b.mu.RLock()
	a := b.apps[id]
	b.mu.RUnlock()
	switch {
	case a == nil:
		return b.follow(id)
	case a.ports.Load() == nil:
		<-a.loaded
	}
	return a
}

// current is the app of an endpoint, also after it was taken up anew.
func (b *Balancer) current(ep *Endpoint) *app {
	if ep.app.evicted.Load() {
		if a := b.app(ep.Route.ID); a != nil {
			return a
		}
	}
	return ep.app
}

// follow takes up an App.
func (b *Balancer) follow(id hangar.AppID) *app {
	if len(b.o.Catalog.AppMachines(id)) == 0 {
		return nil
	}
	a := &app{
		b: b, id: id, loaded: make(chan struct{}), deadlines: newDeadlines(),
		machines: make(map[hangar.MachineID]*machine), serviceSets: make(map[string]*serviceSet),
	}
	a.mu.Lock() // rows that change from here on wait in observe
	b.mu.Lock()
	if other := b.apps[id]; other != nil {
		b.mu.Unlock()
		a.mu.Unlock()
		<-other.loaded
		return other
	}
	b.apps[id] = a
	b.mu.Unlock()
	a.loadRows(b.o.Catalog.AppMachines(id))
	close(a.loaded)
	a.mu.Unlock()
	return a
}

// observe takes over a row of which the catalog tells.
func (b *Balancer) observe(old, row *hangar.MachineRow) {
	known := row
	if row == nil {
		known = old
	}
	id := known.Machine.ID
	b.mu.RLock()
	a := b.apps[known.Machine.AppID]
	gone := b.onStale
	b.mu.RUnlock()
	switch {
	case a == nil && old == nil:
		b.signalPortsChanged() // there was nothing to follow when somebody asked
	case a == nil:
	default:
		if a.applyRow(id, row) {
			for _, fn := range gone {
				fn(id)
			}
		}
		if row == nil {
			b.evict(a)
		}
	}
}

// evict forgets an App that has no Machines.
func (b *Balancer) evict(a *app) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.machines) == 0 && a.queue.length == 0 && b.apps[a.id] == a {
		delete(b.apps, a.id)
		if a.deadlines.timer != nil {
			a.deadlines.timer.Stop()
		}
		a.evicted.Store(true)
	}
}

package balance

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
)

// Defaults of Options.
const (
	DefaultQueueLimit = 1000
	DefaultQueueWait  = 30 * time.Second
	DefaultWakeWait   = 30 * time.Second
)

// Options are the dependencies of a Balancer.
type Options struct {
	Catalog *catalog.Catalog
	Gates   hangar.MachineGates
	Region  hangar.Region // of this edge: its Machines are the nearest
	// QueueLimit is how many requests may wait for one App, QueueWait how long they wait while all
	// started Machines are at their hard limits, and WakeWait how long for a Machine to start.
	// 0: the defaults.
	QueueLimit          int
	QueueWait, WakeWait time.Duration
	Log                 *slog.Logger
}

// Balancer picks Machines for requests. Use New.
type Balancer struct {
	o     Options
	log   *slog.Logger
	epoch time.Time

	mu      sync.RWMutex // guards apps and onStale; locked before app.mu
	apps    map[hangar.AppID]*app
	onStale []func(hangar.MachineID) // replaced, never modified

	portsChanged struct {
		sync.Mutex               // locked after app.mu
		next       chan struct{} // closed at the next change of public ports, then replaced
	}
	jobs     jobs
	measures *measures
}

// New returns a Balancer that follows the catalog. It wakes Machines while Run runs.
func New(o Options) *Balancer {
	o.QueueLimit = cmp.Or(o.QueueLimit, DefaultQueueLimit)
	o.QueueWait = cmp.Or(o.QueueWait, DefaultQueueWait)
	o.WakeWait = cmp.Or(o.WakeWait, DefaultWakeWait)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Balancer{o: o, log: o.Log, epoch: time.Now(), apps: make(map[hangar.AppID]*app), measures: newMeasures()}
	b.portsChanged.next = make(chan struct{})
	b.jobs.ready = make(chan struct{}, 1)
	o.Catalog.Observe(b.observe)
	return b
}

// now is the time since the Balancer was made, in nanoseconds from 1.
func (b *Balancer) now() int64 { return int64(time.Since(b.epoch)) + 1 }

// Endpoint is a public port of an App. It never changes: after a change of the port, Endpoint
// returns another one, and Acquire finds no Machine for one with a stale Handling.
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
// Machines disagree on how it is handled, started ones go before others, and among them the
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
	ep := &Endpoint{Route: route, UDP: udp, Port: port, Handling: e.Handling, Options: e.options, app: a}
	e.endpoint.Store(ep)
	return ep, true
}

// entry is what serves the endpoint now, or nil.
func (ep *Endpoint) entry(t *portTable) *entry {
	if e := t.find(ep.UDP, ep.Port); e != nil && e.Handling == ep.Handling {
		return e
	}
	return nil
}

// PortRange is a range of public ports that are handled alike.
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

// PortsChanged returns a channel that is closed when Ports of any App may have changed since the
// call.
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

// OnStale adds a function that is called when the connections to a Machine that were made before
// are stale: it left the state started, has another version, or lost its connections. The
// function holds up rows, and may call nothing of the Balancer but Permit.Release and
// Permit.Failed.
func (b *Balancer) OnStale(fn func(id hangar.MachineID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.onStale = append(slices.Clip(b.onStale), fn)
}

// app returns the app of an App, or nil if that has no Machines.
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

// current is the app of an endpoint, also if that was evicted and followed again.
func (b *Balancer) current(ep *Endpoint) *app {
	if ep.app.evicted.Load() {
		if a := b.app(ep.Route.ID); a != nil {
			return a
		}
	}
	return ep.app
}

// follow starts to follow an App.
func (b *Balancer) follow(id hangar.AppID) *app {
	if len(b.o.Catalog.AppMachines(id)) == 0 {
		return nil
	}
	a := &app{
		b: b, id: id, loaded: make(chan struct{}), deadlines: newDeadlines(),
		machines: make(map[hangar.MachineID]*machine), serviceSets: make(map[string]*serviceSet),
	}
	a.mu.Lock() // observe waits with rows that change from here on
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

// observe takes a changed row from the catalog.
func (b *Balancer) observe(old, row *hangar.MachineRow) {
	known := row
	if row == nil {
		known = old
	}
	id := known.Machine.ID
	b.mu.RLock()
	a := b.apps[known.Machine.AppID]
	onStale := b.onStale
	b.mu.RUnlock()
	switch {
	case a == nil && old == nil:
		b.signalPortsChanged() // the App had no ports when a caller asked
	case a == nil:
	default:
		if a.applyRow(id, row) {
			for _, fn := range onStale {
				fn(id)
			}
		}
		if row == nil {
			b.evict(a)
		}
	}
}

// evict drops an App that has no Machines.
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

package balance_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/edgetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an App's Machines, the rows that the edge has of them, and their host.
type world struct {
	t     testing.TB
	b     *balance.Balancer
	cat   *catalog.Catalog
	gate  *gate
	route *hangar.AppRoute
	lag   time.Duration // of rows that follow what the gate does by itself

	feed *edgetest.Feed
}

const testApp = "web"

func newWorld(tb testing.TB, alter func(*balance.Options)) *world {
	tb.Helper()
	w := &world{
		t: tb, gate: newGate(), feed: edgetest.NewFeed(),
		route: &hangar.AppRoute{ID: hangar.AppID(testApp), App: testApp},
	}
	w.cat = catalog.New(w.feed, nil)
	o := balance.Options{Catalog: w.cat, Gates: w.gate, Region: "ams", QueueLimit: 1000, QueueWait: 5 * time.Second, WakeWait: 10 * time.Second}
	if alter != nil {
		alter(&o)
	}
	w.b = balance.New(o)
	return w
}

// within runs a test in a bubble.
func within(t *testing.T, alter func(*balance.Options), fn func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, alter)
		stop := w.run(t)
		fn(t, w)
		stop()
	})
}

// run runs what has to run; stop ends it.
func (w *world) run(tb testing.TB) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	var running sync.WaitGroup
	running.Go(func() { w.cat.Run(ctx) })
	running.Go(func() {
		if err := w.b.Run(ctx); !errors.Is(err, context.Canceled) {
			tb.Errorf("Run: %v", err)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

type option func(*hangar.MachineRow)

func state(s hangar.MachineState) option {
	return func(r *hangar.MachineRow) { r.Machine.State = s }
}

func region(code hangar.Region) option {
	return func(r *hangar.MachineRow) { r.Machine.Region = code }
}

func limits(soft, hard int) option {
	return func(r *hangar.MachineRow) {
		r.Machine.Config.Services[0].Concurrency = &hangar.ServiceConcurrency{Type: "requests", SoftLimit: soft, HardLimit: hard}
	}
}

func cordoned(yes bool) option { return func(r *hangar.MachineRow) { r.Machine.Cordoned = yes } }

func autostart(yes bool) option {
	return func(r *hangar.MachineRow) { r.Machine.Config.Services[0].Autostart = &yes }
}

// autostartAbsent leaves to the platform whether a request starts the Machine.
func autostartAbsent(r *hangar.MachineRow) { r.Machine.Config.Services[0].Autostart = nil }

func services(list ...hangar.Service) option {
	return func(r *hangar.MachineRow) { r.Machine.Config.Services = list }
}

func version(id string) option {
	return func(r *hangar.MachineRow) { r.Machine.InstanceID = hangar.InstanceID(id) }
}

// checked gives the service a check with a status.
func checked(status hangar.CheckStatus) option {
	return func(r *hangar.MachineRow) {
		r.Machine.Config.Services[0].Checks = []hangar.Check{{Type: "tcp"}}
		r.Machine.Checks = []hangar.MachineCheck{{Status: status}}
	}
}

func web(ports ...hangar.ServicePort) hangar.Service {
	yes := true
	if ports == nil {
		ports = []hangar.ServicePort{{Port: 80, Handlers: []string{"http"}}, {Port: 443, Handlers: []string{"tls", "http"}}}
	}
	return hangar.Service{Protocol: "tcp", InternalPort: 8080, Autostart: &yes, Ports: ports}
}

func id(n int) hangar.MachineID { return hangar.MachineID(fmt.Sprintf("%014x", n)) }

// put makes or changes a Machine, at its host and in the rows. A new one is started, in the
// region of the edge, and has the service that web returns.
func (w *world) put(n int, options ...option) {
	row, ok := w.feed.Row(id(n))
	if !ok {
		row = hangar.MachineRow{Machine: hangar.Machine{
			ID: id(n), App: testApp, AppID: hangar.AppID(testApp), State: hangar.MachineStarted, Region: "ams", Host: "h1", InstanceID: "1",
			Config: hangar.MachineConfig{Services: []hangar.Service{web()}},
		}, Network: 1}
	}
	row.Machine.Config.Services = slices.Clone(row.Machine.Config.Services)
	for _, o := range options {
		o(&row)
	}
	m := &row.Machine
	w.gate.set(m.ID, func(g *guest) {
		g.state, g.cordoned, g.hard = m.State, m.Cordoned, 0
		if len(m.Config.Services) > 0 {
			g.hard = m.Config.Services[0].HardLimit()
		}
		g.woke = func(s hangar.MachineState) { w.follow(m.ID, s) }
	})
	w.feed.Put(row)
}

// follow publishes, perhaps later, a state that a Machine got by itself.
func (w *world) follow(id hangar.MachineID, s hangar.MachineState) {
	publish := func() {
		if row, ok := w.feed.Row(id); ok {
			row.Machine.State = s
			w.feed.Put(row)
		}
	}
	if w.lag > 0 {
		time.AfterFunc(w.lag, publish)
		return
	}
	publish()
}

// await waits until what was put last of Machines is in view, and the balancer knows it.
func (w *world) await(machines ...int) {
	for _, n := range machines {
		row, ok := w.feed.Row(id(n))
		if !ok {
			w.t.Errorf("there is no machine %d", n)
			return
		}
		if err := w.cat.AwaitMachine(w.t.Context(), row.Machine.Ref(), row.Seq); err != nil {
			w.t.Error(err)
		}
	}
}

// forget removes a Machine.
func (w *world) forget(n int) { w.feed.Remove(id(n)) }

func (w *world) endpoint(port int) *balance.Endpoint {
	w.t.Helper()
	ep, ok := w.b.Endpoint(w.route, false, port)
	if !ok {
		w.t.Fatalf("port %d is not served", port)
	}
	return ep
}

// tryAcquire acquires a permit at port 80.
func (w *world) tryAcquire(sel balance.Selector) (*balance.Permit, error) {
	w.t.Helper()
	synctest.Wait()
	return w.b.Acquire(w.t.Context(), w.endpoint(80), sel)
}

// acquire acquires a permit at port 80 without a selector.
func (w *world) acquire() *balance.Permit {
	w.t.Helper()
	permit, err := w.tryAcquire(balance.Selector{})
	if err != nil {
		w.t.Fatal(err)
	}
	return permit
}

// outcome is the result of an Acquire in the background.
type outcome struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when what follows is known
	permit *balance.Permit
	err    error
	took   time.Duration
}

// ask acquires a permit at port 80 in the background.
func (w *world) ask(sel balance.Selector) *outcome {
	w.t.Helper()
	synctest.Wait()
	ctx, cancel := context.WithCancel(w.t.Context())
	o := &outcome{cancel: cancel, done: make(chan struct{})}
	ep := w.endpoint(80)
	go func() {
		defer close(o.done)
		start := time.Now()
		o.permit, o.err = w.b.Acquire(ctx, ep, sel)
		o.took = time.Since(start)
	}()
	synctest.Wait()
	return o
}

func (o *outcome) waits() bool {
	synctest.Wait()
	select {
	case <-o.done:
		return false
	default:
		return true
	}
}

// got waits for the permit.
func (o *outcome) got(tb testing.TB) *balance.Permit {
	tb.Helper()
	<-o.done
	if o.err != nil {
		tb.Fatal(o.err)
	}
	return o.permit
}

// wantCode checks an error of the edge.
func wantCode(tb testing.TB, err error, code hangar.EdgeCode, status int) {
	tb.Helper()
	var e *hangar.EdgeError
	if !errors.As(err, &e) || e.Code != code || e.Status != status || e.Message == "" {
		tb.Errorf("got %v, want %s with status %d", err, code, status)
	}
}

// wantInFlight checks how many requests are in flight in Machines 1, 2, ….
func (w *world) wantInFlight(tb testing.TB, want ...int) {
	tb.Helper()
	var got []int
	for n := range want {
		got = append(got, w.gate.in(id(n+1)))
	}
	if !slices.Equal(got, want) {
		tb.Errorf("in flight are %v, want %v", got, want)
	}
}

// wantWoken checks which Machines were woken so far, in any order.
func (w *world) wantWoken(tb testing.TB, want ...int) {
	tb.Helper()
	synctest.Wait()
	got := map[hangar.MachineID]int{}
	for _, m := range w.gate.woken() {
		got[m]++
	}
	expect := map[hangar.MachineID]int{}
	for _, n := range want {
		expect[id(n)]++
	}
	if !maps.Equal(got, expect) {
		tb.Errorf("woken are %v, want %v", got, expect)
	}
}

package gate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/gate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is Machines that start and stop in no time worth mentioning.
type world struct {
	testing.TB
	*gate.Gates

	mu       sync.Mutex
	machines []*machine
	places   map[hangar.MachineRef]int // in machines
	ready    atomic.Bool
	refuse   atomic.Bool // Stop does nothing
	fault    string      // the first thing that was wrong
	stops    atomic.Int64
}

type machine struct {
	*gate.Gate
	ref   hangar.MachineRef
	terms gate.Terms
	in    atomic.Int64 // as those believe who are in
	held  atomic.Int64 // likewise, by no service
}

func newWorld(tb testing.TB, o gate.Options) *world {
	tb.Helper()
	w := &world{TB: tb, places: map[hangar.MachineRef]int{}}
	w.ready.Store(true)
	o.Stop, o.Now = w.stop, time.Now
	o.Ready = func(hangar.MachineRef) bool { return w.ready.Load() }
	w.Gates = gate.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { w.Run(ctx) })
	tb.Cleanup(func() { cancel(); run.Wait() })
	return w
}

func (w *world) wrong(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == "" {
		w.fault = fmt.Sprintf(format, args...)
	}
}

// found is the first thing that was wrong, or nothing.
func (w *world) found() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fault
}

func (w *world) serves(m *machine) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return m.terms.Open
}

// stop stops a Machine as the agent does: while its lock is held.
func (w *world) stop(_ context.Context, s gate.Stopping) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.places[s.Ref]
	m := w.machines[i]
	if w.refuse.Load() || !m.terms.Open || !s.Still() {
		return
	}
	if n := m.in.Load() + m.held.Load(); n > 0 && w.fault == "" {
		w.fault = fmt.Sprintf("machine %d is stopped while %d are in", i, n)
	}
	w.stops.Add(1)
	m.terms.Open = false
	m.Shut()
	m.Set(m.terms)
}

func (w *world) set(m *machine, alter func(t *gate.Terms)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	alter(&m.terms)
	m.Set(m.terms)
}

func (w *world) running() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, m := range w.machines {
		if m.terms.Open {
			n++
		}
	}
	return n
}

// add makes a Machine with a service on port 8080 that serves.
func (w *world) add(alter ...func(s *hangar.Service)) *machine {
	s := hangar.Service{
		InternalPort: 8080, Protocol: "tcp", Autostop: true, Ports: []hangar.ServicePort{{Port: 80}},
		AutostopAfter: new(hangar.Duration(10 * time.Second)),
	}
	for _, a := range alter {
		a(&s)
	}
	m := &machine{
		ref:   hangar.MachineRef{App: "web", AppID: "web", ID: hangar.MachineID(fmt.Sprintf("%014x", len(w.machines)))},
		terms: gate.Terms{Open: true, Services: []hangar.Service{s}, Region: "loc"},
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m.Gate = w.Add(m.ref)
	w.places[m.ref] = len(w.machines)
	w.machines = append(w.machines, m)
	m.Set(m.terms)
	return m
}

// enter lets a visit in, which must succeed.
func (w *world) enter(m *machine) func() {
	w.Helper()
	leave, err := m.Enter(8080)
	if err != nil {
		w.Fatal(err)
	}
	m.in.Add(1)
	count := sync.OnceFunc(func() { m.in.Add(-1) })
	return func() { count(); leave() }
}

func limits(soft, hard int) func(s *hangar.Service) {
	return func(s *hangar.Service) { s.Concurrency = &hangar.ServiceConcurrency{SoftLimit: soft, HardLimit: hard} }
}

func TestEnter(t *testing.T) {
	w := newWorld(t, gate.Options{})
	m := w.add(limits(1, 2))
	first, second := w.enter(m), w.enter(m)
	if _, err := m.Enter(8080); !errors.Is(err, gate.ErrFull) {
		t.Errorf("beyond the hard limit: %v", err)
	}
	if _, err := m.Enter(81); !errors.Is(err, gate.ErrPort) {
		t.Errorf("another port: %v", err)
	}
	hold, err := m.Hold()
	if err != nil {
		t.Fatal(err)
	}
	if all, service := m.Load(8080); all != 3 || service != 2 {
		t.Errorf("%d are in, %d by the service", all, service)
	}
	first()
	first() // may be repeated
	w.enter(m)()
	second()
	hold()
	if all, service := m.Load(8080); all != 0 || service != 0 {
		t.Errorf("%d are in, %d by the service, after all have left", all, service)
	}
	w.set(m, func(t *gate.Terms) { t.Open = false })
	if _, err := m.Enter(8080); !errors.Is(err, gate.ErrShut) {
		t.Errorf("a machine that does not serve: %v", err)
	}
	if w.Find(m.ref) == nil || w.Find(hangar.MachineRef{App: "other", AppID: "other", ID: m.ref.ID}) != nil {
		t.Error("a gate is not the one of its app")
	}
	w.Remove(m.Gate)
	if w.Find(m.ref) != nil {
		t.Error("a removed gate is found")
	}
}

// TestIdle has Machines stopped when their time has come, and no sooner.
func TestIdle(t *testing.T) {
	after := func(d time.Duration) func(*hangar.Service) {
		return func(s *hangar.Service) { s.AutostopAfter = new(hangar.Duration(d)) }
	}
	for name, test := range map[string]func(w *world){
		"after its time": func(w *world) {
			w.add()
			w.runs(9999*time.Millisecond, 1)
			w.runs(2*time.Millisecond, 0)
		},
		"as the operator says": func(w *world) {
			w.add(func(s *hangar.Service) { s.AutostopAfter = nil })
			w.runs(59*time.Second, 1)
			w.runs(2*time.Second, 0)
		},
		"the longest of its services": func(w *world) {
			m := w.add(after(time.Second))
			w.set(m, func(t *gate.Terms) {
				other := t.Services[0]
				other.InternalPort, other.AutostopAfter = 81, new(hangar.Duration(time.Minute))
				t.Services = []hangar.Service{t.Services[0], other}
			})
			w.runs(59*time.Second, 1)
			w.runs(2*time.Second, 0)
		},
		"never, if one service says so": func(w *world) {
			m := w.add(after(time.Second))
			w.set(m, func(t *gate.Terms) { t.Services = append(slices.Clone(t.Services), hangar.Service{InternalPort: 81}) })
			w.runs(time.Hour, 1)
		},
		"from when the last one left": func(w *world) {
			m := w.add()
			leave := w.enter(m)
			w.runs(time.Hour, 1)
			leave()
			w.runs(9*time.Second, 1)
			w.enter(m)()
			w.runs(9*time.Second, 1)
			w.runs(2*time.Second, 0)
		},
		"not while it is busy": func(w *world) {
			m := w.add()
			w.set(m, func(t *gate.Terms) { t.Busy = time.Now().Add(time.Minute) })
			w.runs(69*time.Second, 1)
			w.runs(2*time.Second, 0)
		},
		"once it is not busy any more": func(w *world) {
			m := w.add()
			w.set(m, func(t *gate.Terms) { t.Busy = time.Now().Add(time.Hour) })
			w.runs(time.Minute, 1)
			w.set(m, func(t *gate.Terms) { t.Busy = time.Time{} })
			w.runs(9*time.Second, 1)
			w.runs(2*time.Second, 0)
		},
		"not one that has to run by itself": func(w *world) {
			w.set(w.add(), func(t *gate.Terms) { t.Kept = true })
			w.runs(time.Hour, 1)
		},
		"not before its checks have passed, for a while": func(w *world) {
			w.ready.Store(false)
			m := w.add(after(time.Second))
			w.runs(59*time.Second, 1)
			w.runs(2*time.Second, 0)
			w.set(m, func(t *gate.Terms) { t.Open = true })
			w.runs(10*time.Second, 1)
			w.ready.Store(true)
			w.Look(m.ref)
			w.runs(time.Second, 0)
		},
		"as many as have to run in the primary region": func(w *world) {
			for range 3 {
				w.add(func(s *hangar.Service) { s.MinMachinesRunning = new(1) })
			}
			w.runs(time.Hour, 1)
			one := w.machines[slices.IndexFunc(w.machines, w.serves)]
			other := w.machines[slices.IndexFunc(w.machines, func(m *machine) bool { return !w.serves(m) })]
			leave := w.enter(one)
			w.set(other, func(t *gate.Terms) { t.Open = true })
			w.runs(11*time.Second, 1) // one is needed, and the other is not the last
			leave()
		},
		"all, elsewhere": func(w *world) {
			for range 3 {
				w.set(w.add(func(s *hangar.Service) { s.MinMachinesRunning = new(1) }), func(t *gate.Terms) { t.Primary = "ams" })
			}
			w.runs(time.Minute, 0)
		},
		"again after it was refused": func(w *world) {
			m := w.add()
			w.refuse.Store(true)
			w.runs(11*time.Second, 1)
			w.enter(m)()
			w.refuse.Store(false)
			w.runs(11*time.Second, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, gate.Options{After: time.Minute})
				test(w)
				if fault := w.found(); fault != "" {
					t.Error(fault)
				}
			})
		})
	}
}

// runs lets time pass and checks how many Machines run then.
func (w *world) runs(after time.Duration, want int) {
	w.Helper()
	time.Sleep(after)
	synctest.Wait()
	if got := w.running(); got != want {
		w.Fatalf("%d machines run, want %d", got, want)
	}
}

// TestExcess has Machines stopped that others can do without, although they have some load.
func TestExcess(t *testing.T) {
	for name, test := range map[string]func(w *world, a, b *machine){
		"once the visits have ended": func(w *world, a, b *machine) {
			leaveA, leaveB := w.enter(a), w.enter(b)
			time.Sleep(11 * time.Second)
			synctest.Wait()
			spare, other := a, b
			if a.Open() == b.Open() {
				w.Fatal("neither drains, or both")
			}
			if a.Open() {
				spare, other = b, a
			}
			w.enter(other)() // the load goes there
			w.runs(time.Second, 2)
			leaveA()
			leaveB()
			w.runs(time.Millisecond, 1)
			if w.serves(spare) {
				w.Error("the other one was stopped")
			}
		},
		"however short and frequent requests are": func(w *world, a, b *machine) {
			for range 30 {
				for _, m := range []*machine{a, b} {
					if leave, err := m.Enter(8080); err == nil {
						time.Sleep(time.Millisecond)
						leave()
					}
				}
				time.Sleep(time.Second)
			}
			w.runs(0, 1)
		},
		"or stays if no visit ends": func(w *world, a, b *machine) {
			defer w.enter(a)()
			defer w.enter(b)()
			time.Sleep(45 * time.Second)
			synctest.Wait()
			w.runs(time.Second, 2)
		},
		"unless it is needed": func(w *world, a, b *machine) {
			leaveA, leaveB := w.enter(a), w.enter(b)
			time.Sleep(11 * time.Second)
			synctest.Wait()
			for _, m := range []*machine{a, b} {
				if open, _ := m.Reopen(); !open {
					w.Error("a machine that drains cannot be reopened")
				}
			}
			leaveA()
			leaveB()
			w.runs(time.Second, 2)
		},
		"unless it says that it is busy": func(w *world, a, b *machine) {
			leaveA, leaveB := w.enter(a), w.enter(b)
			time.Sleep(11 * time.Second)
			synctest.Wait()
			for _, m := range []*machine{a, b} {
				w.set(m, func(t *gate.Terms) { t.Busy = time.Now().Add(time.Hour) })
				if !m.Open() {
					w.Error("a machine that is busy drains")
				}
			}
			leaveA()
			leaveB()
			w.runs(30*time.Minute, 2)
		},
		"unless the others are full": func(w *world, a, b *machine) {
			for range 4 {
				defer w.enter(a)()
			}
			defer w.enter(b)()
			for range 60 {
				w.runs(time.Second, 2)
				if !a.Open() || !b.Open() {
					w.Fatal("one of two that are needed drains")
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, gate.Options{})
				test(w, w.add(limits(4, 8)), w.add(limits(4, 8)))
				if fault := w.found(); fault != "" {
					t.Error(fault)
				}
			})
		})
	}
}

// TestManyIdle stops ten thousand at once, of which many are stopped at a time.
func TestManyIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, gate.Options{})
		for range 10_000 {
			w.add(func(s *hangar.Service) { s.MinMachinesRunning = new(2) })
		}
		w.runs(11*time.Second, 2)
	})
}

// TestRace lets many in and out while the gate is closed whenever it is empty.
func TestRace(t *testing.T) {
	w := newWorld(t, gate.Options{})
	m := w.add(limits(1, 3), func(s *hangar.Service) { s.AutostopAfter = new(hangar.Duration(50 * time.Microsecond)) })
	var most, refused, entered atomic.Int64
	var group sync.WaitGroup
	until := time.Now().Add(time.Second)
	for range 4 {
		group.Go(func() {
			for time.Now().Before(until) {
				leave, err := m.Enter(8080)
				if err != nil {
					if errors.Is(err, gate.ErrShut) {
						refused.Add(1)
						w.set(m, func(t *gate.Terms) { t.Open = true })
					}
					continue
				}
				n := m.in.Add(1)
				for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
				}
				entered.Add(1)
				m.in.Add(-1)
				leave()
				if entered.Load()%64 == 0 {
					time.Sleep(100 * time.Microsecond)
				}
			}
		})
	}
	group.Wait()
	if fault := w.found(); fault != "" {
		t.Error(fault)
	}
	if most.Load() > 3 {
		t.Errorf("%d were in at once", most.Load())
	}
	t.Logf("%d entered, %d were refused, %d stops", entered.Load(), refused.Load(), w.stops.Load())
}

func BenchmarkEnter(b *testing.B) {
	w := newWorld(b, gate.Options{})
	m := w.add(limits(20, 0))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			g := w.Find(m.ref)
			leave, err := g.Enter(8080)
			if err != nil {
				b.Error(err)
				return
			}
			leave()
		}
	})
}

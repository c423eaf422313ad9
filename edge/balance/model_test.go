package balance_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
)

// step is one thing that happens: to Machine N, or to the N-th request.
type step struct {
	What string
	N    int
	A, B int
}

const modelMachines = 4

var steps = []string{
	"ask", "ask", "ask", "ask", "ask with exclusions", "ask for instance", "ask in regions", "release", "release", "release", "cancel", "release and cancel", "fail",
	"cordon", "check", "stop", "suspend", "start", "limits", "autostart", "forget", "services", "drain", "others", "wake fails", "sleep", "sleep",
}

// model plays steps in a world, and checks the invariants.
type model struct {
	*world
	asked    []*request
	refused  map[hangar.MachineID]time.Time // when the gate last did
	refusals int
	failedAt map[hangar.MachineID]time.Time // when waking last did

	mu    sync.Mutex // guards what follows
	wrong error      // what the gate saw
}

type request struct {
	*outcome
	sel   balance.Selector
	as    hangar.Handling
	ended bool // it was released, or got no permit
	seen  bool // check has seen its permit
}

// TestModel: after every step, no request is admitted where it may not be, none waits while a
// candidate is available, or could be woken and is not, and waiters are served first come, first served.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		script := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				What: rapid.SampledFrom(steps).Draw(rt, "what"), N: rapid.IntRange(1, modelMachines).Draw(rt, "n"),
				A: rapid.IntRange(0, 5).Draw(rt, "a"), B: rapid.IntRange(0, 5).Draw(rt, "b"),
			}
		}), 1, 80).Draw(rt, "script")
		var err error
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(o *balance.Options) { o.QueueWait, o.WakeWait = time.Minute, time.Minute })
			m := &model{world: w, refused: map[hangar.MachineID]time.Time{}, failedAt: map[hangar.MachineID]time.Time{}}
			stop := w.run(t)
			err = m.play(script)
			m.end()
			stop()
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}

func (m *model) play(script []step) error {
	m.gate.entered = func(id hangar.MachineID) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if row, ok := m.feed.Row(id); !ok || row.Machine.Cordoned || !row.Machine.Ready(8080) {
			m.wrong = fmt.Errorf("a request got into %s", id)
		}
	}
	m.gate.refused = func(id hangar.MachineID, err error) {
		if hangar.ReasonOf(err) == hangar.ReasonAtLimit && m.gate.machines[id].others == 0 && !m.gate.machines[id].lost {
			m.wrong = fmt.Errorf("a request went to %s, which is at its limit", id)
		}
		m.refused[id] = time.Now()
		m.refusals++
	}
	m.gate.failed = func(id hangar.MachineID) { m.failedAt[id] = time.Now() }
	for n := range modelMachines {
		r := hangar.Region("ams")
		if n == modelMachines-1 {
			r = "fra"
		}
		m.put(n+1, region(r), limits(1, 2), state([]hangar.MachineState{stopped, hangar.MachineStarted}[n%2]))
		m.slow(n+1, 100*time.Millisecond, nil)
	}
	synctest.Wait()
	for i, s := range script {
		m.gate.mu.Lock() // what the gate notes from here on comes after the last check
		before := m.refusals
		m.gate.mu.Unlock()
		m.step(s)
		synctest.Wait()
		if err := m.check(m.refusals == before); err != nil {
			return fmt.Errorf("after step %d, %+v: %w", i, s, err)
		}
	}
	return m.drain()
}

func (m *model) request(n int, alive func(*request) bool) *request {
	var list []*request
	for _, r := range m.asked {
		if alive(r) {
			list = append(list, r)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[n%len(list)]
}

func (m *model) ask(sel balance.Selector) {
	if ep, ok := m.b.Endpoint(m.route, false, 80); ok {
		m.asked = append(m.asked, &request{outcome: m.world.ask(sel), sel: sel, as: ep.Handling})
	}
}

func admitted(r *request) bool { return !r.ended && !r.waits() && r.err == nil }

func (m *model) row(n int) *hangar.MachineRow {
	if row, ok := m.feed.Row(id(n)); ok {
		return &row
	}
	return nil
}

func (m *model) step(s step) {
	row := m.row(s.N)
	if row == nil && !slices.Contains([]string{"ask", "ask with exclusions", "ask for instance", "ask in regions", "release", "cancel", "release and cancel", "fail", "sleep"}, s.What) {
		m.put(s.N, region([]hangar.Region{"ams", "fra"}[s.A%2]), limits(1, 2))
		m.slow(s.N, 100*time.Millisecond, nil)
		return
	}
	switch s.What {
	case "ask":
		m.ask(balance.Selector{})
	case "ask with exclusions":
		m.ask(balance.Selector{Exclude: []hangar.MachineID{id(s.N), id(s.A)}, Prefer: id(s.B)})
	case "ask for instance":
		m.ask(balance.Selector{Instance: id(s.N)})
	case "ask in regions":
		m.ask(balance.Selector{Regions: []hangar.Region{"fra", "eu"}[s.A%2:], OnlyRegions: s.B%2 == 0})
	case "release":
		if r := m.request(s.N+s.A, admitted); r != nil {
			r.permit.Release()
			r.permit.Release()
			r.ended = true
		}
	case "fail":
		if r := m.request(s.N+s.A, admitted); r != nil {
			r.permit.Failed(errors.New("reset"))
		}
	case "release and cancel":
		r, waiting := m.request(s.N+s.A, admitted), m.request(s.B, func(r *request) bool { return r.waits() })
		if r != nil && waiting != nil {
			r.permit.Release()
			waiting.cancel()
			<-waiting.done
			r.ended, waiting.ended = true, waiting.err != nil
		}
	case "cancel":
		if r := m.request(s.N+s.A, func(r *request) bool { return r.waits() }); r != nil {
			r.cancel()
			r.ended = true
		}
	case "cordon":
		m.put(s.N, cordoned(s.A%2 == 0))
	case "check":
		m.put(s.N, version(fmt.Sprint(row.Seq+10)), checked([]hangar.CheckStatus{hangar.CheckPassing, hangar.CheckPassing, hangar.CheckCritical}[s.A%3]))
	case "stop", "suspend":
		if row.Machine.State == hangar.MachineStarted {
			m.put(s.N, state(hangar.MachineStopping))
			synctest.Wait()
			m.put(s.N, state(map[string]hangar.MachineState{"stop": stopped, "suspend": suspended}[s.What]))
		}
	case "start":
		if row.Machine.State.AtRest() {
			m.gate.mu.Lock()
			if g := m.gate.machines[id(s.N)]; g.waking == nil && g.wakeErr == nil {
				m.gate.begin(g)
			}
			m.gate.mu.Unlock()
		}
	case "limits":
		hard := s.A
		m.put(s.N, version(fmt.Sprint(row.Seq+10)), limits(1+s.B, hard))
	case "autostart":
		option := []option{autostart(true), autostart(false), autostartAbsent}[s.A%3]
		m.put(s.N, version(fmt.Sprint(row.Seq+10)), option)
	case "forget":
		m.gate.set(id(s.N), func(g *guest) { g.state, g.lost = stopped, true })
		m.forget(s.N)
	case "services":
		m.put(s.N, version(fmt.Sprint(row.Seq+10)), func(r *hangar.MachineRow) {
			r.Machine.Config.Services[0].Ports = [][]hangar.ServicePort{
				{{Port: 80, Handlers: []string{"http"}}}, {{StartPort: 70, EndPort: 90, Handlers: []string{"http"}}}, {{Port: 81}}, {{Port: 80, Handlers: []string{"tls"}}},
			}[s.A%4]
		})
	case "drain":
		m.gate.set(id(s.N), func(g *guest) { g.draining = s.A%2 == 0 })
	case "others":
		m.gate.set(id(s.N), func(g *guest) {
			if g.in += s.A%2 - g.others; true {
				g.others = s.A % 2
			}
		})
	case "wake fails":
		m.gate.set(id(s.N), func(g *guest) {
			if g.wakeErr = nil; s.A%2 == 0 {
				g.wakeErr = hangar.Errorf(hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "full")
			}
		})
	case "sleep":
		time.Sleep([]time.Duration{time.Millisecond, 60 * time.Millisecond, 120 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second, 12 * time.Second}[s.A])
	}
}

// check returns the invariant that does not hold.
func (m *model) check(orderly bool) error {
	inFlight, err := m.b.Verify(testApp)
	if err != nil {
		return err
	}
	if m.wrong != nil {
		return m.wrong
	}
	late := false // an unrestricted request was admitted in this step
	for _, r := range slices.Backward(m.asked) {
		switch {
		case r.waits():
			plain := r.sel.Instance == "" && r.sel.Regions == nil && r.sel.Exclude == nil
			if plain && late && orderly {
				return errors.New("a later request was admitted first")
			}
			if err := m.wrongWait(r, inFlight); err != nil {
				return err
			}
		case r.err == nil && !r.seen:
			r.seen = true
			late = late || r.sel.Instance == "" && r.sel.Regions == nil && r.sel.Exclude == nil
			if excluded := r.sel.Exclude; slices.Contains(excluded, r.permit.Row.Machine.ID) || r.sel.Instance != "" && r.sel.Instance != r.permit.Row.Machine.ID ||
				r.sel.OnlyRegions && !r.sel.Regions[len(r.sel.Regions)-1].Covers(r.permit.Row.Machine.Region) {
				return fmt.Errorf("%+v got %s", r.sel, r.permit.Row.Machine.ID)
			}
		}
	}
	return nil
}

// wrongWait says why a request should not be waiting.
func (m *model) wrongWait(r *request, inFlight map[hangar.MachineID]int) error {
	now, coming := time.Now(), false
	var toWake []hangar.MachineID
	ep, ok := m.b.Endpoint(m.route, false, 80)
	if !ok || ep.Handling != r.as {
		return errors.New("waits for a port that is not served")
	}
	for n := range modelMachines {
		row := m.row(n + 1)
		if row == nil || slices.Contains(r.sel.Exclude, id(n+1)) || r.sel.Instance != "" && r.sel.Instance != id(n+1) {
			continue
		}
		mach := &row.Machine
		if r.sel.OnlyRegions && !slices.ContainsFunc(r.sel.Regions, func(x hangar.Region) bool { return x.Covers(mach.Region) }) {
			continue
		}
		if p := &mach.Config.Services[0].Ports[0]; !p.Covers(80) || p.Handling() != r.as || mach.Cordoned {
			continue
		}
		m.gate.mu.Lock()
		g := *m.gate.machines[id(n+1)]
		m.gate.mu.Unlock()
		switch {
		case g.waking != nil || !mach.Ready(8080) && mach.State == hangar.MachineStarted || mach.State == hangar.MachineStarting:
			coming = true
		case mach.State == hangar.MachineStarted:
			if !g.draining && (g.hard == 0 || g.in < g.hard && inFlight[mach.ID] < g.hard) && now.Sub(m.refused[mach.ID]) > refusal {
				return fmt.Errorf("waits although %s has room: %+v", mach.ID, g)
			}
		case mach.State.AtRest() && mach.Config.Autostarts(&mach.Config.Services[0], len(m.feed.Machines()) == 1) && now.Sub(m.failedAt[mach.ID]) > balance.MaxWakeBackoff:
			toWake = append(toWake, mach.ID)
		}
	}
	if !coming && len(toWake) > 0 {
		return fmt.Errorf("waits although %v could be woken", toWake)
	}
	return nil
}

const refusal = 260 * time.Millisecond

// drain releases all permits; every waiter must then be admitted or get an error.
func (m *model) drain() error {
	for n := range modelMachines {
		m.gate.set(id(n+1), func(g *guest) { g.draining, g.wakeErr, g.in, g.others = false, nil, g.in-g.others, 0 })
	}
	for range 1000 {
		waiting := 0
		for _, r := range m.asked {
			if admitted(r) {
				r.permit.Release()
				r.ended = true
			}
			if r.waits() {
				waiting++
			}
		}
		if waiting == 0 {
			break
		}
		time.Sleep(time.Second)
	}
	if err := m.check(false); err != nil {
		return err
	}
	for _, r := range m.asked {
		var e *hangar.EdgeError
		switch {
		case r.waits():
			return errors.New("a request waits without end")
		case r.err != nil && !errors.As(r.err, &e):
			return fmt.Errorf("not an error of the edge: %w", r.err)
		}
	}
	inFlight, err := m.b.Verify(testApp)
	for id, n := range inFlight {
		if n != 0 || m.gate.in(id) != 0 {
			return fmt.Errorf("%d and %d are left in %s", n, m.gate.in(id), id)
		}
	}
	return err
}

// end cancels all requests.
func (m *model) end() {
	for _, r := range m.asked {
		r.cancel()
		<-r.done
	}
}

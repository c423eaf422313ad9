package balance_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// gate is the gate of a host with Machines in memory. It decides which requests may enter: its
// state may be ahead of the rows that the edge has.
type gate struct {
	mu       sync.Mutex
	machines map[hangar.MachineID]*guest
	wakes    []hangar.MachineID
	// Called with mu held: after a request was admitted, after one was refused, and after a wake failed.
	entered func(hangar.MachineID)
	refused func(hangar.MachineID, error)
	failed  func(hangar.MachineID)
	down    bool // the host cannot be reached
}

// guest is a Machine of a gate.
type guest struct {
	state    hangar.MachineState
	cordoned bool
	draining bool
	hard     int
	in       int
	lost     bool // the edge has lost its counts
	others   int  // in, by other edges
	most     int  // in, at most

	wakeDelay time.Duration
	wakeErr   error         // what waking ends with
	waking    chan struct{} // closed when the start under way ends
	woke      func(state hangar.MachineState)
	dialErr   error
}

func newGate() *gate { return &gate{machines: map[hangar.MachineID]*guest{}} }

func (g *gate) Gate(hangar.HostID) (hangar.MachineGate, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.down {
		return nil, hangar.Errorf(hangar.CodeUnavailable, "", "host cannot be reached")
	}
	return g, nil
}

func (g *gate) EnterMachine(ref hangar.MachineRef, _ int) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.machines[ref.ID]
	if g.refused != nil {
		defer func() {
			if err != nil {
				g.refused(ref.ID, err)
			}
		}()
	}
	switch {
	case m == nil:
		return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "no machine %s", ref.ID)
	case m.state != hangar.MachineStarted || m.cordoned || m.draining:
		return nil, hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonWrongState, "machine %s is %s", ref.ID, m.state)
	case m.hard > 0 && m.in >= m.hard:
		return nil, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonAtLimit, "machine %s is full", ref.ID)
	}
	m.in++
	m.most = max(m.most, m.in)
	if g.entered != nil {
		g.entered(ref.ID)
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		m.in--
	}, nil
}

func (g *gate) DialService(_ context.Context, ref hangar.MachineRef, _ int) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.machines[ref.ID].dialErr; err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	far.Close()
	return near, nil
}

func (g *gate) DialDatagrams(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	return g.DialService(ctx, ref, port)
}

func (g *gate) WakeMachine(ctx context.Context, ref hangar.MachineRef, _ int) error {
	g.mu.Lock()
	m := g.machines[ref.ID]
	if m == nil {
		g.mu.Unlock()
		return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "no machine %s", ref.ID)
	}
	if m.state == hangar.MachineStarted {
		g.mu.Unlock()
		return nil
	}
	if m.waking == nil {
		if m.state != hangar.MachineStopped && m.state != hangar.MachineSuspended {
			g.mu.Unlock()
			return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "machine %s is %s", ref.ID, m.state)
		}
		g.wakes = append(g.wakes, ref.ID)
		g.begin(m)
	}
	done := m.waking
	g.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("wake: %w", ctx.Err())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.wakeErr != nil && g.failed != nil {
		g.failed(ref.ID)
	}
	return m.wakeErr
}

// begin starts a guest. The start continues when there is no waiter left.
func (g *gate) begin(m *guest) {
	from, done := m.state, make(chan struct{})
	m.waking = done
	if m.wakeErr == nil || m.wakeDelay > 0 {
		m.turn(hangar.MachineStarting)
	}
	time.AfterFunc(m.wakeDelay, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		m.waking = nil
		if m.wakeErr == nil {
			m.draining = false
			m.turn(hangar.MachineStarted)
		} else {
			m.turn(from)
		}
		close(done)
	})
}

func (m *guest) turn(state hangar.MachineState) {
	m.state = state
	if m.woke != nil {
		m.woke(state)
	}
}

func (g *gate) OpenMachineFile(context.Context, hangar.MachineRef, string) (hangar.MachineFile, error) {
	return nil, errors.ErrUnsupported
}

func (g *gate) LogEdge(hangar.MachineRef, string, string) {}

// set changes a guest.
func (g *gate) set(id hangar.MachineID, alter func(*guest)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.machines[id]
	if m == nil {
		m = &guest{}
		g.machines[id] = m
	}
	alter(m)
}

func (g *gate) woken() []hangar.MachineID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]hangar.MachineID(nil), g.wakes...)
}

func (g *gate) in(id hangar.MachineID) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.machines[id].in
}

package balance

import (
	"math"

	"github.com/hangar-platform/hangar"
)

// exit is the end of the program in a Machine, other than by a suspend. Requests that were in
// flight there will get no answer, although their connections may stay silent instead of failing.
type exit struct {
	since uint64 // Seq of the first row that showed the program running
	until uint64 // Seq of the row that showed its end; 0: no program has ended
}

// covers reports whether a permit that was given by a row belonged to the program that ended, or
// to an earlier one. A row that does not show a started Machine is stale: its permit belongs to
// the program that a wake has just started.
func (e exit) covers(row *hangar.MachineRow) bool {
	return row.Seq < e.until && (row.Machine.State == hangar.MachineStarted || row.Seq < e.since)
}

// observeProgram updates the state of the Machine's program, before the Machine has the row, and
// returns its exit if the row shows one. A program that is asked to stop may still answer.
func (m *machine) observeProgram(row *hangar.MachineRow) (e exit, ended bool) {
	was := m.runningSince
	e = exit{since: m.runningSince, until: math.MaxUint64}
	if row == nil {
		m.runningSince = 0
		return e, was != 0
	}
	e.until = row.Seq
	switch row.Machine.State {
	case hangar.MachineStarted:
		if m.runningSince != 0 && m.version == row.Machine.InstanceID && m.losses == row.Losses {
			return e, false
		}
		m.runningSince, m.version, m.losses = row.Seq, row.Machine.InstanceID, row.Losses
	case hangar.MachineStarting:
		if m.row != nil && (m.row.Machine.State == hangar.MachineSuspended || m.row.Machine.State == hangar.MachineStarting) {
			return e, false // a resume
		}
		m.runningSince = 0
	case hangar.MachineCreated, hangar.MachineStopped, hangar.MachineFailed, hangar.MachineDestroying, hangar.MachineDestroyed:
		m.runningSince = 0
	default: // stopping, suspending, suspended, …: the program may go on
		return e, false
	}
	return e, was != 0
}

// inFlight is how many permits of the Machine are not released.
func (m *machine) inFlight() (n int) {
	for _, c := range m.candidates {
		n += c.inFlight
	}
	return n
}

// noteExit records an exit, and calls what its permits have registered.
func (m *machine) noteExit(e exit) {
	m.lastExit = e
	for permit, f := range m.onExit {
		if e.covers(permit.Row) {
			delete(m.onExit, permit)
			go f()
		}
	}
}

// Alone reports whether no other request has been in flight in the Machine since this permit
// was given.
func (p *Permit) Alone() bool {
	p.app.mu.Lock()
	defer p.app.mu.Unlock()
	return !p.shared && p.candidate.machine.admitted == p.admitted
}

// Crashed reports whether the Machine's program has crashed since the permit was given. It is not
// known until a row shows that the program has ended.
func (p *Permit) Crashed() (crashed, known bool) {
	p.app.mu.Lock()
	defer p.app.mu.Unlock()
	row := p.candidate.machine.row
	switch {
	case row == nil:
		return false, true
	case row.Crashes > p.Row.Crashes:
		return true, true
	case row.Machine.State == hangar.MachineStarted || row.Machine.State == hangar.MachineStarting:
		return false, false
	default:
		return false, row.Seq > p.Row.Seq
	}
}

// OnExit calls f, in a goroutine of its own, when the permit's program exits, or at once if it
// has. A suspend is no exit: connections survive it. After an exit they are stale, but may stay
// silent instead of failing. Another call replaces f; stop and Release remove it.
func (p *Permit) OnExit(f func()) (stop func()) {
	a, m := p.app, p.candidate.machine
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.lastExit.covers(p.Row) {
		go f()
		return func() {}
	}
	if m.onExit == nil {
		m.onExit = make(map[*Permit]func())
	}
	m.onExit[p] = f
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(m.onExit, p)
	}
}

package balance

import (
	"math"

	"github.com/hangar-platform/hangar"
)

// ending says that the program which a Machine ran is no more: what was under way there will
// not go on, although nobody may ever say so on its connections.
type exit struct {
	since uint64 // Seq of the first row that showed the program running
	until uint64 // Seq of the row that showed its end; 0: none has ended
}

// ends reports whether a seat that was given by a row of the Machine was one of the program
// that is no more, or of one before. One whose row did not show a started Machine was woken
// ahead of its rows.
func (e exit) covers(row *hangar.MachineRow) bool {
	return row.Seq < e.until && (row.Machine.State == hangar.MachineStarted || row.Seq < e.since)
}

// outlived takes note of what a row says of the program of a Machine, before the Machine has
// the row, and returns its end if it is one. While a Machine is asked to stop, its program may
// still answer.
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
			return e, false // it is resumed
		}
		m.runningSince = 0
	case hangar.MachineCreated, hangar.MachineStopped, hangar.MachineFailed, hangar.MachineDestroying, hangar.MachineDestroyed:
		m.runningSince = 0
	default: // on the way to or from rest
		return e, false
	}
	return e, was != 0
}

// load is how many seats of the Machine are taken.
func (m *machine) inFlight() (n int) {
	for _, c := range m.candidates {
		n += c.inFlight
	}
	return n
}

// end notes that the program of the Machine has ended, and tells whose seats were of it.
func (m *machine) noteExit(e exit) {
	m.lastExit = e
	for permit, f := range m.onExit {
		if e.covers(permit.Row) {
			delete(m.onExit, permit)
			go f()
		}
	}
}

// Alone reports whether nobody else has had a seat in the Machine since this one was taken.
func (p *Permit) Alone() bool {
	p.app.mu.Lock()
	defer p.app.mu.Unlock()
	return !p.shared && p.candidate.machine.admitted == p.admitted
}

// Crashed reports whether the Machine's program has ended by itself since the seat was taken. It
// is not known as long as the rows of the Machine say nothing of an end.
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

// OnEnd has f called, by a goroutine of its own, when the program has ended of which the seat
// is, other than by a suspend, which its connections survive; also if that was just before.
// Connections to it are void then, and nobody may ever say so on them. Asked again, the last f
// counts; stop takes it back, and so does Leave.
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

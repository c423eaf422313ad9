package balance

import (
	"math"

	"github.com/hangar-platform/hangar"
)

// ending says that the program which a Machine ran is no more: what was under way there will
// not go on, although nobody may ever say so on its connections.
type ending struct {
	since  uint64 // Seq of the first row that showed the program running
	before uint64 // Seq of the row that showed its end; 0: none has ended
}

// ends reports whether a seat that was given by a row of the Machine was one of the program
// that is no more, or of one before. One whose row did not show a started Machine was woken
// ahead of its rows.
func (e ending) ends(row *hangar.MachineRow) bool {
	return row.Seq < e.before && (row.Machine.State == hangar.MachineStarted || row.Seq < e.since)
}

// outlived takes note of what a row says of the program of a Machine, before the Machine has
// the row, and returns its end if it is one. While a Machine is asked to stop, its program may
// still answer.
func (m *machine) outlived(row *hangar.MachineRow) (e ending, ended bool) {
	was := m.boot
	e = ending{since: m.boot, before: math.MaxUint64}
	if row == nil {
		m.boot = 0
		return e, was != 0
	}
	e.before = row.Seq
	switch row.Machine.State {
	case hangar.MachineStarted:
		if m.boot != 0 && m.version == row.Machine.InstanceID && m.losses == row.Losses {
			return e, false
		}
		m.boot, m.version, m.losses = row.Seq, row.Machine.InstanceID, row.Losses
	case hangar.MachineStarting:
		if m.row != nil && (m.row.Machine.State == hangar.MachineSuspended || m.row.Machine.State == hangar.MachineStarting) {
			return e, false // it is resumed
		}
		m.boot = 0
	case hangar.MachineCreated, hangar.MachineStopped, hangar.MachineFailed, hangar.MachineDestroying, hangar.MachineDestroyed:
		m.boot = 0
	default: // on the way to or from rest
		return e, false
	}
	return e, was != 0
}

// load is how many seats of the Machine are taken.
func (m *machine) load() (n int) {
	for _, s := range m.slots {
		n += s.load
	}
	return n
}

// end notes that the program of the Machine has ended, and tells whose seats were of it.
func (m *machine) end(e ending) {
	m.latest = e
	for seat, f := range m.tell {
		if e.ends(seat.Row) {
			delete(m.tell, seat)
			go f()
		}
	}
}

// Alone reports whether nobody else has had a seat in the Machine since this one was taken.
func (t *Seat) Alone() bool {
	t.app.mu.Lock()
	defer t.app.mu.Unlock()
	return !t.shared && t.slot.m.taken == t.taken
}

// Crashed reports whether the Machine's program has ended by itself since the seat was taken. It
// is not known as long as the rows of the Machine say nothing of an end.
func (t *Seat) Crashed() (crashed, known bool) {
	t.app.mu.Lock()
	defer t.app.mu.Unlock()
	row := t.slot.m.row
	switch {
	case row == nil:
		return false, true
	case row.Crashes > t.Row.Crashes:
		return true, true
	case row.Machine.State == hangar.MachineStarted || row.Machine.State == hangar.MachineStarting:
		return false, false
	default:
		return false, row.Seq > t.Row.Seq
	}
}

// OnEnd has f called, by a goroutine of its own, when the program has ended of which the seat
// is, other than by a suspend, which its connections survive; also if that was just before.
// Connections to it are void then, and nobody may ever say so on them. Asked again, the last f
// counts; stop takes it back, and so does Leave.
func (t *Seat) OnEnd(f func()) (stop func()) {
	a, m := t.app, t.slot.m
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.latest.ends(t.Row) {
		go f()
		return func() {}
	}
	if m.tell == nil {
		m.tell = make(map[*Seat]func())
	}
	m.tell[t] = f
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(m.tell, t)
	}
}

package balance

import (
	"math"
	"slices"

	"github.com/hangar-platform/hangar"
)

// Ending says that the program which a Machine ran is no more: what was under way there will
// not go on, although nobody may ever say so on its connections.
type Ending struct {
	Machine hangar.MachineID
	since   uint64 // Seq of the first row that showed the program running
	before  uint64 // Seq of the row that showed its end
}

// Ends reports whether a seat that was given by a row was one of the program that is no more.
// One whose row did not show a started Machine was woken ahead of its rows.
func (e Ending) Ends(row *hangar.MachineRow) bool {
	return row.Machine.ID == e.Machine && row.Seq < e.before && (row.Machine.State == hangar.MachineStarted || row.Seq < e.since)
}

// Ended adds a function that is called when the program of a Machine has ended, other than by
// a suspend, which its connections survive. It is called as that of Gone is.
func (b *Balancer) Ended(fn func(Ending)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = append(slices.Clip(b.ended), fn)
}

// outlived takes note of what a row says of the program of a Machine, before the Machine has
// the row, and returns its end if it is one. While a Machine is asked to stop, its program may
// still answer.
func (m *machine) outlived(row *hangar.MachineRow) (e Ending, ended bool) {
	was := m.boot
	e = Ending{Machine: m.id, since: m.boot, before: math.MaxUint64}
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

// end notes that the program of the Machine has ended, and tells whose seats were of it.
func (m *machine) end(e Ending) {
	m.latest = e
	for seat, f := range m.ending {
		if e.Ends(seat.Row) {
			delete(m.ending, seat)
			go f()
		}
	}
}

// OnEnd has f called, by a goroutine of its own, when the program has ended of which the seat
// is, also if that was just before. Connections to it are void then, and nobody may ever say so
// on them. It is asked once for a seat; stop takes it back.
func (t *Seat) OnEnd(f func()) (stop func()) {
	a, m := t.app, t.slot.m
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.latest.Ends(t.Row) {
		go f()
		return func() {}
	}
	if m.ending == nil {
		m.ending = make(map[*Seat]func())
	}
	m.ending[t] = f
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(m.ending, t)
	}
}

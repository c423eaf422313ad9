package balance

import "github.com/hangar-platform/hangar"

// slot is a service of a Machine: what a request takes a seat in. Times are those of
// Balancer.now; 0: none.
type slot struct {
	// What every request reads stands together.
	place  place
	byRow  class // see prospect
	waking bool  // it is being started, or its port not proven
	load   int   // seats taken
	hard   int   // 0: none
	soft   int
	zone   *zone // nil: the Machine has no such service any more
	crowd  *crowd
	m      *machine

	// proving is closed when the Machine does not run any more whose port is being proven; nil:
	// none is.
	proving chan struct{}

	refusedUntil int64 // the host said that it lets nobody in
	refusals     int   // in a row, without a change of the row
	limitUntil   int64 // the host said that it is full
	avoidUntil   int64 // connections failed
	graceUntil   int64 // it was started a short while ago
	failures     int   // in a row, of connections
	epoch        int   // grows with each of them
	wokenAt      int64 // when a wake that this edge asked for ended well

	wakeAfter    int64 // waking it failed
	wakeFailures int   // in a row
	wakeErr      *hangar.EdgeError
	service      *hangar.Service
	autostarts   bool // a request may start the Machine
	// up is that it was woken and its row does not say so yet: upRow is the row of then.
	up    bool
	upRow *hangar.MachineRow
}

// adopt takes what the slot has to know from the row. only: the App has no other Machine.
func (s *slot) adopt(row *hangar.MachineRow, only bool) {
	if row == nil {
		return
	}
	m := &row.Machine
	for i := range m.Config.Services {
		if sv := &m.Config.Services[i]; sv.InternalPort == s.crowd.port && sv.UDP() == s.crowd.udp {
			s.service, s.hard, s.soft = sv, sv.HardLimit(), sv.SoftLimit()
			s.autostarts = m.Config.Autostarts(sv, only)
			break
		}
	}
	if s.up && m.State != hangar.MachineStarting && row != s.upRow {
		s.up = false
	}
	s.byRow = s.prospect(m)
}

// prospect says what a slot is good for by the row of its Machine alone: open, if requests
// may be sent there.
func (s *slot) prospect(m *hangar.Machine) class {
	state := m.State
	if s.up {
		state = hangar.MachineStarted
	}
	if m.Cordoned || m.HostStatus == "unreachable" {
		return dead
	}
	switch state {
	case hangar.MachineStarted:
		if m.Ready(s.crowd.port) {
			return open
		}
		return unready
	case hangar.MachineStopped, hangar.MachineSuspended:
		if s.autostarts && !m.Config.StandsBy() {
			return wakeable
		}
		return dead
	case hangar.MachineStarting:
		return starting
	case hangar.MachineCreated, hangar.MachineRestarting, hangar.MachineReplacing:
		return pending // an image may have to be fetched, or the Machine crashes again and again
	case hangar.MachineStopping, hangar.MachineSuspending:
		if s.autostarts {
			return settling
		}
		return dead
	default:
		return dead
	}
}

// classify says what a slot is good for at a moment.
func (s *slot) classify(now int64) class {
	if s.waking && s.byRow != dead {
		return waking
	}
	switch {
	case s.byRow == unready && now < s.graceUntil:
		return starting
	case s.byRow == wakeable && now < s.wakeAfter:
		return dead
	case s.byRow != open:
		return s.byRow
	case now < s.refusedUntil:
		return settling
	case s.refusals > 1 && s.autostarts:
		return wakeable // its row may be old: the host knows whether it runs
	case s.hard > 0 && s.load >= s.hard || now < s.limitUntil:
		return full
	default:
		return open
	}
}

package balance

import "github.com/hangar-platform/hangar"

// slot is a service of a Machine: what a request takes a seat in. Times are those of
// Balancer.now; 0: none.
type candidate struct {
	// What every request reads stands together.
	pos       position
	byRow     availability // see prospect
	waking    bool         // it is being started, or its port not proven
	inFlight  int          // seats taken
	hardLimit int          // 0: none
	softLimit int
	index     *index // nil: the Machine has no such service any more
	group     *group
	machine   *machine

	// proving is closed when the Machine does not run any more whose port is being proven; nil:
	// none is.
	probing chan struct{}

	refusedUntil  int64 // the host said that it lets nobody in
	refusals      int   // in a row, without a change of the row
	atLimitUntil  int64 // the host said that it is full
	cooldownUntil int64 // connections failed
	graceUntil    int64 // it was started a short while ago
	connFailures  int   // in a row, of connections
	failureEpoch  int   // grows with each of them
	wokenAt       int64 // when a wake that this edge asked for ended well

	wakeBackoffUntil int64 // waking it failed
	wakeFailures     int   // in a row
	wakeErr          *hangar.EdgeError
	service          *hangar.Service
	autostarts       bool // a request may start the Machine
	// up is that it was woken and its row does not say so yet: upRow is the row of then.
	up    bool
	upRow *hangar.MachineRow
}

// adopt takes what the slot has to know from the row. only: the App has no other Machine.
func (c *candidate) applyRow(row *hangar.MachineRow, only bool) {
	if row == nil {
		return
	}
	m := &row.Machine
	for i := range m.Config.Services {
		if sv := &m.Config.Services[i]; sv.InternalPort == c.group.port && sv.UDP() == c.group.udp {
			c.service, c.hardLimit, c.softLimit = sv, sv.HardLimit(), sv.SoftLimit()
			c.autostarts = m.Config.Autostarts(sv, only)
			break
		}
	}
	if c.up && m.State != hangar.MachineStarting && row != c.upRow {
		c.up = false
	}
	c.byRow = c.availabilityByRow(m)
}

// prospect says what a slot is good for by the row of its Machine alone: open, if requests
// may be sent there.
func (c *candidate) availabilityByRow(m *hangar.Machine) availability {
	state := m.State
	if c.up {
		state = hangar.MachineStarted
	}
	if m.Cordoned || m.HostStatus == "unreachable" {
		return unavailable
	}
	switch state {
	case hangar.MachineStarted:
		if m.Ready(c.group.port) {
			return available
		}
		return unhealthy
	case hangar.MachineStopped, hangar.MachineSuspended:
		if c.autostarts && !m.Config.StandsBy() {
			return wakeable
		}
		return unavailable
	case hangar.MachineStarting:
		return starting
	case hangar.MachineCreated, hangar.MachineRestarting, hangar.MachineReplacing:
		return pending // an image may have to be fetched, or the Machine crashes again and again
	case hangar.MachineStopping, hangar.MachineSuspending:
		if c.autostarts {
			return transitioning
		}
		return unavailable
	default:
		return unavailable
	}
}

// classify says what a slot is good for at a moment.
func (c *candidate) availabilityAt(now int64) availability {
	if c.waking && c.byRow != unavailable {
		return waking
	}
	switch {
	case c.byRow == unhealthy && now < c.graceUntil:
		return starting
	case c.byRow == wakeable && now < c.wakeBackoffUntil:
		return unavailable
	case c.byRow != available:
		return c.byRow
	case now < c.refusedUntil:
		return transitioning
	case c.refusals > 1 && c.autostarts:
		return wakeable // its row may be old: the host knows whether it runs
	case c.hardLimit > 0 && c.inFlight >= c.hardLimit || now < c.atLimitUntil:
		return atLimit
	default:
		return available
	}
}

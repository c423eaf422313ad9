package balance

import "github.com/hangar-platform/hangar"

// candidate is one service of one Machine, which may get a request. Times are those of
// Balancer.now; 0: none.
type candidate struct {
	// Every request reads these fields; they share cache lines.
	pos       position
	byRow     availability // see availabilityByRow
	waking    bool         // this edge is starting or probing the Machine
	inFlight  int          // permits that are not released
	hardLimit int          // 0: none
	softLimit int
	index     *index // nil: the Machine no longer has the service
	group     *group
	machine   *machine

	// probing is closed when the Machine stops running during a probe; nil: no probe runs.
	probing chan struct{}

	refusedUntil  int64 // cooldown after the host refused a request
	refusals      int   // in a row, without a change of the row
	atLimitUntil  int64 // cooldown after the host reported its hard limit
	cooldownUntil int64 // cooldown after failed connections
	graceUntil    int64 // grace period after a start
	connFailures  int   // failed connections in a row
	failureEpoch  int   // grows with each of them
	wokenAt       int64 // when the last wake of this edge succeeded

	wakeBackoffUntil int64 // after a failed wake
	wakeFailures     int   // in a row
	wakeErr          *hangar.EdgeError
	autostarts       bool // a request may start the Machine
	// wokenRow is the row at the end of a successful wake, until a newer one replaces it: the
	// Machine runs although that row is stale. nil: the row is current.
	wokenRow *hangar.MachineRow
}

// applyRow copies the fields of a row that balancing reads. only: the App has no other Machine.
func (c *candidate) applyRow(row *hangar.MachineRow, only bool) {
	if row == nil {
		return
	}
	m := &row.Machine
	for i := range m.Config.Services {
		if sv := &m.Config.Services[i]; sv.InternalPort == c.group.port && sv.UDP() == c.group.udp {
			c.hardLimit, c.softLimit = sv.HardLimit(), sv.SoftLimit()
			c.autostarts = m.Config.Autostarts(sv, only)
			break
		}
	}
	if m.State != hangar.MachineStarting && row != c.wokenRow {
		c.wokenRow = nil
	}
	c.byRow = c.availabilityByRow(m)
}

// availabilityByRow derives the availability from the row alone, without limits and cooldowns.
func (c *candidate) availabilityByRow(m *hangar.Machine) availability {
	state := m.State
	if c.wokenRow != nil {
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
		return pending // the host may have to fetch an image, or the Machine crashes in a loop
	case hangar.MachineStopping, hangar.MachineSuspending:
		if c.autostarts {
			return transitioning
		}
		return unavailable
	default:
		return unavailable
	}
}

// availabilityAt is the availability at a moment.
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
		return wakeable // the row may be stale: the host knows whether the Machine runs
	case c.hardLimit > 0 && c.inFlight >= c.hardLimit || now < c.atLimitUntil:
		return atLimit
	default:
		return available
	}
}

// wakeCapacity is how many waiters one woken Machine serves.
func (c *candidate) wakeCapacity() int {
	if c.hardLimit > 0 {
		return c.hardLimit
	}
	return c.softLimit
}

// wokenSince reports whether this edge woke the Machine after a moment. The caller holds app.mu.
func (c *candidate) wokenSince(since int64) bool {
	return c.wokenAt >= since && c.wokenAt != 0
}

package host

import (
	"time"

	"github.com/hangar-platform/hangar"
)

// Limits are the limits of an Agent.
type Limits struct{ Recover, Boot, Suspend, Stop, Release, Close time.Duration }

// SetLimits changes the limits of an Agent that is not open yet.
func SetLimits(a *Agent, change func(*Limits)) {
	l := a.limits.exported()
	change(&l)
	a.limits = limits{recover: l.Recover, boot: l.Boot, suspend: l.Suspend, stop: l.Stop, release: l.Release, close: l.Close}
}

func (l limits) exported() Limits {
	return Limits{Recover: l.recover, Boot: l.boot, Suspend: l.suspend, Stop: l.stop, Release: l.release, Close: l.close}
}

// Waiting returns how many wait for a Machine to change.
func (a *Agent) Waiting(ref hangar.MachineRef) int {
	m, err := a.machine(ref)
	if err != nil {
		return 0
	}
	m.watchers.mu.Lock()
	defer m.watchers.mu.Unlock()
	return len(m.watchers.waiters)
}

package host

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// Crashes plays a Machine that ends with a code each time after it has run for so
// long, and returns how often it is restarted within a day, and how long until the
// policy gives up (0: it does not).
func Crashes(config hangar.MachineConfig, code int, runs time.Duration) (restarts int, after time.Duration) {
	rec := &journal.Record{Machine: hangar.Machine{Config: config}}
	began := time.Unix(0, 0)
	for at := began.Add(runs); at.Sub(began) < 24*time.Hour; at = rec.RestartAt.Add(runs) {
		r := nextRestart(rec, code != 0, at)
		if !r.wanted {
			if !r.exhausted {
				return restarts, 0
			}
			return restarts, at.Sub(began)
		}
		rec.Restarts, rec.RestartAt = r.times, r.at
		restarts++
	}
	return restarts, 0
}

// RunSchedules starts what is due now.
func RunSchedules(ctx context.Context, a *Agent) error {
	_, err := a.runSchedules(ctx)
	return err
}

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

package machines

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// Crashes simulates a Machine that exits with a code each time after running for a given time. It
// returns how often it is restarted within a day, and the time until the policy gives up (0: it
// does not).
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
func RunSchedules(ctx context.Context, s *Store) error {
	_, err := s.schedules.run()
	return err
}

// Limits are the limits of a Store.
type Limits struct{ Recover, Boot, Suspend, Stop, Release, Close time.Duration }

// SetLimits changes the limits of a Store that is not open yet.
func SetLimits(s *Store, change func(*Limits)) {
	l := s.limits.exported()
	change(&l)
	s.limits.recover, s.limits.boot, s.limits.suspend, s.limits.stop = l.Recover, l.Boot, l.Suspend, l.Stop
	s.limits.release, s.limits.close = l.Release, l.Close
}

func (l limits) exported() Limits {
	return Limits{
		Recover: l.recover, Boot: l.boot, Suspend: l.suspend, Stop: l.stop, Release: l.release, Close: l.close,
	}
}

// Waiting returns the number of waiters for a change of a Machine.
func Waiting(s *Store, ref hangar.MachineRef) int {
	m, err := s.machine(ref)
	if err != nil {
		return 0
	}
	m.watchers.mu.Lock()
	defer m.watchers.mu.Unlock()
	return len(m.watchers.waiters)
}

// Probed reports whether there is a waiter for a port of a Machine.
func Probed(s *Store, ref hangar.MachineRef) bool {
	m, err := s.machine(ref)
	if err != nil {
		return false
	}
	m.probes.mu.Lock()
	defer m.probes.mu.Unlock()
	return len(m.probes.waiting) > 0
}

// HoldEdgeLog has no line of the edge written until release is called.
func HoldEdgeLog(s *Store) (release func()) {
	s.index.mu.Lock()
	return s.index.mu.Unlock
}

// RestartAt is when the policy will start a Machine again; zero: no restart is pending.
func RestartAt(s *Store, ref hangar.MachineRef) time.Time {
	m, err := s.machine(ref)
	if err != nil {
		return time.Time{}
	}
	return m.rec.Load().RestartAt
}

// RestartPause is how long a Machine waits for its restart; 0: it does not.
func RestartPause(s *Store, ref hangar.MachineRef) time.Duration {
	m, err := s.machine(ref)
	if err != nil {
		return 0
	}
	rec := m.rec.Load()
	if rec.Machine.State != hangar.MachineRestarting {
		return 0
	}
	return rec.RestartAt.Sub(rec.Since)
}

// Ending is closed when the Store ends its work.
func Ending(s *Store) <-chan struct{} { return s.work.Context.Done() }

// UntilRestart is the rest of the pause before a restart.
var UntilRestart = untilRestart

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
	_, err := a.runSchedules()
	return err
}

// Limits are the limits of an Agent.
type Limits struct{ Recover, Boot, Suspend, Stop, Release, Close time.Duration }

// SetLimits changes the limits of an Agent that is not open yet.
func SetLimits(a *Agent, change func(*Limits)) {
	l := a.limits.exported()
	change(&l)
	a.limits.recover, a.limits.boot, a.limits.suspend, a.limits.stop = l.Recover, l.Boot, l.Suspend, l.Stop
	a.limits.release, a.limits.close = l.Release, l.Close
}

func (l limits) exported() Limits {
	return Limits{
		Recover: l.recover, Boot: l.boot, Suspend: l.suspend, Stop: l.stop, Release: l.release, Close: l.close,
	}
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

// TendVolumes measures the volumes of running Machines once, and extends those that are
// too full. told is why some could not be.
func TendVolumes(ctx context.Context, a *Agent, told map[hangar.VolumeID]string) {
	a.volumes.Tend(ctx, told)
}

// PurgeVolumes removes what is left of destroyed volumes.
func PurgeVolumes(ctx context.Context, a *Agent) { a.volumes.Purge(ctx) }

// SnapshotRound takes the snapshots and drills that are due, and removes what has expired.
func SnapshotRound(ctx context.Context, a *Agent) { a.volumes.Round(ctx) }

// CollectArchive gives back what removed snapshots took.
func CollectArchive(ctx context.Context, a *Agent) error { return a.volumes.Collect(ctx) }

// Probed reports whether somebody waits for a port of a Machine.
func Probed(a *Agent, ref hangar.MachineRef) bool {
	m, err := a.machine(ref)
	if err != nil {
		return false
	}
	m.probes.mu.Lock()
	defer m.probes.mu.Unlock()
	return len(m.probes.waiting) > 0
}

// RestartAt is when a Machine is to be started again by its policy; zero: it waits for no such time.
func RestartAt(a *Agent, ref hangar.MachineRef) time.Time {
	m, err := a.machine(ref)
	if err != nil {
		return time.Time{}
	}
	return m.rec.Load().RestartAt
}

// RestartPause is how long a Machine that is to be restarted waits for that; 0: it does not.
func RestartPause(a *Agent, ref hangar.MachineRef) time.Duration {
	m, err := a.machine(ref)
	if err != nil {
		return 0
	}
	rec := m.rec.Load()
	if rec.Machine.State != hangar.MachineRestarting {
		return 0
	}
	return rec.RestartAt.Sub(rec.Since)
}

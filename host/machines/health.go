package machines

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/check"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Health checks run while a Machine is started. What they find is in memory; only a
// status that changes is journaled, beside the record, and published with the row.
// So a run costs no commit, many changes at once cost one, and the statuses survive
// the daemon.

// checkHealth begins or ends the checks of a Machine that came into its state; before
// is nil when the daemon has just found it. m.mu is held.
func (m *machine) checkHealth(before, now *journal.Record) {
	started := now.Machine.State == hangar.MachineStarted
	if before != nil && (before.Machine.State == hangar.MachineStarted) == started {
		return
	}
	if !started {
		m.store.checks.Forget(m.id)
		return
	}
	t := check.Target{Machine: m.id, Addr: now.Machine.PrivateIP, Checks: now.Machine.Config.NamedChecks()}
	switch {
	case before == nil:
		t.Booted = now.Since
		t.Known = known(now)
	case before.Machine.State == hangar.MachineStarting && !before.Resuming:
		t.Booted = now.Since
	}
	m.store.checks.Watch(t)
}

// shown is the Machine of a record, with the results of its checks.
func (m *machine) shown(rec *journal.Record) hangar.Machine {
	got := rec.Machine
	got.Checks = checksOf(rec, m.store.checks.Results(m.id))
	return got
}

// known is what the journal says of the checks of a record's Machine, since it came
// into its state.
func known(rec *journal.Record) []hangar.MachineCheck {
	if rec.Health == nil || !rec.Health.Since.Equal(rec.Since) {
		return nil
	}
	return rec.Health.Checks
}

// checksOf returns the checks of a record's Machine, of which results are known.
func checksOf(rec *journal.Record, results []hangar.MachineCheck) []hangar.MachineCheck {
	checks := rec.Machine.Config.NamedChecks()
	if len(checks) == 0 {
		return nil
	}
	started := rec.Machine.State == hangar.MachineStarted
	if started && len(results) == len(checks) {
		return results
	}
	output := "the machine hasn't started: it is " + string(rec.Machine.State)
	if started {
		output = check.Unknown
	}
	since := rec.Since
	if since.IsZero() {
		since = rec.Machine.UpdatedAt
	}
	list := make([]hangar.MachineCheck, 0, len(checks))
	for _, k := range checks {
		list = append(list, hangar.MachineCheck{Name: k.Name, Status: hangar.CheckWarning, Output: output, UpdatedAt: since})
	}
	return list
}

// unhealthy are the Machines of which something was found out that the journal does
// not have yet.
type unhealthy struct {
	some chan struct{} // buffered 1: there is one

	mu  sync.Mutex
	ids map[hangar.MachineID]bool // guarded by mu
}

func (u *unhealthy) init() {
	u.some = make(chan struct{}, 1)
	u.ids = make(map[hangar.MachineID]bool)
}

func (u *unhealthy) add(ids ...hangar.MachineID) {
	u.mu.Lock()
	for _, id := range ids {
		u.ids[id] = true
	}
	u.mu.Unlock()
	select {
	case u.some <- struct{}{}:
	default:
	}
}

func (u *unhealthy) take() []hangar.MachineID {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := make([]hangar.MachineID, 0, len(u.ids))
	for id := range u.ids {
		list = append(list, id)
	}
	clear(u.ids)
	return list
}

// healthChanged is told by the checker of every change, and when a check that has
// failed from the start is given up on.
func (s *Store) healthChanged(id hangar.MachineID, c check.Change) {
	if c.Before != c.After.Status {
		s.news.add(id)
	}
	m := s.find(id)
	if m == nil || !c.Tell {
		return
	}
	level, text := "error", "has failed. "+c.After.Output
	if c.After.Status == hangar.CheckPassing {
		level, text = "info", "is now passing."
	}
	s.o.Logs.Append(m.rec.Load().Machine.Ref(), hangar.LogHealth, level,
		fmt.Sprintf("Health check '%s' on port %d %s", c.Check.Name, c.Check.Port, text))
}

// healthPause is how long after a failed commit the next is tried.
const healthPause = time.Second

// keepHealth journals statuses that have changed, all that there are in one commit.
func (s *Store) keepHealth(ctx context.Context) {
	for {
		select {
		case <-s.news.some:
		case <-ctx.Done():
			return
		}
		ids := s.news.take()
		for _, id := range ids {
			s.lookAtGate(id)
		}
		err := s.recordHealth(ids)
		if err == nil || ctx.Err() != nil {
			continue
		}
		s.o.Log.Error("record statuses of health checks", keyError, err)
		if pause.For(ctx, healthPause) == nil {
			s.news.add(ids...)
		}
	}
}

func (s *Store) recordHealth(ids []hangar.MachineID) error {
	found := make(map[*machine]*journal.Health, len(ids))
	for _, id := range ids {
		m := s.find(id)
		if m == nil {
			continue
		}
		// The record first: results that are newer than it are then told apart.
		rec := m.rec.Load()
		h := &journal.Health{Since: rec.Since, Checks: s.checks.Results(id)}
		// A change that came just before an earlier commit is in it already.
		if rec.Machine.State == hangar.MachineStarted && h.Checks != nil && !m.health.Load().Says(h) {
			found[m] = h
		}
	}
	if len(found) == 0 {
		return nil
	}
	err := s.o.Journal.Commit(func(tx *journal.Tx) error {
		for m, h := range found {
			if err := tx.PutHealth(m.id, h); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for m, h := range found {
		m.health.Store(h)
	}
	return nil
}

// seq is the number of the latest commit that changed the Machine's row.
func (m *machine) seq() uint64 {
	seq := m.rec.Load().Seq
	if h := m.health.Load(); h != nil {
		seq = max(seq, h.Seq)
	}
	return seq
}

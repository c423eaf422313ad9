package machines

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/check"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/logs"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Health checks run while a Machine is started. Their results are in memory; only changed statuses
// are journaled, beside the record, and published with the row. So a run costs no commit,
// concurrent changes share one, and statuses survive the daemon.

// checkHealth starts or ends the checks of a Machine after a transition; before is nil if the
// daemon has just loaded the Machine. m.mu is held.
func (m *machine) checkHealth(before, now *journal.Record) {
	started := now.Machine.State == hangar.MachineStarted
	if before != nil && (before.Machine.State == hangar.MachineStarted) == started {
		return
	}
	if !started {
		m.store.health.checks.Forget(m.id)
		return
	}
	t := check.Target{Machine: m.id, Org: now.OrgID, Addr: now.Machine.PrivateIP, Checks: now.Machine.Config.NamedChecks()}
	switch {
	case before == nil:
		t.Booted = now.Since
		t.Known = known(now)
	case before.Machine.State == hangar.MachineStarting && !before.Resuming:
		t.Booted = now.Since
	}
	m.store.health.checks.Watch(t)
}

// shown is the Machine of a record, with the results of its checks.
func (m *machine) shown(rec *journal.Record) hangar.Machine {
	got := rec.Machine
	got.Checks = checksOf(rec, m.store.health.checks.Results(m.id))
	return got
}

// known returns the journaled results of a Machine's checks since its last transition.
func known(rec *journal.Record) []hangar.MachineCheck {
	if rec.Health == nil || !rec.Health.Since.Equal(rec.Since) {
		return nil
	}
	return rec.Health.Checks
}

// checksOf returns the checks of a record's Machine with the known results.
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

// health runs the checks of Machines and journals their results.
type health struct {
	index   *index
	gate    *machineGate
	checks  *check.Checker
	journal *journal.Journal
	logs    *logs.Store
	log     *slog.Logger

	some chan struct{} // buffered 1: ids is not empty

	mu  sync.Mutex
	ids map[hangar.MachineID]bool // with results that are not journaled yet; guarded by mu
}

func newHealth(index *index, gate *machineGate, o *Options) *health {
	h := &health{
		index: index, gate: gate, journal: o.Journal, logs: o.Logs, log: o.Log,
		some: make(chan struct{}, 1), ids: make(map[hangar.MachineID]bool),
	}
	h.checks = check.New(check.Options{Dialer: o.Network, Now: o.Now, Changed: h.changed})
	return h
}

// add queues Machines whose results are to be journaled.
func (h *health) add(ids ...hangar.MachineID) {
	h.mu.Lock()
	for _, id := range ids {
		h.ids[id] = true
	}
	h.mu.Unlock()
	select {
	case h.some <- struct{}{}:
	default:
	}
}

func (h *health) take() []hangar.MachineID {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]hangar.MachineID, 0, len(h.ids))
	for id := range h.ids {
		list = append(list, id)
	}
	clear(h.ids)
	return list
}

// changed is called by the checker for every change, and when it gives up on a check that has
// failed from the start.
func (h *health) changed(id hangar.MachineID, c check.Change) {
	if c.Before != c.After.Status {
		h.add(id)
	}
	m := h.index.find(id)
	if m == nil || !c.Tell {
		return
	}
	level, text := "error", "has failed. "+c.After.Output
	if c.After.Status == hangar.CheckPassing {
		level, text = "info", "is now passing."
	}
	h.logs.Append(m.rec.Load().Machine.Ref(), hangar.LogHealth, level,
		fmt.Sprintf("Health check '%s' on port %d %s", c.Check.Name, c.Check.Port, text))
}

// healthPause is the pause after a failed commit.
const healthPause = time.Second

// keep journals changed statuses, all in one commit.
func (h *health) keep(ctx context.Context) {
	for {
		select {
		case <-h.some:
		case <-ctx.Done():
			return
		}
		ids := h.take()
		for _, id := range ids {
			h.gate.lookAtGate(id)
		}
		err := h.record(ids)
		if err == nil || ctx.Err() != nil {
			continue
		}
		h.log.Error("record statuses of health checks", keyError, err)
		if pause.For(ctx, healthPause) == nil {
			h.add(ids...)
		}
	}
}

func (h *health) record(ids []hangar.MachineID) error {
	found := make(map[*machine]*journal.Health, len(ids))
	for _, id := range ids {
		m := h.index.find(id)
		if m == nil {
			continue
		}
		// The record is read first, so that newer results can be recognized.
		rec := m.rec.Load()
		now := &journal.Health{Since: rec.Since, Checks: h.checks.Results(id)}
		// An earlier commit may have included this change.
		if rec.Machine.State == hangar.MachineStarted && now.Checks != nil && !m.health.Load().Says(now) {
			found[m] = now
		}
	}
	if len(found) == 0 {
		return nil
	}
	err := h.journal.Commit(func(tx *journal.Tx) error {
		for m, now := range found {
			if err := tx.PutHealth(m.id, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for m, now := range found {
		m.health.Store(now)
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

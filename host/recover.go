package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/finish"
)

// recoverers bounds how many Machines are taken up at once.
const recoverers = 8

// recover reads the journal, re-attaches to what still runs and sweeps away what
// no record claims. Only then do workers start, so that no step meets leftovers of
// another Machine.
func (a *Agent) recover(ctx context.Context) error {
	sandboxes, err := a.o.Driver.List(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(a.readJournal(sandboxes), a.volumes.Open(ctx)); err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(recoverers)
	for _, m := range a.all() {
		group.Go(func() error {
			m.reattach(ctx)
			return nil
		})
	}
	_ = group.Wait() // no error is returned to it
	if err := errors.Join(a.sweep(ctx, sandboxes), a.volumes.Sweep(ctx)); err != nil {
		return err
	}
	for _, m := range a.all() {
		m.mu.Lock()
		m.checkHealth(nil, m.rec.Load())
		m.setGate(m.rec.Load())
		m.wake()
		m.mu.Unlock()
	}
	return nil
}

// readJournal makes the Machines known. sandboxes are those that have something on
// the host.
func (a *Agent) readJournal(sandboxes []hangar.MachineID) error {
	left := make(map[hangar.MachineID]bool, len(sandboxes))
	for _, id := range sandboxes {
		left[id] = true
	}
	var newest uint64
	err := a.o.Journal.Machines(func(rec *journal.Record) error {
		if rec.Machine.State == hangar.MachineDestroyed { // as earlier versions left it
			return a.o.Journal.Commit(func(tx *journal.Tx) error { return tx.PutDestroyed(rec) })
		}
		events, err := a.o.Journal.Events(rec.Machine.ID, 1)
		if err != nil {
			return err
		}
		newest = max(newest, timeOf(string(rec.Machine.InstanceID)))
		for _, e := range events {
			newest = max(newest, timeOf(string(e.ID)))
		}
		lease, err := a.o.Journal.Lease(rec.Machine.ID)
		if err != nil {
			return err
		}
		busy, err := a.o.Journal.Busy(rec.Machine.ID)
		if err != nil {
			return err
		}
		m := a.newMachine(rec, lease, rec.Handle == nil && !left[rec.Machine.ID] && !a.layerMounted(rec.Machine.ID))
		m.busy = busy
		m.unrecorded = rec.Handle == nil && rec.Machine.State == hangar.MachineStarting && left[m.id]
		a.add(m)
		return nil
	})
	if err != nil {
		return err
	}
	// Ids of events and versions must sort after those in the journal, also when
	// the clock has been set back since, or has not moved on.
	hangar.NewEventID(ulid.Time(newest + 1))
	return a.findUnread()
}

// timeOf returns the time in an id of an event or a version, in milliseconds.
func timeOf(id string) uint64 {
	parsed, err := ulid.ParseStrict(id)
	if err != nil {
		return 0
	}
	return parsed.Time()
}

// newMachine returns the Machine of a record, with its lease, if it has one; clean
// says that nothing of a sandbox of it can be on the host.
func (a *Agent) newMachine(rec *journal.Record, lease *hangar.Lease, clean bool) *machine {
	m := &machine{agent: a, id: rec.Machine.ID, lease: lease, clean: clean}
	m.rec.Store(rec)
	return m
}

// reattach takes back the sandbox of a record, if there is one. What goes wrong
// with one Machine must not keep the others from being served: the step of its
// state meets the fault again and acts on it.
func (m *machine) reattach(ctx context.Context) {
	rec := m.rec.Load()
	if rec.Handle == nil || rec.Machine.State == hangar.MachineDestroying {
		return
	}
	// The output first: what a sandbox wrote while nobody read is still there.
	if err := m.agent.o.Logs.Capture(rec.Machine.Ref(), m.path(outputFile)); err != nil {
		m.agent.o.Log.Error("capture output", keyMachine, m.id, keyError, err)
	}
	if !rec.Ended {
		m.reopenLocal(rec)
		m.resumeRole()
	}
	if err := m.attached(ctx, rec); err != nil {
		m.agent.o.Log.Error("take back machine", keyMachine, m.id, keyError, err)
	}
}

// attached makes sure that the driver knows the sandbox of the record's handle, of
// which there may be nothing left. Without that, the driver's word that there is no
// such sandbox would mean nothing.
func (m *machine) attached(ctx context.Context, rec *journal.Record) error {
	if m.known {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, m.agent.limits.recover)
	defer cancel()
	switch err := m.agent.o.Driver.Recover(bounded, rec.Handle); {
	case errors.Is(err, driver.ErrNotFound):
		m.agent.o.Log.Warn("machine left no sandbox", keyMachine, m.id, keyState, rec.Machine.State)
	case err != nil:
		return err
	}
	m.known = true
	return nil
}

// takeOver returns the handle of a sandbox that runs although it was never
// recorded: the daemon was killed after it had asked for it and before it had the
// answer. It returns nil when there is none that can be used.
func (m *machine) takeOver(ctx context.Context, rec *journal.Record) driver.Handle {
	adopter, ok := m.agent.o.Driver.(driver.Adopter)
	if !ok || !m.unrecorded {
		return nil
	}
	m.unrecorded = false
	if err := m.capture(rec); err != nil {
		m.agent.o.Log.Error("capture output", keyMachine, m.id, keyError, err)
		return nil
	}
	bounded, cancel := m.patiently(ctx, m.agent.limits.boot)
	defer cancel()
	handle, err := adopter.Adopt(bounded, m.id, m.path(sandboxDir))
	if err != nil {
		if !errors.Is(err, driver.ErrNotFound) {
			m.agent.o.Log.Warn("take over an unrecorded sandbox", keyMachine, m.id, keyError, err)
		}
		return nil
	}
	m.known = true
	m.reopenLocal(rec)
	m.resumeRole()
	return handle
}

// sweep destroys what is on the host and claimed by no record. What cannot be
// destroyed is no reason to leave everything else alone.
func (a *Agent) sweep(ctx context.Context, sandboxes []hangar.MachineID) error {
	for _, id := range sandboxes {
		if a.claims(id) {
			continue
		}
		a.o.Log.Warn("sweeping a sandbox that no record claims", keyMachine, id)
		a.swept(id, a.release(ctx, id))
	}
	endpoints, err := a.o.Network.List(ctx)
	if err != nil {
		return err
	}
	for _, id := range endpoints {
		if !a.claims(id) {
			a.swept(id, a.o.Network.Detach(id))
		}
	}
	dirs, err := os.ReadDir(filepath.Join(a.o.Dir, "machines"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if id := hangar.MachineID(dir.Name()); !a.claims(id) {
			// Mounts go before files: release unmounts, whoever mounted.
			err := a.release(ctx, id)
			if err == nil {
				err = os.RemoveAll(filepath.Join(a.o.Dir, "machines", dir.Name()))
			}
			a.swept(id, err)
		}
	}
	return a.sweepLayers(ctx)
}

func (a *Agent) swept(id hangar.MachineID, err error) {
	if err != nil {
		a.o.Log.Error("leftovers of a machine stay until the next start", keyMachine, id, keyError, err)
	}
}

// release ends the sandbox of a Machine, if it has not ended, and releases what it
// held.
func (a *Agent) release(ctx context.Context, id hangar.MachineID) error {
	return finish.Do(ctx, a.limits.release, func(ctx finish.Context) error { return a.o.Driver.Destroy(ctx, id, a.sandboxDir(id)) })
}

// claims reports whether a Machine with that id may own things on the host. One
// whose record cannot be read keeps what it has, for whoever mends the record.
func (a *Agent) claims(id hangar.MachineID) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.unread[id] || a.machines[id] != nil
}

// findUnread finds the records that the journal could not read.
func (a *Agent) findUnread() error {
	ids, err := a.o.Journal.IDs()
	if err != nil {
		return err
	}
	a.unread = make(map[hangar.MachineID]bool)
	for _, id := range ids {
		if a.machines[id] == nil {
			a.unread[id] = true
		}
	}
	return nil
}

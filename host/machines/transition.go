package machines

import (
	"errors"
	"fmt"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/admission"
	"github.com/hangar-platform/hangar/host/journal"
)

// transition is one change of a Machine's record, from the decision to its consequences. The
// Machine's lock is held throughout.
type transition struct {
	m       *machine
	current *journal.Record
	next    *journal.Record
	events  []hangar.Event
	lease   *hangar.Lease          // after the change
	secrets *journal.SealedSecrets // of the version that the change creates; nil: it has none, or creates none
	busy    time.Time              // until when it has declared itself busy
	freed   Claims                 // volumes of a Machine that is destroyed; else nil
	load    admission.Load         // promised before the change
}

// commitWith is commit that also sets the lease and stores the secrets of the version that alter
// creates. A destroyed Machine has neither, and is removed from memory.
func (m *machine) commitWith(lease *hangar.Lease, secrets *journal.SealedSecrets, alter change) (*journal.Record, error) {
	t := &transition{m: m, current: m.rec.Load(), lease: lease, secrets: secrets}
	if err := t.decide(alter); err != nil {
		return nil, err
	}
	if err := t.prepare(); err != nil {
		return nil, err
	}
	if t.freed != nil {
		defer t.freed.Done()
	}
	if err := m.store.o.Journal.Commit(t.put); err != nil {
		t.undo()
		return nil, notRecorded(m.id, err)
	}
	t.settle()
	return t.next, nil
}

// decide computes the next record.
func (t *transition) decide(alter change) error {
	before := &t.current.Machine
	if before.State == hangar.MachineDestroyed {
		return refusal(hangar.VerbUpdate, before.State)
	}
	record := *t.current
	t.next = &record
	next := &t.next.Machine
	now := t.m.store.o.Now()
	t.events = alter(t.next)
	stamp(t.events, next.State, now)
	if before.State != next.State && !before.State.CanBecome(next.State) {
		return fmt.Errorf("machine %s cannot turn from %s into %s", t.m.id, before.State, next.State)
	}
	if len(t.events) > 0 {
		next.UpdatedAt = wholeSecond(now)
	}
	if before.State != next.State {
		t.next.Since = now
	}
	if before.Config.Schedule != next.Config.Schedule {
		t.next.Scheduled = now // periods of another schedule do not count
	}
	if keepsConnections(t.current) && !keepsConnections(t.next) {
		t.next.Losses++
	}
	if t.destroys() {
		t.lease = nil
	}
	t.busy = t.m.busyAfter(t.next)
	return nil
}

func (t *transition) destroys() bool { return t.next.Machine.State == hangar.MachineDestroyed }

// prepare acquires what the next record needs: its values in the pool, room on the host and the
// locks of volumes. It closes the gate, unless the record says that the Machine serves.
func (t *transition) prepare() (err error) {
	if err := t.m.store.o.Journal.Pool().Seal(&t.next.Machine.Config); err != nil {
		return notRecorded(t.m.id, err)
	}
	if t.load, err = t.m.store.room.Admit(t.m.id, loadOf(t.next)); err != nil {
		return err
	}
	if t.destroys() {
		t.freed = t.m.store.o.Volumes.Release(t.m.id, &t.current.Machine.Config)
	}
	if t.next.Machine.State != hangar.MachineStarted {
		t.m.gate.Shut() // before the signal to stop, so that no request enters meanwhile
	}
	return nil
}

// put adds the change to a commit.
func (t *transition) put(tx *journal.Tx) error {
	if t.destroys() {
		return errors.Join(tx.PutDestroyed(t.next), t.freed.Put(tx), tx.AppendEvents(t.next, t.events))
	}
	for _, part := range []func(*journal.Tx) error{t.putRecord, t.putVersion, t.putBeside} {
		if err := part(tx); err != nil {
			return err
		}
	}
	return tx.AppendEvents(t.next, t.events)
}

func (t *transition) putRecord(tx *journal.Tx) error {
	return errors.Join(tx.PutMachine(t.next), putSecrets(tx, t.secrets))
}

// putVersion stores a new version, and drops the secrets of one that will not boot again.
func (t *transition) putVersion(tx *journal.Tx) error {
	if t.current.Previous != nil && t.next.Previous == nil {
		if err := keepSecrets(tx, t.next); err != nil {
			return err
		}
	}
	if t.next.Machine.InstanceID <= t.current.Machine.InstanceID {
		return nil
	}
	return tx.PutVersion(t.m.id, hangar.MachineVersion{Version: t.next.Machine.InstanceID, Config: t.next.Machine.Config})
}

// putBeside writes what is stored beside the record.
func (t *transition) putBeside(tx *journal.Tx) error {
	if t.busy != t.m.busy {
		if err := tx.PutBusy(t.m.id, t.busy); err != nil {
			return err
		}
	}
	if t.lease != t.m.lease {
		return tx.PutLease(t.m.id, t.lease)
	}
	return nil
}

// undo releases what prepare has acquired, after a failed commit.
func (t *transition) undo() {
	t.m.store.room.Set(t.m.id, t.load)
	t.m.setGate(t.current)
}

// settle makes a committed change visible.
func (t *transition) settle() {
	m := t.m
	m.store.room.Set(m.id, loadOf(t.next))
	if t.freed != nil {
		t.freed.Settle()
	}
	m.lease, m.busy = t.lease, t.busy
	m.rec.Store(t.next)
	m.remember(t.events)
	m.began = t.next
	m.observe(t.current, t.next)
	m.watchers.happened(&t.next.Machine, t.events)
	if t.destroys() {
		m.store.remove(m)
	}
}

// observe notifies observers other than waiters of a change of the record. m.mu is held.
func (m *machine) observe(before, now *journal.Record) {
	m.checkHealth(before, now)
	if before.Machine.State == hangar.MachineStarting && now.Machine.State == hangar.MachineStarted {
		m.unsuspendable.Store(false)
	}
	if now.Machine.State != hangar.MachineStarted {
		m.files.close()
		m.probes.drop()
	}
	m.setGate(now)
	if before.Machine.Config.Schedule != now.Machine.Config.Schedule {
		m.store.schedules.look()
	}
}

// notRecorded is the error of a change that could not be journaled.
func notRecorded(id hangar.MachineID, err error) error {
	if errors.Is(err, journal.ErrClosed) {
		return &hangar.Error{Code: hangar.CodeUnavailable, Message: "the server is shutting down", Err: err}
	}
	return fmt.Errorf("commit machine %s: %w", id, err)
}

// stamp sets the ids, time and new state of events.
func stamp(events []hangar.Event, state hangar.MachineState, now time.Time) {
	for i := range events {
		events[i].ID = hangar.NewEventID(now)
		events[i].Status = string(state)
		events[i].Timestamp = now.UnixMilli()
	}
}

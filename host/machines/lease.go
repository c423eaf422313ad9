package machines

import (
	"context"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// A lease is not part of its Machine's record: acquiring, refreshing or releasing it neither
// interrupts the current step nor publishes a row (ADR 6). It is journaled beside the record, and
// in the same commit where a verb changes both.

// leaseAllows answers CodeConflict with hangar.ReasonLeaseHeld to a user who may not change the
// Machine because another has leased it. Every change for a user calls it under the lock under
// which it commits. m.mu is held.
func (m *machine) leaseAllows(ctx context.Context) error {
	if m.lease.Admits(ctx, m.store.o.Now()) {
		return nil
	}
	return m.lease.Held(m.id)
}

// guarded changes a Machine under its lock, if its lease allows that to ctx.
func (s *Store) guarded(ctx context.Context, ref hangar.MachineRef, change func(m *machine) error) error {
	m, err := s.machine(ref)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.leaseAllows(ctx); err != nil {
		return err
	}
	return change(m)
}

// AcquireLease implements hangar.MachineLeaser.
func (s *Store) AcquireLease(ctx context.Context, ref hangar.MachineRef, in hangar.LeaseAcquire) (hangar.Lease, error) {
	m, err := s.machine(ref)
	if err != nil {
		return hangar.Lease{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if state := m.rec.Load().Machine.State; state.Answers(hangar.VerbLease) == hangar.Refuse {
		return hangar.Lease{}, refusal(hangar.VerbLease, state)
	}
	next, err := m.lease.Acquire(ctx, m.id, in, s.o.Now())
	if err == nil {
		err = m.putLease(next)
	}
	if err != nil {
		return hangar.Lease{}, err
	}
	return m.shownLease(), nil
}

// MachineLease implements hangar.MachineLeaser.
func (s *Store) MachineLease(_ context.Context, ref hangar.MachineRef) (hangar.Lease, error) {
	m, err := s.machine(ref)
	if err != nil {
		return hangar.Lease{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.lease.Live(s.o.Now()) {
		return hangar.Lease{}, hangar.NotLeased(m.id)
	}
	return m.shownLease(), nil
}

// ReleaseLease implements hangar.MachineLeaser.
func (s *Store) ReleaseLease(ctx context.Context, ref hangar.MachineRef) error {
	m, err := s.machine(ref)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.lease.Release(ctx, m.id, s.o.Now()); err != nil {
		return err
	}
	return m.putLease(nil)
}

// nonce returns the nonce of the lease, or "".
func (m *machine) nonce() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.lease.Live(m.store.o.Now()) {
		return ""
	}
	return m.lease.Nonce
}

// shownLease is the lease as its holder sees it. m.mu is held.
func (m *machine) shownLease() hangar.Lease {
	shown := *m.lease
	shown.Version = m.rec.Load().Machine.InstanceID
	return shown
}

// putLease writes a lease, or with nil its end, durably and makes it visible. m.mu is held.
func (m *machine) putLease(next *hangar.Lease) error {
	err := m.store.o.Journal.Commit(func(tx *journal.Tx) error { return tx.PutLease(m.id, next) })
	if err != nil {
		return notRecorded(m.id, err)
	}
	m.lease = next
	return nil
}

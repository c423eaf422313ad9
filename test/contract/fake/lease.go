package fake

import (
	"context"

	"github.com/hangar-platform/hangar"
)

// AcquireLease implements hangar.MachineLeaser.
func (s *Service) AcquireLease(ctx context.Context, ref hangar.MachineRef, in hangar.LeaseAcquire) (hangar.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, _, err := s.ask(ctx, ref, hangar.VerbLease)
	if err == nil {
		err = in.Normalize()
	}
	if err != nil {
		return hangar.Lease{}, err
	}
	next, err := m.lease.Acquire(ctx, m.ID, in, s.now())
	if err != nil {
		return hangar.Lease{}, err
	}
	m.lease = next
	return m.shownLease(), nil
}

// MachineLease implements hangar.MachineLeaser.
func (s *Service) MachineLease(ctx context.Context, ref hangar.MachineRef) (hangar.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.find(ctx, ref)
	if err != nil {
		return hangar.Lease{}, err
	}
	if !m.lease.Live(s.now()) {
		return hangar.Lease{}, hangar.NotLeased(m.ID)
	}
	shown := m.shownLease()
	if _, err := s.findFor(ctx, hangar.ActionWrite, ref); err != nil {
		shown.Nonce = ""
	}
	return shown, nil
}

// ReleaseLease implements hangar.MachineLeaser.
func (s *Service) ReleaseLease(ctx context.Context, ref hangar.MachineRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findFor(ctx, hangar.ActionWrite, ref)
	if err != nil {
		return err
	}
	if err := m.lease.Release(ctx, m.ID, s.now()); err != nil {
		return err
	}
	m.lease = nil
	return nil
}

func (m *machine) shownLease() hangar.Lease {
	shown := *m.lease
	shown.Version = m.InstanceID
	return shown
}

// order is ask for what a lease guards. The caller holds mu.
func (s *Service) order(ctx context.Context, ref hangar.MachineRef, v hangar.Verb) (*machine, hangar.Answer, error) {
	m, err := s.findFor(ctx, actionOf(v), ref)
	if err == nil && !m.lease.Admits(ctx, s.now()) {
		err = m.lease.Held(m.ID)
	}
	if err != nil {
		return nil, hangar.Refuse, err
	}
	return s.ask(ctx, ref, v)
}

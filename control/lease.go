package control

import (
	"context"

	"github.com/hangar-platform/hangar"
)

// AcquireLease implements hangar.MachineService.
func (m *Machines) AcquireLease(ctx context.Context, ref hangar.MachineRef, in hangar.LeaseAcquire) (hangar.Lease, error) {
	return ask(ctx, m, ref, hangar.ActionWrite, func(a hangar.MachineAgent, ref hangar.MachineRef) (hangar.Lease, error) {
		if err := in.Normalize(); err != nil {
			return hangar.Lease{}, err
		}
		return a.AcquireLease(ctx, ref, in)
	})
}

// MachineLease implements hangar.MachineService. A caller that may only read learns the
// holder of the lease, and not the nonce; a third party that acts for a user learns
// neither.
func (m *Machines) MachineLease(ctx context.Context, ref hangar.MachineRef) (hangar.Lease, error) {
	lease, err := ask(ctx, m, ref, hangar.ActionRead, func(a hangar.MachineAgent, ref hangar.MachineRef) (hangar.Lease, error) {
		return a.MachineLease(ctx, ref)
	})
	if err != nil {
		return lease, err
	}
	_, _, err = m.tenants.AppFor(ctx, hangar.ActionWrite, ref)
	if hangar.CodeOf(err) == hangar.CodeForbidden {
		lease.Nonce, err = "", nil
	}
	if p, known := hangar.PrincipalFrom(ctx); known == nil && p.Client != "" {
		lease.Owner = "" // the e-mail address of a user
	}
	return lease, err
}

// ReleaseLease implements hangar.MachineService.
func (m *Machines) ReleaseLease(ctx context.Context, ref hangar.MachineRef) error {
	return m.order(ctx, ref, hangar.ActionWrite, func(a hangar.MachineAgent, ref hangar.MachineRef) error { return a.ReleaseLease(ctx, ref) })
}

// platform returns a context for changes that the platform makes as a consequence of another
// request. Leases do not bind it.
func platform(ctx context.Context) context.Context {
	return hangar.WithEventSource(ctx, hangar.SourceAgent)
}

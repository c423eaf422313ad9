package control

import (
	"context"
	"errors"
	"maps"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/finish"
)

// updating is the Version of a reservation while an update changes the size of its Machine:
// it sorts after every version, so that no row lowers what is counted.
const updating hangar.InstanceID = "~"

// Counted is what a Machine counts, until it is destroyed.
func (r reservation) Counted() (hangar.OrgID, hangar.Quotas) { return r.OrgID, r.Counts }

// recount changes the reservation of a Machine, unless change reports that it is as it should
// be, and what its organization uses with it, see ledger.Revise.
func (r *Rows) recount(ctx context.Context, ref hangar.MachineRef, org *tenants.OrgRecord, change func(*reservation) bool) error {
	return ledger.Revise(ctx, r.ledger, state.ReservationKey(ref), org, func(held reservation) (*reservation, bool) {
		changed := change(&held)
		return &held, changed
	})
}

// forget ends that a Machine is counted.
func (r *Rows) forget(ctx context.Context, ref hangar.MachineRef) error {
	return r.recount(ctx, ref, nil, func(held *reservation) bool {
		counted := held.Counts != nil
		held.Counts = nil
		return counted
	})
}

// settle makes what is counted for a Machine what it is. While it is being replaced it may
// yet return to the version before.
func (r *Rows) settle(ctx context.Context, m *hangar.Machine) error {
	counts := guestQuotas(m.Config.Guest)
	return r.recount(ctx, m.Ref(), nil, func(held *reservation) bool {
		if held.Counts == nil || m.State == hangar.MachineReplacing || m.InstanceID < held.Version || maps.Equal(held.Counts, counts) {
			return false
		}
		held.Counts = counts
		return true
	})
}

// resize has the larger of two sizes counted before a Machine is updated, until it is known
// which one it has.
func (m *Machines) resize(
	ctx context.Context, app tenants.AppRecord, ref hangar.MachineRef, guest *hangar.Guest, update func() (*hangar.Machine, error),
) (*hangar.Machine, error) {
	r, _, err := state.Read[reservation](ctx, m.store, state.ReservationKey(ref))
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		return nil, state.HangarError(err)
	}
	counts := guestQuotas(guest)
	if r.Counts == nil || maps.Equal(r.Counts, counts) {
		return update()
	}
	org, err := m.tenants.OrgOfApp(ctx, app)
	if err != nil {
		return nil, err
	}
	err = m.rows.recount(ctx, ref, org, func(r *reservation) bool {
		if r.Counts == nil {
			return false
		}
		r.Counts, r.Version = larger(r.Counts, counts), updating
		return true
	})
	if err != nil {
		return nil, state.HangarError(err)
	}
	updated, err := update()
	m.resized(ctx, ref)
	return updated, err
}

// resized lets rows say again which size a Machine has. A host that does not answer is asked
// when the daemon starts again: until then the larger size is counted.
func (m *Machines) resized(ctx context.Context, ref hangar.MachineRef) {
	ctx, cancel := finish.Within(ctx, listTimeout)
	defer cancel()
	if err := m.reservations.settleWithHost(ctx, ref); err != nil {
		m.log.WarnContext(ctx, "the size of a machine is not settled yet", keyApp, ref.App, keyMachine, ref.ID, keyError, err)
	}
}

// settleWithHost counts what the host of a Machine says that it is.
func (s *reservations) settleWithHost(ctx context.Context, ref hangar.MachineRef) error {
	r, _, err := state.Read[reservation](ctx, s.store, state.ReservationKey(ref))
	if err != nil {
		return state.HangarError(err)
	}
	agent, err := s.hosts.agent(r.Host)
	if err != nil {
		return err
	}
	now, err := agent.Machine(ctx, ref)
	if err != nil {
		return err
	}
	err = s.rows.recount(ctx, ref, nil, func(r *reservation) bool {
		r.Version = now.InstanceID
		if now.State != hangar.MachineReplacing && r.Counts != nil {
			r.Counts = guestQuotas(now.Config.Guest)
		}
		return true
	})
	return state.HangarError(err)
}

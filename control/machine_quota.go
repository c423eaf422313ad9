package control

import (
	"context"
	"errors"
	"maps"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/finish"
)

// updating is the Version of a reservation while an update changes the size of its Machine:
// it sorts after every version, so that no row lowers what is counted.
const updating hangar.InstanceID = "~"

func (r reservation) counted() (hangar.OrgID, hangar.Quotas) { return r.OrgID, r.Counts }

// recount changes the reservation of a Machine, unless change reports that it is as it should
// be, and what its organization uses with it, see revise.
func (l *ledger) recount(ctx context.Context, ref hangar.MachineRef, org *orgRecord, change func(*reservation) bool) error {
	return revise(ctx, l, reservationKey(ref), org, func(r reservation) (*reservation, bool) {
		changed := change(&r)
		return &r, changed
	})
}

// forget ends that a Machine is counted.
func (l *ledger) forget(ctx context.Context, ref hangar.MachineRef) error {
	return l.recount(ctx, ref, nil, func(r *reservation) bool {
		counted := r.Counts != nil
		r.Counts = nil
		return counted
	})
}

// settle makes what is counted for a Machine what it is. While it is being replaced it may
// yet return to the version before.
func (l *ledger) settle(ctx context.Context, m *hangar.Machine) error {
	counts := guestQuotas(m.Config.Guest)
	return l.recount(ctx, m.Ref(), nil, func(r *reservation) bool {
		if r.Counts == nil || m.State == hangar.MachineReplacing || m.InstanceID < r.Version || maps.Equal(r.Counts, counts) {
			return false
		}
		r.Counts = counts
		return true
	})
}

// resize has the larger of two sizes counted before a Machine is updated, until it is known
// which one it has.
func (m *Machines) resize(
	ctx context.Context, app appRecord, ref hangar.MachineRef, guest *hangar.Guest, update func() (*hangar.Machine, error),
) (*hangar.Machine, error) {
	r, _, err := read[reservation](ctx, m.store, reservationKey(ref))
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		return nil, stateError(err)
	}
	counts := guestQuotas(guest)
	if r.Counts == nil || maps.Equal(r.Counts, counts) {
		return update()
	}
	org, err := m.orgOfApp(ctx, app)
	if err != nil {
		return nil, err
	}
	err = m.ledger.recount(ctx, ref, org, func(r *reservation) bool {
		if r.Counts == nil {
			return false
		}
		r.Counts, r.Version = larger(r.Counts, counts), updating
		return true
	})
	if err != nil {
		return nil, stateError(err)
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
	if err := m.settleWithHost(ctx, ref); err != nil {
		m.log.WarnContext(ctx, "the size of a machine is not settled yet", keyApp, ref.App, keyMachine, ref.ID, keyError, err)
	}
}

// settleWithHost counts what the host of a Machine says that it is.
func (c *Control) settleWithHost(ctx context.Context, ref hangar.MachineRef) error {
	r, _, err := read[reservation](ctx, c.store, reservationKey(ref))
	if err != nil {
		return stateError(err)
	}
	agent, err := c.agent(r.Host)
	if err != nil {
		return err
	}
	now, err := agent.Machine(ctx, ref)
	if err != nil {
		return err
	}
	err = c.ledger.recount(ctx, ref, nil, func(r *reservation) bool {
		r.Version = now.InstanceID
		if now.State != hangar.MachineReplacing && r.Counts != nil {
			r.Counts = guestQuotas(now.Config.Guest)
		}
		return true
	})
	return stateError(err)
}

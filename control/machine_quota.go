package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/finish"
)

// updating is the Version of a reservation while an update changes the size of its Machine:
// it sorts after every version, so that no row lowers what is counted.
const updating hangar.InstanceID = "~"

// Counted returns what a Machine counts against quotas until it is destroyed.
func (r reservation) Counted() (hangar.OrgID, hangar.Quotas) { return r.OrgID, r.Counts }

// recount changes the reservation of a Machine together with the usage of its organization (see
// ledger.Revise), unless change reports that nothing is to be changed.
func (r *Rows) recount(ctx context.Context, ref hangar.MachineRef, org *tenants.OrgRecord, change func(*reservation) bool) error {
	return ledger.Revise(ctx, r.ledger, state.ReservationKey(ref), org, func(held reservation) (*reservation, bool) {
		held.Updates = maps.Clone(held.Updates) // records are shared
		changed := change(&held)
		return &held, changed
	})
}

// forget stops counting a Machine.
func (r *Rows) forget(ctx context.Context, ref hangar.MachineRef) error {
	return r.recount(ctx, ref, nil, func(held *reservation) bool {
		counted := held.Counts != nil
		held.Counts = nil
		return counted
	})
}

// settle counts the present size of a Machine. While it is being replaced it may still return to
// the previous version.
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

// updateTimeout bounds an update of a Machine. An update with an unknown result counts for twice that time.
const updateTimeout = 2 * time.Minute

// maxUpdates bounds the updates of one Machine that are under way.
const maxUpdates = 32

// resize counts the largest size that a Machine may get from the updates in progress, until its
// size is known. An update that does not change the size counts, too: another may have made the
// Machine smaller before the host commits this one.
func (m *Machines) resize(
	ctx context.Context, app tenants.AppRecord, ref hangar.MachineRef, guest *hangar.Guest, update func(context.Context) (*hangar.Machine, error),
) (*hangar.Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	org, err := m.tenants.OrgOfApp(ctx, app)
	if err != nil {
		return nil, err
	}
	id, counted, counts := rand.Text(), false, guestQuotas(guest)
	var refused error
	err = m.rows.recount(ctx, ref, org, func(r *reservation) bool {
		if counted = r.Counts != nil; !counted {
			return false
		}
		r.dropUpdates(m.now())
		if len(r.Updates) >= maxUpdates {
			refused = hangar.Errorf(hangar.CodeExhausted, "", "there are %d updates of machine %s under way; try again when they have ended", len(r.Updates), ref.ID)
			return false
		}
		if r.Updates == nil {
			r.Updates = map[string]pendingUpdate{}
		}
		r.Updates[id] = pendingUpdate{counts, m.now().UTC()}
		r.Counts, r.Version = larger(r.Counts, counts), updating
		return true
	})
	if err := cmp.Or(refused, state.HangarError(err)); err != nil {
		return nil, err
	}
	updated, err := update(ctx)
	if counted {
		m.resized(ctx, ref, id, err)
	}
	return updated, err
}

// dropUpdates drops updates that are too old to be in progress.
func (r *reservation) dropUpdates(now time.Time) {
	maps.DeleteFunc(r.Updates, func(_ string, u pendingUpdate) bool { return now.Sub(u.At) >= 2*updateTimeout })
}

// resized ends an update, after which rows determine the size again. If the result of the update is
// unknown, the larger size stays counted for a while.
func (m *Machines) resized(ctx context.Context, ref hangar.MachineRef, id string, outcome error) {
	ctx, cancel := finish.Within(ctx, listTimeout)
	defer cancel()
	if err := outcome; decided(err) {
		if _, err = m.reservations.settleWithHost(ctx, ref, id); err == nil {
			return
		}
		m.log.WarnContext(ctx, "the size of a machine is not settled yet", keyApp, ref.App, keyMachine, ref.ID, keyError, err)
	}
	m.reservations.unfinished.signal()
}

// decided reports whether an error says that a host has not done a change, and will not.
func decided(err error) bool {
	return err == nil || hangar.CodeOf(err) != hangar.CodeInternal && !unreachable(err)
}

// settleWithHost counts the size that the host reports for a Machine, and those of updates in
// progress, without the one with an id, which has ended. It reports whether updates are in
// progress. The host is asked between the read and the write of the reservation, so the write fails
// if another update has begun or ended meanwhile.
func (s *reservations) settleWithHost(ctx context.Context, ref hangar.MachineRef, ended string) (more bool, err error) {
	r, _, err := state.Read[reservation](ctx, s.store, state.ReservationKey(ref))
	if err != nil {
		return false, state.HangarError(err)
	}
	agent, err := s.hosts.agent(r.Host)
	if err != nil {
		return false, err
	}
	var unknown error
	err = s.rows.recount(ctx, ref, nil, func(r *reservation) bool {
		var now *hangar.Machine
		if now, unknown = agent.Machine(ctx, ref); unknown != nil {
			return false
		}
		delete(r.Updates, ended)
		r.dropUpdates(s.now())
		r.Version, more = now.InstanceID, len(r.Updates) > 0
		if now.State != hangar.MachineReplacing && r.Counts != nil {
			r.Counts = guestQuotas(now.Config.Guest)
		}
		for _, u := range r.Updates {
			r.Version = updating
			if r.Counts != nil {
				r.Counts = larger(r.Counts, u.Counts)
			}
		}
		return true
	})
	return more, cmp.Or(unknown, state.HangarError(err))
}

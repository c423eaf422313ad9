package control

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/pause"
)

// The pauses between attempts to finish interrupted work, which double from the first to the last.
const (
	firstHealPause = time.Second
	lastHealPause  = time.Minute
)

// unfinished signals that a host which could not be reached has interrupted work.
type unfinished chan struct{}

func (u unfinished) signal() {
	select {
	case u <- struct{}{}:
	default: // signalled already
	}
}

// HealEvery finishes interrupted work, also of lost servers, at intervals until ctx ends. One
// server does so for all.
func (c *Control) HealEvery(ctx context.Context, interval time.Duration) error {
	for {
		if err := pause.For(ctx, interval); err != nil {
			return err
		}
		c.unfinished.signal()
	}
}

// Run retries unfinished work until ctx ends: hosts come back, and right after a start the other
// servers are not known yet.
func (c *Control) Run(ctx context.Context) error {
	wait, seen := firstHealPause, state.Sightings{}
	for {
		select {
		case <-c.unfinished:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := pause.For(ctx, wait); err != nil {
			return err
		}
		if err := c.healAgain(ctx, &seen); err != nil {
			c.log.WarnContext(ctx, "interrupted work is finished later", keyError, err)
			c.unfinished.signal()
		}
		if wait = min(2*wait, lastHealPause); len(c.unfinished) == 0 {
			wait = firstHealPause
		}
	}
}

// healAgain is heal while other servers work: it skips work that may still be in progress.
func (c *Control) healAgain(ctx context.Context, seen *state.Sightings) error {
	next, now := state.Sightings{}, c.reservations.now()
	err := c.healTenants(ctx, func(item state.Item) bool {
		next[item.Key] = seen.First(item, now)
		if now.Sub(next[item.Key].At) >= createTimeout {
			return true
		}
		c.unfinished.signal()
		return false
	})
	if err != nil {
		return err
	}
	*seen = next
	c.users.Upkeep().Heal(ctx)
	if _, err := c.reservations.heal(ctx, createTimeout); err != nil {
		return err
	}
	return c.healVolumes(ctx)
}

// healTenants finishes the destruction of Apps, and of the organizations that ripe selects.
func (c *Control) healTenants(ctx context.Context, ripe func(state.Item) bool) error {
	if err := c.apps.heal(ctx); err != nil {
		return err
	}
	return c.orgs.heal(ctx, ripe)
}

func (c *Control) healVolumes(ctx context.Context) error {
	if err := c.volumes.heal(ctx); err != nil {
		return err
	}
	return c.volumes.healClaims(ctx)
}

// heal confirms or releases reservations without a living creator, unless they are younger than
// age. It returns the keys of all reservations.
func (s *reservations) heal(ctx context.Context, age time.Duration) (map[string]struct{}, error) {
	items, _, err := state.All(ctx, s.store, state.ReservationsPrefix, false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	known := make(map[string]struct{}, len(items))
	var group errgroup.Group
	group.SetLimit(destroysAtOnce)
	for _, item := range items {
		known[item.Key] = struct{}{}
		r, err := state.Decode[reservation](item)
		if err != nil {
			s.log.Error("reservation skipped", keyKey, item.Key, keyError, err)
			continue
		}
		switch {
		case !r.Confirmed && s.now().Sub(r.CreatedAt) < age, r.undecided(s.now()):
			s.unfinished.signal()
		case !r.Confirmed && !s.underWay(r.ID):
			group.Go(func() error { return s.healOne(ctx, item, r) })
		case r.Version == updating:
			app, _, _ := strings.Cut(strings.TrimPrefix(item.Key, state.ReservationsPrefix), "/")
			more, err := s.settleWithHost(ctx, hangar.MachineRef{AppID: hangar.AppID(app), ID: r.ID}, "")
			if err != nil {
				s.log.Warn("the size of a machine is not settled yet", keyApp, app, keyMachine, r.ID, keyError, err)
			}
			if err != nil || more {
				s.unfinished.signal()
			}
		}
	}
	return known, group.Wait()
}

func (s *reservations) healOne(ctx context.Context, item state.Item, r reservation) error {
	app, _, _ := strings.Cut(strings.TrimPrefix(item.Key, state.ReservationsPrefix), "/")
	half := &heldReservation{reservation: r, app: hangar.AppID(app), item: item}
	bounded, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	exists, err := s.exists(bounded, half)
	switch {
	case err != nil:
		s.log.Warn("reservation is not settled yet", keyApp, app, keyMachine, r.ID, keyHost, r.Host, keyError, err)
		s.unfinished.signal()
		return nil
	case exists:
		if err := s.rewrite(ctx, half, func(r *reservation) { r.Confirmed = true }); !errors.Is(err, errLost) {
			return err
		}
		return nil
	}
	s.log.Info("releasing a reservation without a machine", keyApp, app, keyMachine, r.ID, keyHost, r.Host)
	txn := state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}}
	named, nameItem, err := state.Read[nameRecord](ctx, s.store, state.NameKey(half.app, r.Name))
	if err == nil && named.ID == r.ID {
		txn.If, txn.Then = append(txn.If, state.Unchanged(nameItem)), append(txn.Then, state.Delete(nameItem.Key))
	}
	_, err = s.ledger.GiveBack(ctx, r.OrgID, r.Counts, txn)
	switch {
	case errors.Is(err, state.ErrConflict):
		return nil
	case hangar.ReasonOf(err) == hangar.ReasonRecordDamaged:
		s.log.Error("reservation cannot be released", keyApp, app, keyMachine, r.ID, keyError, err)
		return nil
	}
	return state.HangarError(err)
}

// exists asks only the host whether it has recorded a Machine.
func (s *reservations) exists(ctx context.Context, r *heldReservation) (bool, error) {
	agent, err := s.hosts.agent(r.Host)
	if err != nil {
		return false, err
	}
	_, err = agent.Machine(ctx, r.ref())
	if hangar.ReasonOf(err) == hangar.ReasonMachineNotFound {
		return false, nil
	}
	return err == nil, err
}

// adoptOrphans makes reservations for Machines that have a row and none, as after the state was
// restored from a backup.
func (s *reservations) adoptOrphans(ctx context.Context, reserved map[string]struct{}) error {
	items, _, err := state.All(ctx, s.store, state.HostsPrefix, false)
	if err != nil {
		return state.HangarError(err)
	}
	owned := make(map[hangar.MachineID]struct{}, len(reserved))
	for key := range reserved {
		owned[hangar.MachineID(key[strings.LastIndexByte(key, '/')+1:])] = struct{}{}
	}
	for _, item := range items {
		_, id, ok := parseRowKey(item.Key)
		if _, found := owned[id]; !ok || found {
			continue
		}
		row, err := s.rows.parse(item)
		if err != nil {
			continue // parse has logged why
		}
		err = s.rows.adopt(ctx, row)
		if hangar.ReasonOf(err) == hangar.ReasonRecordDamaged {
			s.log.Error("a machine without a reservation is passed over", keyMachine, id, keyError, err)
			continue
		}
		if err != nil {
			return state.HangarError(err)
		}
	}
	return nil
}

// adopt makes the reservation of an existing Machine that has none, unless the Machine or its App is destroyed. A new
// App with the name of a destroyed one does not get it. A name that another Machine has taken meanwhile is left to
// that.
func (r *Rows) adopt(ctx context.Context, row hangar.MachineRow) error {
	ref := row.Machine.Ref()
	if gone(row.Machine.State) {
		return nil
	}
	for {
		if _, err := r.store.Get(ctx, state.ReservationKey(ref)); !errors.Is(err, state.ErrNotFound) {
			return err
		}
		app, appItem, err := state.Read[tenants.AppRecord](ctx, r.store, state.AppKey(ref.App))
		if errors.Is(err, state.ErrNotFound) || err == nil && (app.Deleting || app.ID != ref.AppID) {
			return nil
		}
		if err != nil {
			return err
		}
		held := reservation{ID: ref.ID, Name: row.Machine.Name, Host: row.Machine.Host, Confirmed: true, CreatedAt: row.Machine.CreatedAt, OrgID: app.OrgID}
		held.Counts = guestQuotas(row.Machine.Config.Guest)
		put, err := state.Write(state.ReservationKey(ref), held)
		if err != nil {
			return err
		}
		txn := state.Txn{If: []state.Compare{state.Unchanged(appItem), state.Absent(put.Key)}, Then: []state.Op{put}}
		if _, err := r.store.Get(ctx, state.NameKey(ref.AppID, held.Name)); errors.Is(err, state.ErrNotFound) {
			name, err := state.Write(state.NameKey(ref.AppID, held.Name), nameRecord{ID: ref.ID})
			if err != nil {
				return err
			}
			txn.If, txn.Then = append(txn.If, state.Absent(name.Key)), append(txn.Then, name)
		} else if err != nil {
			return err
		}
		if err := r.ledger.Credit(ctx, app.OrgID, held.Counts, &txn); err != nil {
			return err
		}
		if _, err := r.store.Txn(ctx, txn); !errors.Is(err, state.ErrConflict) {
			return err
		}
	}
}

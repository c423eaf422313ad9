package control

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// heal finishes what a crash left half done. It fails only if the state does.
func (c *Control) heal(ctx context.Context) error {
	if err := c.healApps(ctx); err != nil {
		return err
	}
	if err := c.healOrgs(ctx); err != nil {
		return err
	}
	reserved, err := c.healReservations(ctx)
	if err != nil {
		return err
	}
	if err := c.healVolumes(ctx); err != nil {
		return err
	}
	if err := c.healVolumeClaims(ctx); err != nil {
		return err
	}
	return c.adoptOrphans(ctx, reserved)
}

// healApps finishes the destruction of Apps.
func (c *Control) healApps(ctx context.Context) error {
	items, _, err := state.All(ctx, c.store, appsPrefix, false)
	if err != nil {
		return stateError(err)
	}
	for _, item := range items {
		rec, err := decode[appRecord](item)
		if err != nil {
			c.log.Error("app skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if !rec.Deleting {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, destroyTimeout)
		err = c.finishDestroy(bounded, item)
		cancel()
		if err != nil {
			c.log.Warn("app is not destroyed yet", keyApp, rec.Name, keyError, err)
		}
	}
	return nil
}

// healReservations confirms or releases what no creator finished, and returns the
// keys of all reservations there were.
func (c *Control) healReservations(ctx context.Context) (map[string]struct{}, error) {
	items, _, err := state.All(ctx, c.store, reservationsPrefix, false)
	if err != nil {
		return nil, stateError(err)
	}
	known := make(map[string]struct{}, len(items))
	var group errgroup.Group
	group.SetLimit(destroysAtOnce)
	for _, item := range items {
		known[item.Key] = struct{}{}
		r, err := decode[reservation](item)
		if err != nil {
			c.log.Error("reservation skipped", keyKey, item.Key, keyError, err)
			continue
		}
		switch {
		case !r.Confirmed && !c.underWay(r.ID):
			group.Go(func() error { return c.healReservation(ctx, item, r) })
		case r.Version == updating:
			app, _, _ := strings.Cut(strings.TrimPrefix(item.Key, reservationsPrefix), "/")
			if err := c.settleWithHost(ctx, hangar.MachineRef{AppID: hangar.AppID(app), ID: r.ID}); err != nil {
				c.log.Warn("the size of a machine is not settled yet", keyApp, app, keyMachine, r.ID, keyError, err)
			}
		}
	}
	return known, group.Wait()
}

func (c *Control) healReservation(ctx context.Context, item state.Item, r reservation) error {
	app, _, _ := strings.Cut(strings.TrimPrefix(item.Key, reservationsPrefix), "/")
	half := &claim{reservation: r, app: hangar.AppID(app), item: item}
	bounded, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	exists, err := c.exists(bounded, half)
	switch {
	case err != nil:
		c.log.Warn("reservation is not settled yet", keyApp, app, keyMachine, r.ID, keyHost, r.Host, keyError, err)
		return nil
	case exists:
		if err := c.rewrite(ctx, half, func(r *reservation) { r.Confirmed = true }); !errors.Is(err, errLost) {
			return err
		}
		return nil
	}
	c.log.Info("releasing a reservation without a machine", keyApp, app, keyMachine, r.ID, keyHost, r.Host)
	txn := state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}}
	named, nameItem, err := read[nameRecord](ctx, c.store, nameKey(half.app, r.Name))
	if err == nil && named.ID == r.ID {
		txn.If, txn.Then = append(txn.If, state.Unchanged(nameItem)), append(txn.Then, state.Delete(nameItem.Key))
	}
	if _, err = c.ledger.giveBack(ctx, r.OrgID, r.Counts, txn); err != nil && !errors.Is(err, state.ErrConflict) {
		return stateError(err)
	}
	return nil
}

// exists asks the host, and nobody else, whether it has recorded a Machine.
func (c *Control) exists(ctx context.Context, r *claim) (bool, error) {
	agent, err := c.agent(r.Host)
	if err != nil {
		return false, err
	}
	_, err = agent.Machine(ctx, r.ref())
	if hangar.ReasonOf(err) == hangar.ReasonMachineNotFound {
		return false, nil
	}
	return err == nil, err
}

// adoptOrphans gives a reservation back to Machines that have a row and none, as
// after the state was restored from a backup.
func (c *Control) adoptOrphans(ctx context.Context, reserved map[string]struct{}) error {
	items, _, err := state.All(ctx, c.store, hostsPrefix, false)
	if err != nil {
		return stateError(err)
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
		row, err := c.rows.parse(item)
		if err != nil {
			continue // parse has told why
		}
		if err := adopt(ctx, c.ledger, row); err != nil {
			return stateError(err)
		}
	}
	return nil
}

// adopt reserves what a Machine uses that exists and has no reservation, unless it
// is destroyed or its App is; another App of the same name gets nothing. A name that another Machine has meanwhile stays
// that one's.
func adopt(ctx context.Context, l *ledger, row hangar.MachineRow) error {
	s := l.store
	ref := row.Machine.Ref()
	if gone(row.Machine.State) {
		return nil
	}
	for {
		if _, err := s.Get(ctx, reservationKey(ref)); !errors.Is(err, state.ErrNotFound) {
			return err
		}
		app, appItem, err := read[appRecord](ctx, s, appKey(ref.App))
		if errors.Is(err, state.ErrNotFound) || err == nil && (app.Deleting || app.ID != ref.AppID) {
			return nil
		}
		if err != nil {
			return err
		}
		r := reservation{ID: ref.ID, Name: row.Machine.Name, Host: row.Machine.Host, Confirmed: true, CreatedAt: row.Machine.CreatedAt, OrgID: app.OrgID}
		r.Counts = guestQuotas(row.Machine.Config.Guest)
		put, err := write(reservationKey(ref), r)
		if err != nil {
			return err
		}
		txn := state.Txn{If: []state.Compare{state.Unchanged(appItem), state.Absent(put.Key)}, Then: []state.Op{put}}
		if _, err := s.Get(ctx, nameKey(ref.AppID, r.Name)); errors.Is(err, state.ErrNotFound) {
			name, err := write(nameKey(ref.AppID, r.Name), nameRecord{ID: ref.ID})
			if err != nil {
				return err
			}
			txn.If, txn.Then = append(txn.If, state.Absent(name.Key)), append(txn.Then, name)
		} else if err != nil {
			return err
		}
		if err := l.credit(ctx, app.OrgID, r.Counts, &txn); err != nil {
			return err
		}
		if _, err := s.Txn(ctx, txn); !errors.Is(err, state.ErrConflict) {
			return err
		}
	}
}

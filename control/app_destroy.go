package control

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/finish"
)

const (
	destroyTimeout = time.Minute // of an App with all of its Machines
	destroysAtOnce = 16
	deletesAtOnce  = state.MaxTxnOps - 2 // one compare is of the App, one of what its organization uses
)

// DestroyApp implements hangar.AppService. Leases of its Machines do not keep an App:
// whoever may delete it may do so with all that is in it. Once it has marked the
// App, the decision stands: what cannot be destroyed now is when it is called again, or by
// Open.
func (a *Apps) DestroyApp(ctx context.Context, name hangar.AppName, force bool) error {
	marked, err := a.markDeleting(ctx, name, force)
	if err != nil {
		return err
	}
	// Half a destruction helps nobody, so it goes on when the caller goes away.
	ctx, cancel := finish.Within(ctx, destroyTimeout)
	defer cancel()
	return a.finishDestroy(ctx, marked)
}

// markDeleting returns the App's record as it will stay until it is gone.
func (a *Apps) markDeleting(ctx context.Context, name hangar.AppName, force bool) (state.Item, error) {
	for {
		rec, item, err := a.app(ctx, name, hangar.ActionDelete)
		if err != nil || rec.Deleting {
			return item, err
		}
		if !force {
			if err := a.nothingRuns(ctx, rec); err != nil {
				return item, err
			}
		}
		rec.Deleting = true
		mark, err := write(item.Key, rec)
		if err != nil {
			return item, err
		}
		revision, err := a.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{mark}})
		if err == nil {
			return state.Item{Key: item.Key, Value: mark.Value, Revision: revision}, nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return item, stateError(err)
		}
	}
}

// nothingRuns refuses while a Machine of the App is not at rest.
func (a *Apps) nothingRuns(ctx context.Context, rec appRecord) error {
	machines, err := a.machinesOf(ctx, rec, hangar.MachineFilter{})
	if err != nil {
		return err
	}
	for _, m := range machines {
		if m.State.NeedsForce() {
			return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonMachinesRunning,
				"App %q has machines that are not stopped, such as %s (%s); stop them or use force", rec.Name, m.ID, m.State)
		}
	}
	return nil
}

// finishDestroy destroys what an App that is marked still has, and then the App.
// It changes nothing once the marked record is gone, for then another call was
// quicker, and there may be a new App of that name.
func (c *Control) finishDestroy(ctx context.Context, marked state.Item) error {
	rec, err := decode[appRecord](marked)
	if err != nil {
		return err
	}
	for {
		reserved, _, err := state.All(ctx, c.store, reservationKey(rec.ref("")), false)
		if err != nil {
			return stateError(err)
		}
		owners := c.owners(ctx, rec.ID, reserved)
		volumes, err := c.volumesOf(ctx, rec)
		if err != nil {
			return err
		}
		switch now, err := c.store.Get(ctx, marked.Key); {
		case errors.Is(err, state.ErrNotFound), err == nil && now.Revision != marked.Revision:
			return nil
		case err != nil:
			return stateError(err)
		}
		if err := c.destroyMachines(ctx, rec, owners); err != nil {
			return err
		}
		if err := c.destroyVolumes(ctx, volumes); err != nil {
			return err
		}
		if err = c.forgetApp(ctx, rec.ID, marked, reserved); !errors.Is(err, state.ErrConflict) {
			return stateError(err)
		}
		// A creation that had begun before the App was marked went on meanwhile.
	}
}

// owners says which hosts have the reserved Machines, and any of the App that
// hosts have beside them.
func (c *Control) owners(ctx context.Context, app hangar.AppID, reserved []state.Item) map[hangar.MachineID]hangar.HostID {
	owners := map[hangar.MachineID]hangar.HostID{}
	for _, host := range c.agents.Hosts() {
		agent, err := c.agent(host.ID)
		if err != nil {
			continue // Machines that it has are reserved, but for rare leftovers
		}
		machines, err := agent.Machines(ctx, app, hangar.MachineFilter{})
		if err != nil {
			continue
		}
		for _, m := range machines {
			owners[m.ID] = host.ID
		}
	}
	for _, item := range reserved {
		r, err := decode[reservation](item)
		if err != nil {
			c.log.Error("reservation skipped", keyKey, item.Key, keyError, err)
			continue
		}
		owners[r.ID] = r.Host
	}
	return owners
}

func (c *Control) destroyMachines(ctx context.Context, app appRecord, owners map[hangar.MachineID]hangar.HostID) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(destroysAtOnce)
	for id, host := range owners {
		group.Go(func() error {
			agent, err := c.agent(host)
			if err == nil {
				err = agent.DestroyMachine(platform(ctx), app.ref(id), hangar.MachineDestroy{Force: true})
			}
			if hangar.CodeOf(err) == hangar.CodeNotFound {
				return nil
			}
			return err
		})
	}
	return group.Wait()
}

// forgetApp removes all records of an App. It returns state.ErrConflict when a
// reservation changed since it was read, so that no Machine stays without one.
func (c *Control) forgetApp(ctx context.Context, app hangar.AppID, marked state.Item, reserved []state.Item) error {
	names, _, err := state.All(ctx, c.store, nameKey(app, ""), true)
	if err != nil {
		return err
	}
	if err := c.forgetAddresses(ctx, app, marked); err != nil {
		return err
	}
	if err := c.forgetHostnames(ctx, app, marked); err != nil {
		return err
	}
	rec, err := decode[appRecord](marked)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(slices.Concat(reserved, names), deletesAtOnce) {
		txn := state.Txn{If: []state.Compare{state.Unchanged(marked)}}
		counted := hangar.Quotas{}
		for _, item := range batch {
			txn.If = append(txn.If, state.Unchanged(item))
			txn.Then = append(txn.Then, state.Delete(item.Key))
			if r, err := decode[reservation](item); err == nil && strings.HasPrefix(item.Key, reservationsPrefix) {
				counted = sum(counted, r.Counts)
			}
		}
		if _, err := c.ledger.giveBack(ctx, rec.OrgID, counted, txn); err != nil {
			return err
		}
	}
	counted := hangar.Quotas{hangar.QuotaApps: 1}
	if secrets, _, err := c.readSecrets(ctx, rec); err != nil {
		c.log.ErrorContext(ctx, "secrets of a destroyed app stay counted", keyApp, rec.Name, keyError, err)
	} else {
		counted = sum(counted, secrets.counts())
	}
	_, err = c.ledger.giveBack(ctx, rec.OrgID, counted, state.Txn{
		If: []state.Compare{state.Unchanged(marked)}, Then: []state.Op{state.Delete(marked.Key), state.Delete(secretsKey(app))},
	})
	return err
}

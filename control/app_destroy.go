package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/finish"
)

const (
	destroyTimeout = time.Minute // of an App with all of its Machines
	destroysAtOnce = 16
	deletesAtOnce  = state.MaxTxnOps - 2 // one compare is of the App, one of what its organization uses
)

// DestroyApp implements hangar.AppService. Leases of its Machines do not protect an App: the right
// to delete it includes all that is in it. Once the App is marked, its destruction cannot be
// undone: the next call or Control.Run continues it after a failure.
func (a *Apps) DestroyApp(ctx context.Context, name hangar.AppName, force bool) error {
	marked, err := a.markDeleting(ctx, name, force)
	if err != nil {
		return err
	}
	// The destruction continues if the caller disconnects, because half of one is useless.
	ctx, cancel := finish.Within(ctx, destroyTimeout)
	defer cancel()
	if err = a.finishDestroy(ctx, marked); err != nil {
		a.unfinished.signal()
	}
	return err
}

// markDeleting marks the App's record and returns it. The record does not change any more until it
// is removed.
func (a *Apps) markDeleting(ctx context.Context, name hangar.AppName, force bool) (state.Item, error) {
	for {
		rec, item, err := a.tenants.App(ctx, name, hangar.ActionDelete)
		if err != nil || rec.Deleting {
			return item, err
		}
		if !force {
			if err := a.nothingRuns(ctx, rec); err != nil {
				return item, err
			}
		}
		rec.Deleting = true
		mark, err := state.Write(item.Key, rec)
		if err != nil {
			return item, err
		}
		revision, err := a.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{mark}})
		if err == nil {
			return state.Item{Key: item.Key, Value: mark.Value, Revision: revision}, nil
		}
		if !errors.Is(err, state.ErrConflict) {
			a.unfinished.signal() // whether it was written is unknown
			return item, state.HangarError(err)
		}
	}
}

// nothingRuns refuses while a Machine of the App is not at rest.
func (a *Apps) nothingRuns(ctx context.Context, rec tenants.AppRecord) error {
	machines, err := a.machines.machinesOf(ctx, rec, hangar.MachineFilter{})
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

// finishDestroy destroys the content of a marked App, and then the App. It does nothing if the
// marked record is gone: another call has finished, and there may be a new App with that name.
func (a *Apps) finishDestroy(ctx context.Context, marked state.Item) error {
	rec, err := state.Decode[tenants.AppRecord](marked)
	if err != nil {
		return err
	}
	for {
		reserved, _, err := state.All(ctx, a.store, state.ReservationKey(rec.Ref("")), false)
		if err != nil {
			return state.HangarError(err)
		}
		owners := a.owners(ctx, rec.ID, reserved)
		volumes, err := a.rows.volumesOf(ctx, rec.ID)
		if err != nil {
			return err
		}
		switch now, err := a.store.Get(ctx, marked.Key); {
		case errors.Is(err, state.ErrNotFound), err == nil && now.Revision != marked.Revision:
			return nil
		case err != nil:
			return state.HangarError(err)
		}
		if err := a.destroyMachines(ctx, rec, owners); err != nil {
			return err
		}
		if err := a.volumes.destroyAll(ctx, volumes); err != nil {
			return err
		}
		if err = a.forgetApp(ctx, rec.ID, marked, reserved); !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
		// A creation that began before the mark has added a Machine.
	}
}

// owner is which host has a Machine.
type owner struct {
	host      hangar.HostID
	undecided bool // the host may still create it
}

// owners returns the owner of each of the App's Machines: the reserved ones, and others that hosts
// have.
func (a *Apps) owners(ctx context.Context, app hangar.AppID, reserved []state.Item) map[hangar.MachineID]owner {
	owners := map[hangar.MachineID]owner{}
	all := askAll(a.hosts, a.hosts.agents.Known(), func(agent hangar.Agent) ([]*hangar.Machine, error) {
		return agent.Machines(ctx, app, hangar.MachineFilter{})
	})
	for _, answer := range all { // a host that does not answer has, but for rare leftovers, only reserved Machines
		for _, m := range answer.value {
			owners[m.ID] = owner{host: answer.host}
		}
	}
	for _, item := range reserved {
		r, err := state.Decode[reservation](item)
		if err != nil {
			a.log.Error("reservation skipped", keyKey, item.Key, keyError, err)
			continue
		}
		owners[r.ID] = owner{r.Host, r.undecided(a.now())}
	}
	return owners
}

func (a *Apps) destroyMachines(ctx context.Context, app tenants.AppRecord, owners map[hangar.MachineID]owner) error {
	var group errgroup.Group // after a failure, all others are destroyed nevertheless
	group.SetLimit(destroysAtOnce)
	for id, owner := range owners {
		group.Go(func() error {
			agent, err := a.hosts.agent(owner.host)
			if err == nil {
				err = agent.DestroyMachine(platform(ctx), app.Ref(id), hangar.MachineDestroy{Force: true})
			}
			switch {
			case hangar.CodeOf(err) != hangar.CodeNotFound:
				return err
			case owner.undecided:
				return &hangar.Error{Code: hangar.CodeUnavailable, Message: fmt.Sprintf("host %s may still create machine %s", owner.host, id), Err: err}
			default:
				return nil
			}
		})
	}
	return group.Wait()
}

// forgetApp removes all records of an App. It returns state.ErrConflict if a reservation has
// changed since it was read, so that no Machine is left without one.
func (a *Apps) forgetApp(ctx context.Context, app hangar.AppID, marked state.Item, reserved []state.Item) error {
	names, _, err := state.All(ctx, a.store, state.NameKey(app, ""), true)
	if err != nil {
		return err
	}
	owner, err := state.Decode[tenants.AppRecord](marked)
	if err != nil {
		return err
	}
	// Before the App is removed, so that no extension outlives it unnoticed.
	if err := a.extensions.EndApp(ctx, owner.OrgID, app); err != nil {
		return err
	}
	if err := a.addresses.Forget(ctx, app, marked); err != nil {
		return err
	}
	if err := a.hostnames.Forget(ctx, app, marked); err != nil {
		return err
	}
	if err := a.releases.Forget(ctx, app, marked); err != nil {
		return err
	}
	if err := a.elections.Forget(ctx, app, marked); err != nil {
		return err
	}
	for batch := range slices.Chunk(slices.Concat(reserved, names), deletesAtOnce) {
		txn := state.Txn{If: []state.Compare{state.Unchanged(marked)}}
		counted := hangar.Quotas{}
		for _, item := range batch {
			txn.If = append(txn.If, state.Unchanged(item))
			txn.Then = append(txn.Then, state.Delete(item.Key))
			if r, err := state.Decode[reservation](item); err == nil && strings.HasPrefix(item.Key, state.ReservationsPrefix) {
				counted = ledger.Sum(counted, r.Counts)
			}
		}
		if _, err := a.ledger.GiveBack(ctx, owner.OrgID, counted, txn); err != nil {
			return err
		}
	}
	counted := hangar.Quotas{hangar.QuotaApps: 1}
	if secrets, err := a.secrets.Count(ctx, owner); err != nil {
		a.log.ErrorContext(ctx, "secrets of a destroyed app stay counted", keyApp, owner.Name, keyError, err)
	} else {
		counted = ledger.Sum(counted, secrets)
	}
	_, err = a.ledger.GiveBack(ctx, owner.OrgID, counted, state.Txn{
		If:   []state.Compare{state.Unchanged(marked)},
		Then: []state.Op{state.Delete(marked.Key), state.Delete(state.OrgAppKey(owner.OrgID, owner.Name)), state.Delete(vault.SecretsKey(app))},
	})
	return err
}

// heal finishes the destruction of Apps.
func (a *Apps) heal(ctx context.Context) error {
	items, _, err := state.All(ctx, a.store, state.AppsPrefix, false)
	if err != nil {
		return state.HangarError(err)
	}
	var group errgroup.Group
	group.SetLimit(destroysAtOnce)
	for _, item := range items {
		rec, err := state.Decode[tenants.AppRecord](item)
		if err != nil {
			a.log.Error("app skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if !rec.Deleting {
			continue
		}
		group.Go(func() error {
			bounded, cancel := context.WithTimeout(ctx, destroyTimeout)
			defer cancel()
			if err := a.finishDestroy(bounded, item); err != nil {
				a.log.Warn("app is not destroyed yet", keyApp, rec.Name, keyError, err)
				a.unfinished.signal()
			}
			return nil
		})
	}
	return group.Wait()
}

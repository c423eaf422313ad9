package control

import (
	"context"
	"errors"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/finish"
)

// createTimeout bounds a creation, and with it how old an unconfirmed reservation
// of another control plane may be that still means something.
const createTimeout = 30 * time.Second

// undoTimeout bounds how long it takes to undo a creation, also of one that took too long.
const undoTimeout = 10 * time.Second

// errLost says that somebody released a reservation while its creator, who seemed
// dead, was still at work.
var errLost = errors.New("control: reservation was released by somebody else")

// claim is a reservation that its creator holds.
type claim struct {
	reservation
	app  hangar.AppID
	item state.Item // of the reservation
	name state.Item // of the name
}

func (r *claim) ref() hangar.MachineRef { return hangar.MachineRef{AppID: r.app, ID: r.ID} }

// begin notes that this process creates a Machine, until the returned func.
func (c *Control) begin(id hangar.MachineID) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.creating[id] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.creating, id)
	}
}

func (c *Control) underWay(id hangar.MachineID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.creating[id]
	return ok
}

// reserve claims an id, a name and a host for a Machine, as long as the App may
// have Machines. An empty name is made up.
func (c *Control) reserve(ctx context.Context, app appRecord, id hangar.MachineID, name string, host hangar.HostID, counts hangar.Quotas) (*claim, error) {
	for {
		rec, item, err := c.anyApp(ctx, app.Name)
		if err != nil {
			return nil, err
		}
		if rec.ID != app.ID {
			return nil, hangar.AppNotFound()
		}
		if rec.Deleting {
			return nil, appIsGoing(app.Name)
		}
		org, err := c.orgOfApp(ctx, rec)
		if err != nil {
			return nil, err
		}
		r := &claim{
			app:         app.ID,
			reservation: reservation{ID: id, Name: name, Host: host, CreatedAt: c.now().UTC(), OrgID: org.ID, Counts: counts},
		}
		if r.Name == "" {
			r.Name = machineName()
		}
		putName, err := write(nameKey(app.ID, r.Name), nameRecord{ID: id})
		if err != nil {
			return nil, err
		}
		putSelf, err := write(reservationKey(r.ref()), r.reservation)
		if err != nil {
			return nil, err
		}
		revision, err := c.ledger.spendFor(ctx, org, counts, state.Txn{
			If:   []state.Compare{state.Unchanged(item), state.Absent(putSelf.Key), state.Absent(putName.Key)},
			Then: []state.Op{putSelf, putName},
		})
		if err == nil {
			r.item = state.Item{Key: putSelf.Key, Value: putSelf.Value, Revision: revision}
			r.name = state.Item{Key: putName.Key, Value: putName.Value, Revision: revision}
			return r, nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, stateError(err)
		}
		if name == "" {
			continue // another name, or the App's record of now
		}
		if err := c.vacate(ctx, app.ID, name); err != nil {
			return nil, err
		}
	}
}

// rewrite changes a reservation that is still held, or returns errLost.
func (c *Control) rewrite(ctx context.Context, r *claim, change func(*reservation)) error {
	next := r.reservation
	change(&next)
	put, err := write(r.item.Key, next)
	if err != nil {
		return err
	}
	revision, err := c.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(r.item)}, Then: []state.Op{put}})
	if errors.Is(err, state.ErrConflict) {
		return errLost
	}
	if err != nil {
		return stateError(err)
	}
	r.reservation = next
	r.item.Value, r.item.Revision = put.Value, revision
	return nil
}

// release gives a reservation and its name back, unless somebody else did.
func (c *Control) release(ctx context.Context, r *claim) {
	ctx, cancel := finish.Within(ctx, undoTimeout)
	defer cancel()
	_, err := c.ledger.giveBack(ctx, r.OrgID, r.Counts, state.Txn{
		If:   []state.Compare{state.Unchanged(r.item), state.Unchanged(r.name)},
		Then: []state.Op{state.Delete(r.item.Key), state.Delete(r.name.Key)},
	})
	if err != nil && !errors.Is(err, state.ErrConflict) {
		// It is found again by its name, or by Open.
		c.log.Warn("reservation was not released", keyApp, r.app, keyMachine, r.ID, keyError, err)
	}
}

// vacate returns when a name is free, and CodeConflict while a Machine has it. A
// name is free whose Machine is being destroyed, was destroyed by itself or
// never came to be.
func (c *Control) vacate(ctx context.Context, app hangar.AppID, name string) error {
	named, item, err := read[nameRecord](ctx, c.store, nameKey(app, name))
	if errors.Is(err, state.ErrNotFound) {
		return nil
	}
	if err != nil {
		return stateError(err)
	}
	txn := state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}}
	var counted hangar.Quotas
	ref := hangar.MachineRef{AppID: app, ID: named.ID}
	held, heldItem, err := read[reservation](ctx, c.store, reservationKey(ref))
	switch {
	case errors.Is(err, state.ErrNotFound):
	case err != nil:
		return stateError(err)
	default:
		exists, inUse := c.observe(ctx, ref, held)
		if inUse {
			return nameTaken(named.ID, name)
		}
		if !exists {
			txn.If = append(txn.If, state.Unchanged(heldItem))
			txn.Then = append(txn.Then, state.Delete(heldItem.Key))
			counted = held.Counts
		}
	}
	_, err = c.ledger.giveBack(ctx, held.OrgID, counted, txn)
	if errors.Is(err, state.ErrConflict) {
		return nil // the caller tries, and sees
	}
	return stateError(err)
}

func nameTaken(holder hangar.MachineID, name string) error {
	return hangar.Errorf(hangar.CodeConflict, hangar.ReasonNameTaken,
		"already_exists: unique machine name violation, machine ID %s already exists with name %q", holder, name)
}

// observe says whether the Machine of a reservation exists, and whether its name
// is in use. What cannot be found out is taken to be so.
func (c *Control) observe(ctx context.Context, ref hangar.MachineRef, r reservation) (exists, inUse bool) {
	if c.underWay(r.ID) || !r.Confirmed && c.now().Sub(r.CreatedAt) < createTimeout {
		return true, true
	}
	return c.ask(ctx, ref, r)
}

// ask is observe for a reservation that is nobody's work under way.
func (c *Control) ask(ctx context.Context, ref hangar.MachineRef, r reservation) (exists, inUse bool) {
	m, err := c.machineOrRow(ctx, ref, r.Host)
	switch {
	case err == nil:
		return true, !gone(m.State)
	case hangar.CodeOf(err) == hangar.CodeNotFound:
		return false, false
	default:
		return true, true
	}
}

func gone(s hangar.MachineState) bool {
	return s == hangar.MachineDestroying || s == hangar.MachineDestroyed
}

// machineOrRow asks the host of a Machine or, if that is away, its row.
func (c *Control) machineOrRow(ctx context.Context, ref hangar.MachineRef, host hangar.HostID) (*hangar.Machine, error) {
	agent, err := c.agent(host)
	if err == nil {
		var m *hangar.Machine
		if m, err = agent.Machine(ctx, ref); err == nil {
			return m, nil
		}
	}
	return c.rowInstead(ctx, ref, host, err)
}

// rowInstead returns a Machine as it was published if failure says that its host is
// away, and else that failure.
func (c *Control) rowInstead(ctx context.Context, ref hangar.MachineRef, host hangar.HostID, failure error) (*hangar.Machine, error) {
	if !unreachable(failure) || ctx.Err() != nil {
		return nil, failure
	}
	row, err := c.rows.row(ctx, host, ref.ID)
	if err != nil || row.Machine.AppID != ref.AppID {
		return nil, failure
	}
	row.Machine.HostStatus = hostUnreachable
	return &row.Machine, nil
}

// releaseName frees the name of a Machine that is destroyed, so that it can be
// given again at once.
func releaseName(ctx context.Context, s state.Store, ref hangar.MachineRef, name string) error {
	named, item, err := read[nameRecord](ctx, s, nameKey(ref.AppID, name))
	if errors.Is(err, state.ErrNotFound) || err == nil && named.ID != ref.ID {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = s.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}})
	if errors.Is(err, state.ErrConflict) {
		return nil
	}
	return err
}

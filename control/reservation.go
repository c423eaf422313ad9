package control

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/finish"
)

// createTimeout bounds a creation. An older unconfirmed reservation of another control plane
// therefore belongs to no living creator.
const createTimeout = 30 * time.Second

// undoTimeout bounds the undoing of a creation, also of one that has used up createTimeout.
const undoTimeout = 10 * time.Second

// outcomeTimeout is the age from which a host that has no Machine for a reservation, or no volume for a claim, never
// will: it works on a creation until the deadline of the call, and the rest is for a commit under way then.
const outcomeTimeout = createTimeout + undoTimeout

// errLost says that another caller released a reservation while its creator, who seemed
// dead, was still at work.
var errLost = errors.New("control: reservation was released by another caller")

// heldReservation is a reservation with what its creator needs to change or release it.
type heldReservation struct {
	reservation
	app  hangar.AppID
	item state.Item // of the reservation
	name state.Item // of the name
}

func (r *heldReservation) ref() hangar.MachineRef { return hangar.MachineRef{AppID: r.app, ID: r.ID} }

// reservations say which host has which Machine, and keep Machines from being made twice.
type reservations struct {
	store   state.Store
	tenants *tenants.Directory
	ledger  *ledger.Ledger
	hosts   *hosts
	rows    *Rows
	log     *slog.Logger
	now     func() time.Time

	unfinished unfinished

	mu       sync.Mutex
	creating map[hangar.MachineID]struct{} // guarded by mu: creations of this process that are under way
}

// begin notes that this process creates a Machine, until end is called.
func (s *reservations) begin(id hangar.MachineID) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.creating[id] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.creating, id)
	}
}

func (s *reservations) underWay(id hangar.MachineID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.creating[id]
	return ok
}

// reserve claims an id, a name and a host for a Machine, as long as the App may have Machines. For
// an empty name it makes one up.
func (s *reservations) reserve(ctx context.Context, app tenants.AppRecord, id hangar.MachineID, name string, host hangar.HostID, counts hangar.Quotas) (*heldReservation, error) {
	for {
		rec, item, err := s.tenants.AnyApp(ctx, app.Name)
		if err != nil {
			return nil, err
		}
		if rec.ID != app.ID {
			return nil, hangar.AppNotFound()
		}
		if rec.Deleting {
			return nil, tenants.AppIsGoing(app.Name)
		}
		org, err := s.tenants.OrgOfApp(ctx, rec)
		if err != nil {
			return nil, err
		}
		r := &heldReservation{
			app:         app.ID,
			reservation: reservation{ID: id, Name: name, Host: host, CreatedAt: s.now().UTC(), OrgID: org.ID, Counts: counts},
		}
		if r.Name == "" {
			r.Name = machineName()
		}
		putName, err := state.Write(state.NameKey(app.ID, r.Name), nameRecord{ID: id})
		if err != nil {
			return nil, err
		}
		putSelf, err := state.Write(state.ReservationKey(r.ref()), r.reservation)
		if err != nil {
			return nil, err
		}
		revision, err := s.ledger.SpendFor(ctx, org, counts, state.Txn{
			If:   []state.Compare{state.Unchanged(item), state.Absent(putSelf.Key), state.Absent(putName.Key)},
			Then: []state.Op{putSelf, putName},
		})
		if err == nil {
			r.item = state.Item{Key: putSelf.Key, Value: putSelf.Value, Revision: revision}
			r.name = state.Item{Key: putName.Key, Value: putName.Value, Revision: revision}
			return r, nil
		}
		if !errors.Is(err, state.ErrConflict) {
			if err = state.HangarError(err); unreachable(err) {
				s.unfinished.signal() // whether it was written is unknown
			}
			return nil, err
		}
		if name == "" {
			continue // with another name, or the App's current record
		}
		if err := s.vacate(ctx, app.ID, name); err != nil {
			return nil, err
		}
	}
}

// rewrite changes a reservation that is still held, or returns errLost.
func (s *reservations) rewrite(ctx context.Context, r *heldReservation, change func(*reservation)) error {
	next := r.reservation
	change(&next)
	put, err := state.Write(r.item.Key, next)
	if err != nil {
		return err
	}
	revision, err := s.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(r.item)}, Then: []state.Op{put}})
	if errors.Is(err, state.ErrConflict) {
		return errLost
	}
	if err != nil {
		s.unfinished.signal() // whether it was written is unknown
		return state.HangarError(err)
	}
	r.reservation = next
	r.item.Value, r.item.Revision = put.Value, revision
	return nil
}

// release removes a reservation and its name, unless another caller has.
func (s *reservations) release(ctx context.Context, r *heldReservation) {
	ctx, cancel := finish.Within(ctx, undoTimeout)
	defer cancel()
	_, err := s.ledger.GiveBack(ctx, r.OrgID, r.Counts, state.Txn{
		If:   []state.Compare{state.Unchanged(r.item), state.Unchanged(r.name)},
		Then: []state.Op{state.Delete(r.item.Key), state.Delete(r.name.Key)},
	})
	if err != nil && !errors.Is(err, state.ErrConflict) {
		s.log.Warn("reservation was not released", keyApp, r.app, keyMachine, r.ID, keyError, err)
		s.unfinished.signal()
	}
}

// vacate frees a name whose Machine is being destroyed, has destroyed itself or was never created.
// It returns CodeConflict if an existing Machine has the name.
func (s *reservations) vacate(ctx context.Context, app hangar.AppID, name string) error {
	named, item, err := state.Read[nameRecord](ctx, s.store, state.NameKey(app, name))
	if errors.Is(err, state.ErrNotFound) {
		return nil
	}
	if err != nil {
		return state.HangarError(err)
	}
	txn := state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}}
	var counted hangar.Quotas
	ref := hangar.MachineRef{AppID: app, ID: named.ID}
	held, heldItem, err := state.Read[reservation](ctx, s.store, state.ReservationKey(ref))
	switch {
	case errors.Is(err, state.ErrNotFound):
	case err != nil:
		return state.HangarError(err)
	default:
		exists, inUse := s.observe(ctx, ref, held)
		if inUse {
			return nameTaken(named.ID, name)
		}
		if !exists {
			txn.If = append(txn.If, state.Unchanged(heldItem))
			txn.Then = append(txn.Then, state.Delete(heldItem.Key))
			counted = held.Counts
		}
	}
	_, err = s.ledger.GiveBack(ctx, held.OrgID, counted, txn)
	if errors.Is(err, state.ErrConflict) {
		return nil // the caller tries to reserve the name again
	}
	return state.HangarError(err)
}

func nameTaken(holder hangar.MachineID, name string) error {
	return hangar.Errorf(hangar.CodeConflict, hangar.ReasonNameTaken,
		"already_exists: unique machine name violation, machine ID %s already exists with name %q", holder, name)
}

// observe says whether the Machine of a reservation exists, and whether its name is in use. It
// returns true for what cannot be found out.
func (s *reservations) observe(ctx context.Context, ref hangar.MachineRef, r reservation) (exists, inUse bool) {
	if s.underWay(r.ID) || !r.Confirmed && s.now().Sub(r.CreatedAt) < createTimeout || r.undecided(s.now()) {
		return true, true
	}
	return s.ask(ctx, ref, r)
}

// ask is observe for a reservation whose creator is not at work.
func (s *reservations) ask(ctx context.Context, ref hangar.MachineRef, r reservation) (exists, inUse bool) {
	m, err := s.machineOrRow(ctx, ref, r.Host)
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

// machineOrRow returns a Machine from its host or, if that cannot be reached, from its row.
func (s *reservations) machineOrRow(ctx context.Context, ref hangar.MachineRef, host hangar.HostID) (*hangar.Machine, error) {
	agent, err := s.hosts.agent(host)
	if err == nil {
		var m *hangar.Machine
		if m, err = agent.Machine(ctx, ref); err == nil {
			return m, nil
		}
	}
	return s.rowInstead(ctx, ref, host, err)
}

// rowInstead returns a Machine from its row if failure says that its host cannot be reached, and
// otherwise failure.
func (s *reservations) rowInstead(ctx context.Context, ref hangar.MachineRef, host hangar.HostID, failure error) (*hangar.Machine, error) {
	if !unreachable(failure) || ctx.Err() != nil {
		return nil, failure
	}
	row, err := s.rows.row(ctx, host, ref.ID)
	if err != nil || row.Machine.AppID != ref.AppID {
		return nil, failure
	}
	row.Machine.HostStatus = hostUnreachable
	return &row.Machine, nil
}

// releaseName frees the name of a Machine that is destroyed, so that it can be used again at once.
func releaseName(ctx context.Context, s state.Store, ref hangar.MachineRef, name string) error {
	named, item, err := state.Read[nameRecord](ctx, s, state.NameKey(ref.AppID, name))
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

// Package elections keeps the records with which the Machines of an App elect a leader, in the cluster state.
//
// Promises. A change is one transaction: it happens only if all its conditions hold, and the changes of an election
// have increasing numbers. A record that is bound to a session, which is a lease of the state, ends with it; a
// condition is never satisfied by a record whose session has ended. The records of an App and the rate of their
// changes are bounded. The elections of an App are removed with it, and no other App sees them.
//
// Concurrency. All is safe for concurrent use. Memory holds only the number of waiting requests and the rates of
// changes.
//
// It does not interpret the records.
package elections

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/random"
	"github.com/hangar-platform/hangar/internal/ratelimit"
)

// changePace is how often an App may change its elections.
var changePace = ratelimit.Pace{PerSecond: 10, Burst: 60} //nolint:gochecknoglobals // a constant

// maxPaced bounds the memory of the limiter, in Apps.
const maxPaced = 16 << 10

// Elections implements hangar.ElectionService.
type Elections struct {
	store   state.Store
	tenants *tenants.Directory
	changes *ratelimit.Limiter[hangar.AppID]
	waits   *connlimit.Count[hangar.AppID]
}

var _ hangar.ElectionService = (*Elections)(nil)

// New returns the service of what is in a state.
func New(store state.Store, dir *tenants.Directory, now func() time.Time) *Elections {
	return &Elections{
		store: store, tenants: dir, changes: ratelimit.New[hangar.AppID](maxPaced, changePace.Refill(), now), waits: connlimit.NewCount[hangar.AppID](hangar.MaxElectionWaits, math.MaxInt),
	}
}

// Election implements hangar.ElectionService.
func (e *Elections) Election(ctx context.Context, name hangar.AppName, election hangar.ElectionName, q hangar.ElectionQuery) (*hangar.Election, error) {
	app, _, err := e.tenants.App(ctx, name, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	if err := election.Validate(); err != nil {
		return nil, err
	}
	k := keysOf(app.ID, election)
	items, revision, err := state.All(ctx, e.store, k.prefix, false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	now, err := read(k, items)
	if err != nil || q.After == "" || !now.awaited(q.After) {
		return now.view(election), err
	}
	if !e.waits.Take(app.ID) {
		return nil, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonAtLimit, "the app has %d requests that wait for its elections: no more are allowed", hangar.MaxElectionWaits)
	}
	defer e.waits.Leave(app.ID)
	waiting, cancel := context.WithTimeout(ctx, min(q.Wait, hangar.MaxElectionWait))
	defer cancel()
	for batch, err := range e.store.Watch(waiting, k.prefix, revision+1) {
		if err != nil {
			return nil, state.HangarError(err)
		}
		for _, c := range batch.Changes {
			if items = slices.DeleteFunc(items, func(i state.Item) bool { return i.Key == c.Key }); !c.Deleted {
				items = append(items, c.Item)
			}
		}
		if now, err = read(k, items); err != nil || !now.awaited(q.After) {
			return now.view(election), err
		}
	}
	return now.view(election), ctx.Err()
}

// place is an election that a caller may change, as it was read.
type place struct {
	*snapshot

	app     tenants.AppRecord
	appItem state.Item
	name    hangar.ElectionName
	keys    keys
}

// find returns the election of a name to whom may take part in it.
func (e *Elections) find(ctx context.Context, name hangar.AppName, election hangar.ElectionName) (*place, error) {
	app, item, err := e.tenants.AppIf(ctx, hangar.MachineRef{App: name}, func(p hangar.Principal, t hangar.Target) bool { return hangar.MayElect(ctx, p, t) })
	if err != nil {
		return nil, err
	}
	if err := election.Validate(); err != nil {
		return nil, err
	}
	k := keysOf(app.ID, election)
	items, _, err := state.All(ctx, e.store, k.prefix, false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	now, err := read(k, items)
	if err != nil {
		return nil, err
	}
	return &place{snapshot: now, app: app, appItem: item, name: election, keys: k}, nil
}

// paced refuses too frequent requests.
func (e *Elections) paced(app hangar.AppID) error {
	if e.changes.Take(app, changePace) > 0 {
		return hangar.Errorf(hangar.CodeExhausted, hangar.ReasonRateLimited, "the elections of the app change too often")
	}
	return nil
}

// try calls attempt with the election, again while that ends with state.ErrConflict.
func (e *Elections) try(ctx context.Context, name hangar.AppName, election hangar.ElectionName, attempt func(*place) error) error {
	for first := true; ; first = false {
		p, err := e.find(ctx, name, election)
		if err == nil && first {
			err = e.paced(p.app.ID)
		}
		if err != nil {
			return err
		}
		if err = attempt(p); !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// ChangeElection implements hangar.ElectionService.
func (e *Elections) ChangeElection(ctx context.Context, name hangar.AppName, election hangar.ElectionName, in hangar.ElectionChange) (hangar.ElectionChanged, error) {
	var done hangar.ElectionChanged
	err := e.try(ctx, name, election, func(p *place) error {
		if err := in.Validate(); err != nil {
			return err
		}
		relied := map[hangar.ElectionSessionID]bool{}
		for _, c := range in.If {
			r, _ := p.recordOf(c.Key)
			if r.Revision != c.Revision {
				done = hangar.ElectionChanged{Revision: p.Revision}
				return nil
			}
			if r.Session != "" {
				relied[r.Session] = true
			}
		}
		next := p.next()
		for _, put := range in.Put {
			if _, alive := p.sessions[put.Session]; put.Session != "" && !alive {
				return sessionNotFound(put.Session)
			}
			if put.Session != "" {
				relied[put.Session] = true
			}
			next.Records[put.Key] = stored{Value: put.Value, Revision: next.Revision, Session: put.Session}
		}
		for _, key := range in.Delete {
			delete(next.Records, key)
		}
		txn := state.Txn{}
		for id := range relied {
			txn.If = append(txn.If, state.Unchanged(p.sessions[id]))
		}
		done = hangar.ElectionChanged{Changed: true, Revision: next.Revision}
		return e.write(ctx, p, next, txn)
	})
	return done, err
}

// write makes next the content of an election, together with what else is to be done.
func (e *Elections) write(ctx context.Context, p *place, next *record, txn state.Txn) error {
	if err := next.fits(); err != nil {
		return err
	}
	put, err := state.Write(p.keys.record, next)
	if err != nil {
		return err
	}
	txn.Then = append(txn.Then, put)
	if p.item.Revision == 0 {
		return e.create(ctx, p, txn)
	}
	txn.If = append(txn.If, state.Unchanged(p.item))
	_, err = e.store.Txn(ctx, txn)
	return err
}

// create makes an election by a transaction that writes its record, unless the App is going or has enough of them.
func (e *Elections) create(ctx context.Context, p *place, txn state.Txn) error {
	if p.app.Deleting {
		return tenants.AppIsGoing(p.app.Name)
	}
	names, item, err := e.names(ctx, p.app.ID)
	if err != nil {
		return err
	}
	if len(names) >= hangar.MaxElections {
		return hangar.Errorf(hangar.CodeExhausted, hangar.ReasonQuota, "the app has %d elections already (%s): remove one, or use one of them", len(names), strings.Join(names, ", "))
	}
	index, err := state.Write(item.Key, append(names, string(p.name)))
	if err != nil {
		return err
	}
	txn.If = append(txn.If, state.Unchanged(p.appItem), state.Unchanged(item), state.Absent(p.keys.record))
	txn.Then = append(txn.Then, index)
	_, err = e.store.Txn(ctx, txn)
	return err
}

// names returns the names of the elections of an App, and the item that has them, of revision 0 if there are none.
func (e *Elections) names(ctx context.Context, app hangar.AppID) ([]string, state.Item, error) {
	names, item, err := state.Read[[]string](ctx, e.store, indexKey(app))
	if errors.Is(err, state.ErrNotFound) {
		return nil, state.Item{Key: indexKey(app)}, nil
	}
	return slices.Clone(names), item, err // what is read is shared
}

// RemoveElection implements hangar.ElectionService.
func (e *Elections) RemoveElection(ctx context.Context, name hangar.AppName, election hangar.ElectionName) error {
	if _, _, err := e.tenants.App(ctx, name, hangar.ActionControl); err != nil {
		return err
	}
	return e.try(ctx, name, election, func(p *place) error {
		if p.item.Revision == 0 {
			return nil
		}
		names, item, err := e.names(ctx, p.app.ID)
		if err != nil {
			return err
		}
		index, err := state.Write(item.Key, slices.DeleteFunc(names, func(n string) bool { return n == string(p.name) }))
		if err != nil {
			return err
		}
		txn := state.Txn{If: []state.Compare{state.Unchanged(p.item), state.Unchanged(item)}, Then: []state.Op{index, state.Delete(p.keys.record)}}
		for _, session := range p.sessions {
			txn.Then = append(txn.Then, state.Delete(session.Key)) // its lease ends by itself
		}
		_, err = e.store.Txn(ctx, txn)
		return err
	})
}

// OpenElectionSession implements hangar.ElectionService.
func (e *Elections) OpenElectionSession(ctx context.Context, name hangar.AppName, election hangar.ElectionName, in hangar.ElectionSessionOpen) (hangar.ElectionSession, error) {
	var (
		lease state.Lease // ends by itself if it is not used
		made  hangar.ElectionSession
	)
	err := e.try(ctx, name, election, func(p *place) error {
		if err := in.Validate(); err != nil {
			return err
		}
		if len(p.sessions) >= hangar.MaxElectionSessions {
			return hangar.Errorf(hangar.CodeExhausted, hangar.ReasonQuota, "the election has %d sessions already: wait until some have ended", len(p.sessions))
		}
		if lease.ID == 0 {
			var err error
			if lease, err = e.store.Grant(ctx, time.Duration(in.TTL)); err != nil {
				return err
			}
			made = hangar.ElectionSession{ID: hangar.ElectionSessionID(random.ID()), TTL: hangar.Duration(lease.TTL)}
		}
		value, err := json.Marshal(session{Lease: lease.ID})
		if err != nil {
			return err
		}
		next := p.next()
		next.Sessions = append(next.Sessions, made.ID)
		return e.write(ctx, p, next, state.Txn{Then: []state.Op{{Key: p.keys.session(made.ID), Value: value, Lease: lease.ID}}})
	})
	return made, err
}

// lease returns the lease of a session of an election.
func (p *place) lease(id hangar.ElectionSessionID) (state.LeaseID, error) {
	item, alive := p.sessions[id]
	if !alive {
		return 0, sessionNotFound(id)
	}
	s, err := state.Decode[session](item)
	return s.Lease, err
}

// RenewElectionSession implements hangar.ElectionService.
func (e *Elections) RenewElectionSession(ctx context.Context, name hangar.AppName, election hangar.ElectionName, id hangar.ElectionSessionID) (hangar.ElectionSession, error) {
	p, err := e.find(ctx, name, election)
	if err != nil {
		return hangar.ElectionSession{}, err
	}
	lease, err := p.lease(id)
	if err != nil {
		return hangar.ElectionSession{}, err
	}
	ttl, err := e.store.Renew(ctx, lease)
	if errors.Is(err, state.ErrLeaseEnded) {
		return hangar.ElectionSession{}, sessionNotFound(id)
	}
	return hangar.ElectionSession{ID: id, TTL: hangar.Duration(ttl)}, state.HangarError(err)
}

// EndElectionSession implements hangar.ElectionService.
func (e *Elections) EndElectionSession(ctx context.Context, name hangar.AppName, election hangar.ElectionName, id hangar.ElectionSessionID) error {
	p, err := e.find(ctx, name, election)
	if err != nil {
		return err
	}
	lease, err := p.lease(id)
	if err != nil {
		return nil //nolint:nilerr // it has ended
	}
	if _, err = e.store.Revoke(ctx, lease); errors.Is(err, state.ErrLeaseEnded) {
		return nil
	}
	return state.HangarError(err)
}

// Upkeep is what other services do to elections.
type Upkeep struct{ store state.Store }

// NewUpkeep returns the Upkeep of what is in a state.
func NewUpkeep(store state.Store) Upkeep { return Upkeep{store} }

// Forget removes the elections of an App that is marked.
func (u Upkeep) Forget(ctx context.Context, app hangar.AppID, marked state.Item) error {
	items, _, err := state.All(ctx, u.store, indexKey(app)+"/", true)
	if err != nil {
		return err
	}
	ops := []state.Op{state.Delete(indexKey(app))}
	for _, item := range items {
		ops = append(ops, state.Delete(item.Key))
	}
	for batch := range slices.Chunk(ops, state.MaxTxnOps) {
		if _, err := u.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(marked)}, Then: batch}); err != nil {
			return err
		}
	}
	return nil
}

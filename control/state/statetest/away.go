package statetest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar/control/state"
)

// Away is a Store that can be made unreachable, except for its watches.
type Away struct {
	Store

	Lost atomic.Bool // reads and writes fail
}

// ErrLost is what a Store that is lost answers.
var ErrLost = errors.New("the state is away")

// Get implements state.Store.
func (a *Away) Get(ctx context.Context, key string) (state.Item, error) {
	if a.Lost.Load() {
		return state.Item{}, ErrLost
	}
	return a.Store.Get(ctx, key)
}

// List implements state.Store.
func (a *Away) List(ctx context.Context, prefix string, o state.ListOptions) (state.Page, error) {
	if a.Lost.Load() {
		return state.Page{}, ErrLost
	}
	return a.Store.List(ctx, prefix, o)
}

// Txn implements state.Store.
func (a *Away) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	if a.Lost.Load() {
		return 0, ErrLost
	}
	return a.Store.Txn(ctx, txn)
}

// Grant implements state.Store.
func (a *Away) Grant(ctx context.Context, ttl time.Duration) (state.Lease, error) {
	if a.Lost.Load() {
		return state.Lease{}, ErrLost
	}
	return a.Store.Grant(ctx, ttl)
}

// Renew implements state.Store.
func (a *Away) Renew(ctx context.Context, id state.LeaseID) (time.Duration, error) {
	if a.Lost.Load() {
		return 0, ErrLost
	}
	return a.Store.Renew(ctx, id)
}

// Revoke implements state.Store.
func (a *Away) Revoke(ctx context.Context, id state.LeaseID) (state.Revision, error) {
	if a.Lost.Load() {
		return 0, ErrLost
	}
	return a.Store.Revoke(ctx, id)
}

package statetest

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/hangar-platform/hangar/control/state"
)

// Away is a Store that can be made unreachable, but for its watches.
type Away struct {
	state.Store

	Lost atomic.Bool // reads and writes fail
}

var errLost = errors.New("the state is away")

// Get implements state.Store.
func (a *Away) Get(ctx context.Context, key string) (state.Item, error) {
	if a.Lost.Load() {
		return state.Item{}, errLost
	}
	return a.Store.Get(ctx, key)
}

// List implements state.Store.
func (a *Away) List(ctx context.Context, prefix string, o state.ListOptions) (state.Page, error) {
	if a.Lost.Load() {
		return state.Page{}, errLost
	}
	return a.Store.List(ctx, prefix, o)
}

// Txn implements state.Store.
func (a *Away) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	if a.Lost.Load() {
		return 0, errLost
	}
	return a.Store.Txn(ctx, txn)
}

package control

import (
	"context"

	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
)

// Tokens keeps the records of API tokens in the state, for package auth.
type Tokens struct{ store state.Store }

var _ auth.Store = (*Tokens)(nil)

// NewTokens returns the Tokens of a state.
func NewTokens(store state.Store) *Tokens { return &Tokens{store: store} }

// Tokens implements auth.Store. One record that cannot be read is an error:
// whoever starts with fewer tokens than there are locks somebody out.
func (t *Tokens) Tokens(ctx context.Context) ([]auth.Record, error) {
	items, _, err := state.All(ctx, t.store, tokensPrefix, false)
	if err != nil {
		return nil, stateError(err)
	}
	records := make([]auth.Record, 0, len(items))
	for _, item := range items {
		r, err := decode[auth.Record](item)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// PutToken implements auth.Store.
func (t *Tokens) PutToken(ctx context.Context, r auth.Record) error {
	put, err := write(tokensPrefix+r.Name, r)
	if err != nil {
		return err
	}
	_, err = t.store.Txn(ctx, state.Txn{Then: []state.Op{put}})
	return stateError(err)
}

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// vault keeps records in the state that only the keys of this server open.
//
// One of them, the seal, is written before any other and says which keys those are.
// Every write compares it, and a rotation of the key rewrites it first: so nothing
// that was encrypted with an old key is stored after everything else was encrypted
// anew, however long it was on its way.
type vault struct {
	store state.Store
	keys  *keyset.Keyset
	log   *slog.Logger
}

// sealedRecord is a record of the vault. It is bound to its key and to Of.
type sealedRecord struct {
	Of     []string `json:"of,omitempty"` // what it is of beyond its key, e.g. a version
	Sealed []byte   `json:"sealed"`
}

// sealText is what is in the seal.
const sealText = "hangar"

// HasSealed reports whether a state holds what only the keys that it was encrypted
// with open.
func HasSealed(ctx context.Context, store state.Store) (bool, error) {
	_, err := store.Get(ctx, sealKey)
	if errors.Is(err, state.ErrNotFound) {
		return false, nil
	}
	return err == nil, stateError(err)
}

// ForgetSealed removes everything encrypted from a state, for a server whose keys are
// lost for ever. The seal goes last, so that it may be repeated.
func ForgetSealed(ctx context.Context, store state.Store) error {
	for _, prefix := range []string{credentialsPrefix, secretsPrefix, certificatesPrefix, oidc.Prefix, archivePrefix, sealKey} {
		items, _, err := state.All(ctx, store, prefix, true)
		if err != nil {
			return stateError(err)
		}
		for batch := range slices.Chunk(items, state.MaxTxnOps) {
			var txn state.Txn
			for _, item := range batch {
				txn.Then = append(txn.Then, state.Delete(item.Key))
			}
			if _, err := store.Txn(ctx, txn); err != nil {
				return stateError(err)
			}
		}
	}
	return nil
}

// check answers an error if the state was encrypted with other keys.
func (v *vault) check(ctx context.Context) error {
	return v.keys.Use(func(keys keyset.Keys) error {
		_, err := v.seal(ctx, keys)
		if errors.Is(err, state.ErrNotFound) {
			return nil
		}
		return err
	})
}

// seal reads the seal. It returns state.ErrNotFound, and an error if the keys are
// not those of the state.
func (v *vault) seal(ctx context.Context, keys keyset.Keys) (state.Item, error) {
	item, err := v.store.Get(ctx, sealKey)
	if err != nil {
		return item, err
	}
	var text string
	if err := unseal(keys, item, &text); err != nil || text != sealText {
		return item, &hangar.Error{
			Code:    hangar.CodeInternal,
			Message: "The secrets in the cluster state were encrypted with another keyset than this server's " + keyset.File, Err: err,
		}
	}
	return item, nil
}

// fence returns what must hold when something is stored, and makes the seal if
// there is none.
func (v *vault) fence(ctx context.Context, keys keyset.Keys) (state.Compare, error) {
	for {
		item, err := v.seal(ctx, keys)
		if !errors.Is(err, state.ErrNotFound) {
			return state.Unchanged(item), err
		}
		put, err := sealed(keys, sealKey, sealText)
		if err != nil {
			return state.Compare{}, err
		}
		_, err = v.store.Txn(ctx, state.Txn{If: []state.Compare{state.Absent(sealKey)}, Then: []state.Op{put}})
		if err != nil && !errors.Is(err, state.ErrConflict) {
			return state.Compare{}, err
		}
	}
}

// put runs the transaction that build makes. It returns state.ErrConflict also when
// the key was rotated meanwhile.
func (v *vault) put(ctx context.Context, build func(keys keyset.Keys) (state.Txn, error)) error {
	return v.keys.Use(func(keys keyset.Keys) error {
		fence, err := v.fence(ctx, keys)
		if err != nil {
			return err
		}
		txn, err := build(keys)
		if err != nil {
			return err
		}
		txn.If = append(txn.If, fence)
		_, err = v.store.Txn(ctx, txn)
		return err
	})
}

// get reads a record, or returns state.ErrNotFound.
func (v *vault) get(ctx context.Context, key string, value any) error {
	return v.keys.Use(func(keys keyset.Keys) error {
		item, err := v.store.Get(ctx, key)
		if err == nil {
			err = unseal(keys, item, value)
		}
		return err
	})
}

// sealed returns the operation that stores a value.
func sealed(keys keyset.Keys, key string, value any, of ...string) (state.Op, error) {
	plain, err := json.Marshal(value)
	if err != nil {
		return state.Op{}, fmt.Errorf("encode record %s: %w", key, err)
	}
	return sealedBytes(keys, key, plain, of)
}

func sealedBytes(keys keyset.Keys, key string, plain []byte, of []string) (state.Op, error) {
	b, err := keys.Seal(plain, labelOf(key, of)...)
	if err != nil {
		return state.Op{}, fmt.Errorf("encrypt record %s: %w", key, err)
	}
	return write(key, sealedRecord{Of: of, Sealed: b})
}

func labelOf(key string, of []string) []string { return append([]string{"state", key}, of...) }

// unseal decodes what sealed has encoded.
func unseal(keys keyset.Keys, item state.Item, value any) error {
	rec, err := decode[sealedRecord](item)
	if err != nil {
		return err
	}
	plain, err := keys.Open(rec.Sealed, labelOf(item.Key, rec.Of)...)
	if err == nil {
		err = json.Unmarshal(plain, value)
	}
	if err != nil {
		return &hangar.Error{
			Code: hangar.CodeInternal, Message: "An encrypted record of the cluster state cannot be read",
			Err: fmt.Errorf("record %s: %w", item.Key, err),
		}
	}
	return nil
}

// Reseal implements hangar.Resealer. What cannot be read with any key stays as it
// is and is logged.
func (v *vault) Reseal(ctx context.Context) (int, error) {
	// The seal first, see vault.
	item, err := v.store.Get(ctx, sealKey)
	if errors.Is(err, state.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, stateError(err)
	}
	resealed, err := v.resealItem(ctx, item)
	if err != nil {
		return 0, stateError(err)
	}
	for _, prefix := range []string{credentialsPrefix, secretsPrefix, certificatesPrefix, oidc.Prefix, archivePrefix} {
		items, _, err := state.All(ctx, v.store, prefix, false)
		if err != nil {
			return resealed, stateError(err)
		}
		for _, item := range items {
			n, err := v.resealItem(ctx, item)
			if err != nil {
				return resealed, stateError(err)
			}
			resealed += n
		}
	}
	return resealed, nil
}

// resealItem encrypts one record anew, as it is when nobody changes it meanwhile.
func (v *vault) resealItem(ctx context.Context, item state.Item) (n int, err error) {
	for {
		err := v.keys.Use(func(keys keyset.Keys) error {
			rec, err := decode[sealedRecord](item)
			if err == nil && keys.Current(rec.Sealed) {
				return nil
			}
			var plain []byte
			if err == nil {
				plain, err = keys.Open(rec.Sealed, labelOf(item.Key, rec.Of)...)
			}
			if err != nil {
				v.log.Error("encrypted record skipped", keyKey, item.Key, keyError, err)
				return nil
			}
			put, err := sealedBytes(keys, item.Key, plain, rec.Of)
			if err != nil {
				return err
			}
			_, err = v.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{put}})
			if err == nil {
				n = 1
			}
			return err
		})
		if !errors.Is(err, state.ErrConflict) {
			return n, err
		}
		if item, err = v.store.Get(ctx, item.Key); err != nil {
			if errors.Is(err, state.ErrNotFound) {
				err = nil
			}
			return 0, err
		}
	}
}

// Package vault keeps encrypted values in the state, which only the keys of these servers
// decrypt: the secrets and secret keys of Apps, credentials for registries, and the password of
// the archive of snapshots.
//
// Promises. What is stored is encrypted and bound to its key in the state. Nothing that was
// encrypted with an old key is stored after the key was rotated; see Vault. The secrets of an
// App are one record: a version is all or nothing.
//
// Concurrency. All is safe for concurrent use, also by several processes that share a state and
// the keys.
//
// It does not hand secrets to Machines: control does, with AppSecrets.
package vault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Vault keeps records in the state that only the keys of this server open.
//
// One of them, the seal, is written before any other and says which keys those are.
// Every write compares it, and a rotation of the key rewrites it first: so nothing that
// was encrypted with an old key is stored after everything else was re-encrypted, even
// if it was delayed.
type Vault struct {
	store  state.Store
	keys   *keyset.Keyset
	others []hangar.Resealer
	log    *slog.Logger
}

var _ oidc.Vault = (*Vault)(nil)

// New returns the Vault of a state. others hold what else the keys have encrypted: a
// rotation re-encrypts that, too.
func New(store state.Store, keys *keyset.Keyset, log *slog.Logger, others ...hangar.Resealer) *Vault {
	return &Vault{store: store, keys: keys, others: others, log: log}
}

// sealedRecord is a record of the vault. It is bound to its key and to Of.
type sealedRecord struct {
	Of     []string `json:"of,omitempty"` // what it is of beyond its key, e.g. a version
	Sealed []byte   `json:"sealed"`
}

// sealedPrefixes are those of all sealed records but the seal.
func sealedPrefixes() []string {
	return []string{
		state.CredentialsPrefix, state.SecretsPrefix, state.CertificatesPrefix, oidc.Prefix, state.ArchivePrefix, state.AlertsPrefix, state.WebhooksPrefix,
		state.ProviderSecretsPrefix, state.ExtensionConfigPrefix, state.SSHPrefix, state.ACMEPrefix,
	}
}

// sealText is what is in the seal.
const sealText = "hangar"

// HasSealed reports whether a state holds what only the keys that it was encrypted
// with open.
func HasSealed(ctx context.Context, store state.Store) (bool, error) {
	_, err := store.Get(ctx, state.SealKey)
	if errors.Is(err, state.ErrNotFound) {
		return false, nil
	}
	return err == nil, state.HangarError(err)
}

// ForgetSealed removes everything encrypted from a state, for a server whose keys are
// permanently lost. The seal goes last, so that it may be repeated.
func ForgetSealed(ctx context.Context, store state.Store) error {
	for _, prefix := range append(sealedPrefixes(), state.SealKey) {
		items, _, err := state.All(ctx, store, prefix, true)
		if err != nil {
			return state.HangarError(err)
		}
		for batch := range slices.Chunk(items, state.MaxTxnOps) {
			var txn state.Txn
			for _, item := range batch {
				txn.Then = append(txn.Then, state.Delete(item.Key))
			}
			if _, err := store.Txn(ctx, txn); err != nil {
				return state.HangarError(err)
			}
		}
	}
	return nil
}

// Check answers CodeInternal if the state was encrypted with other keys.
func (v *Vault) Check(ctx context.Context) error {
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
func (v *Vault) seal(ctx context.Context, keys keyset.Keys) (state.Item, error) {
	item, err := v.store.Get(ctx, state.SealKey)
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
func (v *Vault) fence(ctx context.Context, keys keyset.Keys) (state.Compare, error) {
	for {
		item, err := v.seal(ctx, keys)
		if !errors.Is(err, state.ErrNotFound) {
			return state.Unchanged(item), err
		}
		put, err := Sealed(keys, state.SealKey, sealText)
		if err != nil {
			return state.Compare{}, err
		}
		_, err = v.store.Txn(ctx, state.Txn{If: []state.Compare{state.Absent(state.SealKey)}, Then: []state.Op{put}})
		if err != nil && !errors.Is(err, state.ErrConflict) {
			return state.Compare{}, err
		}
	}
}

// Txn runs the transaction that build makes. It returns state.ErrConflict also when
// the key was rotated meanwhile.
func (v *Vault) Txn(ctx context.Context, build func(keys keyset.Keys) (state.Txn, error)) error {
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

// Get reads a record, or returns state.ErrNotFound.
func (v *Vault) Get(ctx context.Context, key string, value any) error {
	return v.keys.Use(func(keys keyset.Keys) error {
		item, err := v.store.Get(ctx, key)
		if err == nil {
			err = unseal(keys, item, value)
		}
		return err
	})
}

// Each decodes the records below a prefix in turn: do calls open for each that it wants to read,
// which decodes what Sealed has encoded.
func (v *Vault) Each(ctx context.Context, prefix string, do func(item state.Item, open func(value any) error)) error {
	return v.keys.Use(func(keys keyset.Keys) error {
		items, _, err := state.All(ctx, v.store, prefix, false)
		for _, item := range items {
			do(item, func(value any) error { return unseal(keys, item, value) })
		}
		return err
	})
}

// Sealed returns the operation that stores a value. It is bound to its key and to what it is of, which may be anything.
func Sealed(keys keyset.Keys, key string, value any, of ...string) (state.Op, error) {
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
	return state.Write(key, sealedRecord{Of: of, Sealed: b})
}

func labelOf(key string, of []string) []string { return append([]string{"state", key}, of...) }

// unseal decodes what Sealed has encoded.
func unseal(keys keyset.Keys, item state.Item, value any) error {
	rec, err := state.Decode[sealedRecord](item)
	if err != nil {
		return err
	}
	plain, err := keys.Open(rec.Sealed, labelOf(item.Key, rec.Of)...)
	if err == nil {
		err = json.Unmarshal(plain, value)
	}
	if err != nil {
		return state.Damaged(item.Key, err)
	}
	return nil
}

// Reseal implements hangar.Resealer. What cannot be read with any key stays as it
// is and is logged.
func (v *Vault) Reseal(ctx context.Context) (int, error) {
	// The seal first, see Vault.
	item, err := v.store.Get(ctx, state.SealKey)
	if errors.Is(err, state.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, state.HangarError(err)
	}
	resealed, err := v.resealItem(ctx, item)
	if err != nil {
		return 0, state.HangarError(err)
	}
	for _, prefix := range sealedPrefixes() {
		items, _, err := state.All(ctx, v.store, prefix, false)
		if err != nil {
			return resealed, state.HangarError(err)
		}
		for _, item := range items {
			n, err := v.resealItem(ctx, item)
			if err != nil {
				return resealed, state.HangarError(err)
			}
			resealed += n
		}
	}
	return resealed, nil
}

// resealItem re-encrypts one record, unless it is changed meanwhile.
func (v *Vault) resealItem(ctx context.Context, item state.Item) (n int, err error) {
	for {
		err := v.keys.Use(func(keys keyset.Keys) error {
			rec, err := state.Decode[sealedRecord](item)
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

// Open implements oidc.Vault.
func (v *Vault) Open(item state.Item) (plain []byte, err error) {
	err = v.keys.Use(func(keys keyset.Keys) error {
		rec, err := state.Decode[sealedRecord](item)
		if err == nil {
			plain, err = keys.Open(rec.Sealed, labelOf(item.Key, rec.Of)...)
		}
		return err
	})
	return plain, err
}

// Decode decrypts a record and decodes it. It answers hangar.ReasonRecordDamaged for one that cannot be read.
func Decode[T any](v *Vault, item state.Item) (rec T, err error) {
	plain, err := v.Open(item)
	if err == nil {
		err = json.Unmarshal(plain, &rec)
	}
	if err != nil {
		var none T
		return none, state.Damaged(item.Key, err)
	}
	return rec, nil
}

// Opened is what was made of encrypted records, by their keys, for a reader that reads all of them
// again after every change. The zero value is not ready to use.
type Opened[T any] map[string]opened[T]

// opened is what was made of a record, as of a revision.
type opened[T any] struct {
	revision state.Revision
	made     T
}

// All returns what open makes of items, and forgets others. It opens changed items, and again
// those whose result open does not keep.
func (o Opened[T]) All(items []state.Item, open func(item state.Item) (made T, keep bool)) []T {
	there := make(map[string]bool, len(items))
	all := make([]T, 0, len(items))
	for _, item := range items {
		there[item.Key] = true
		one, ok := o[item.Key]
		if !ok || one.revision != item.Revision {
			keep := false
			one.revision = item.Revision
			if one.made, keep = open(item); keep {
				o[item.Key] = one
			}
		}
		all = append(all, one.made)
	}
	maps.DeleteFunc(o, func(key string, _ opened[T]) bool { return !there[key] })
	return all
}

// Put implements oidc.Vault.
func (v *Vault) Put(ctx context.Context, key string, plain []byte, unchanged state.Compare) error {
	return v.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
		put, err := sealedBytes(keys, key, plain, nil)
		return state.Txn{If: []state.Compare{unchanged}, Then: []state.Op{put}}, err
	})
}

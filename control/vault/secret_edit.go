package vault

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Edit is a change of the secrets of an App by an extension, which is a part of its caller's
// transaction.
type Edit struct {
	secrets *AppSecrets
	app     tenants.AppRecord
	rec     secretsRecord
	before  hangar.Quotas
	when    []state.Compare
	changed bool
}

// EditSecrets returns the Edit that sets values in the name of an extension and removes all others
// that the same extension has set and that are unchanged since; nil values remove all. It also returns
// the names, sorted, that are in use otherwise: the Edit sets those, too, so a caller that must not
// overwrite them drops it.
func (a *AppSecrets) EditSecrets(
	ctx context.Context, app tenants.AppRecord, item state.Item, by hangar.ExtensionID, values map[string]string,
) (*Edit, []string, error) {
	rec, unchanged, err := a.read(ctx, app)
	if err != nil {
		return nil, nil, err
	}
	e := &Edit{secrets: a, app: app, rec: rec, before: rec.counts(), when: []state.Compare{state.Unchanged(item), unchanged}}
	e.rec.Secrets = maps.Clone(rec.Secrets)
	if e.rec.Secrets == nil {
		e.rec.Secrets = map[string]secretRecord{}
	}
	var taken []string
	for name, s := range e.rec.Secrets {
		if _, stays := values[name]; !stays && s.Of == by {
			delete(e.rec.Secrets, name)
			e.changed = true
		}
	}
	now := a.now().UTC().Truncate(time.Second)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		was, known := e.rec.Secrets[name]
		if known && was.Of != by {
			taken = append(taken, name)
		}
		next := secretRecord{Value: values[name], CreatedAt: now, UpdatedAt: now, Of: by}
		if known {
			next.CreatedAt = was.CreatedAt
			if was.Value == next.Value && was.Of == by {
				continue
			}
		}
		e.rec.Secrets[name] = next
		e.changed = true
	}
	if e.changed {
		e.rec.next()
	}
	if n := e.rec.size(); e.changed && len(values) > 0 && n > hangar.MaxSecretsSize {
		return nil, nil, hangar.Errorf(hangar.CodeInvalid, "",
			"the secrets of the app would have %d bytes, more than the %d that are allowed", n, hangar.MaxSecretsSize)
	}
	return e, taken, nil
}

// Counts are what the Edit changes of what the organization uses.
func (e *Edit) Counts() hangar.Quotas { return ledger.Sum(e.rec.counts(), ledger.Negative(e.before)) }

// AddTo adds the Edit to a transaction, but for what it counts.
func (e *Edit) AddTo(keys keyset.Keys, txn *state.Txn) error {
	txn.If = append(txn.If, e.when...)
	if !e.changed {
		return nil
	}
	put, err := Sealed(keys, SecretsKey(e.app.ID), e.rec, e.rec.of()...)
	if err != nil {
		return errors.Join(err)
	}
	txn.Then = append(txn.Then, put)
	return nil
}

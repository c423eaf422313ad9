package control

import (
	"context"
	"errors"
	"iter"
	"log/slog"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// CertificateRecords is where the edge learns which certificates to have: a
// hangar.CertificateFeed over the state.
type CertificateRecords struct {
	store state.Store
	vault *vault
	log   *slog.Logger
}

var _ hangar.CertificateFeed = (*CertificateRecords)(nil)

// NewCertificateRecords returns the CertificateRecords of a state, whose keys must be those
// that it was encrypted with.
func NewCertificateRecords(store state.Store, keys *keyset.Keyset, log *slog.Logger) *CertificateRecords {
	return &CertificateRecords{store: store, vault: &vault{store: store, keys: keys, log: log}, log: log}
}

// WatchCertificates implements hangar.CertificateFeed.
func (r *CertificateRecords) WatchCertificates(ctx context.Context) iter.Seq2[hangar.CertificateSet, error] {
	return func(yield func(hangar.CertificateSet, error) bool) {
		opened := map[string]openedCertificate{}
		for ctx.Err() == nil {
			set, revision, err := r.read(ctx, opened)
			if err == nil && !yield(set, nil) {
				return
			}
			if err == nil {
				err = r.change(ctx, revision+1)
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil && !errors.Is(err, state.ErrCompacted) {
				yield(hangar.CertificateSet{}, stateError(err))
				return
			}
		}
	}
}

// openedCertificate is one that was decrypted, as of a revision.
type openedCertificate struct {
	revision state.Revision
	customRecord
}

// read returns all certificates as of a revision, and keeps in opened what it has decrypted.
func (r *CertificateRecords) read(ctx context.Context, opened map[string]openedCertificate) (set hangar.CertificateSet, revision state.Revision, err error) {
	names, revision, err := state.All(ctx, r.store, hostnamesPrefix, false)
	if err != nil {
		return set, 0, err
	}
	err = r.vault.keys.Use(func(keys keyset.Keys) error {
		items, _, err := state.All(ctx, r.store, certificatesPrefix, false)
		if err != nil {
			return err
		}
		there := make(map[string]struct{}, len(items))
		for _, item := range items {
			there[item.Key] = struct{}{}
			if opened[item.Key].revision == item.Revision {
				continue
			}
			one := openedCertificate{revision: item.Revision}
			if err := unseal(keys, item, &one.customRecord); err != nil {
				r.log.Error("certificate skipped", keyKey, item.Key, keyError, err)
			}
			opened[item.Key] = one
		}
		for key := range opened {
			if _, ok := there[key]; !ok {
				delete(opened, key)
			}
		}
		return nil
	})
	if err != nil {
		return set, 0, err
	}
	for _, item := range names {
		name := hostnameOf(item.Key)
		rec, err := decode[hostnameRecord](item)
		if err != nil {
			r.log.Error("hostname skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if rec.ACME && rec.State.ordered() {
			set.ACME = append(set.ACME, hangar.WantedCertificate{Hostname: name, Org: rec.OrgID})
		}
		if up := opened[certificateKey(name)]; rec.Custom && rec.State.served() && up.Fullchain != "" {
			set.Custom = append(set.Custom, hangar.CustomCertificate{Hostname: name, Fullchain: []byte(up.Fullchain), PrivateKey: []byte(up.PrivateKey)})
		}
	}
	return set, revision, nil
}

// change returns when a Hostname or its certificate has changed after a revision.
func (r *CertificateRecords) change(ctx context.Context, from state.Revision) error {
	for batch, err := range r.store.Watch(ctx, hostnamesPrefix, from) {
		if err != nil || len(batch.Changes) > 0 {
			return err
		}
	}
	return nil
}

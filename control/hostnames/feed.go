package hostnames

import (
	"context"
	"iter"
	"log/slog"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
)

// Feed is where the edge learns which certificates to have: a
// hangar.CertificateFeed over the state.
type Feed struct {
	store state.Store
	vault *vault.Vault
	log   *slog.Logger
}

var _ hangar.CertificateFeed = (*Feed)(nil)

// NewFeed returns the Feed of a state, and of the Vault of the same.
func NewFeed(store state.Store, v *vault.Vault, log *slog.Logger) *Feed {
	return &Feed{store: store, vault: v, log: log}
}

// WatchCertificates implements hangar.CertificateFeed.
func (f *Feed) WatchCertificates(ctx context.Context) iter.Seq2[hangar.CertificateSet, error] {
	opened := map[string]openedCertificate{}
	return state.Snapshots(ctx, f.store, state.HostnamesPrefix, func(ctx context.Context) (hangar.CertificateSet, state.Revision, error) {
		return f.read(ctx, opened)
	})
}

// openedCertificate is one that was decrypted, as of a revision.
type openedCertificate struct {
	revision state.Revision
	customRecord
}

// read returns all certificates as of a revision, and keeps in opened what it has decrypted.
func (f *Feed) read(ctx context.Context, opened map[string]openedCertificate) (set hangar.CertificateSet, revision state.Revision, err error) {
	names, revision, err := state.All(ctx, f.store, state.HostnamesPrefix, false)
	if err != nil {
		return set, 0, err
	}
	there := map[string]struct{}{}
	err = f.vault.Each(ctx, state.CertificatesPrefix, func(item state.Item, open func(value any) error) {
		there[item.Key] = struct{}{}
		if opened[item.Key].revision == item.Revision {
			return
		}
		one := openedCertificate{revision: item.Revision}
		if err := open(&one.customRecord); err != nil {
			f.log.Error("certificate skipped", keyKey, item.Key, keyError, err)
		}
		opened[item.Key] = one
	})
	if err != nil {
		return set, 0, err
	}
	for key := range opened {
		if _, ok := there[key]; !ok {
			delete(opened, key)
		}
	}
	for _, item := range names {
		name := Name(item.Key)
		rec, err := state.Decode[hostnameRecord](item)
		if err != nil {
			f.log.Error("hostname skipped", keyKey, item.Key, keyError, err)
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

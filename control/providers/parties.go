package providers

import (
	"context"
	"encoding/hex"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// maxClientID bounds the id of a client, in bytes.
const maxClientID = 64

// eventsPath is where a provider takes events of Machines, below its base URL.
const eventsPath = "/extensions/events"

// client is the record of an OAuth client: the provider that it belongs to.
type client struct {
	Provider hangar.ProviderName `json:"provider"`
}

var (
	_ hangar.OAuthClients      = (*Registry)(nil)
	_ hangar.EventReceiverFeed = (*Registry)(nil)
)

// OAuthClient implements hangar.OAuthClients: a provider is the client of single sign-on. It answers
// CodeNotFound with ReasonProviderNotFound.
func (r *Registry) OAuthClient(ctx context.Context, id hangar.OAuthClientID) (*hangar.OAuthClient, error) {
	if id == "" || strings.Contains(string(id), "/") || len(id) > maxClientID {
		return nil, hangar.ProviderNotFound("")
	}
	of, _, err := state.Read[client](ctx, r.Store, clientKey(string(id)))
	if errors.Is(err, state.ErrNotFound) {
		return nil, hangar.ProviderNotFound("")
	}
	if err != nil {
		return nil, state.HangarError(err)
	}
	rec, _, err := r.Find(ctx, of.Provider)
	if err != nil {
		return nil, err
	}
	if rec.Removing || rec.ClientID != string(id) {
		return nil, hangar.ProviderNotFound("")
	}
	found := &hangar.OAuthClient{ID: id, Name: string(rec.Name), DisplayName: rec.DisplayName, RedirectURIs: rec.RedirectURIs}
	now := r.Now()
	for _, d := range rec.ClientSecrets {
		if !d.Until.IsZero() && !d.Until.After(now) {
			continue
		}
		sum, err := hex.DecodeString(d.SHA256)
		if err != nil {
			return nil, hangar.Errorf(hangar.CodeInternal, "", "digest of the secret of a provider: %w", err)
		}
		found.Secrets = append(found.Secrets, sum)
	}
	return found, nil
}

// WatchEventReceivers implements hangar.EventReceiverFeed: providers get the events of their own App,
// and of the Apps that they were granted.
func (r *Registry) WatchEventReceivers(ctx context.Context) iter.Seq2[[]hangar.EventReceiver, error] {
	return state.Snapshots(ctx, r.Store, state.ProvidersPrefix, r.receivers)
}

// receivers are the receivers of events as of a revision. While the secrets of a provider cannot be
// read, its queued events are kept.
func (r *Registry) receivers(ctx context.Context) (all []hangar.EventReceiver, _ state.Revision, _ error) {
	items, revision, err := state.All(ctx, r.Store, state.ProvidersPrefix, false)
	if err != nil {
		return nil, 0, err
	}
	for _, item := range items {
		rec, err := state.Decode[Record](item)
		var one hangar.EventReceiver
		if err == nil {
			one, err = r.receiver(ctx, &rec, item.Revision)
		}
		switch {
		case err != nil:
			r.Log.Error("provider gets no events", keyKey, item.Key, keyError, err)
			all = append(all, hangar.EventReceiver{Unreadable: true})
		case len(one.Apps) > 0:
			all = append(all, one)
		}
	}
	return all, revision, nil
}

// receiver converts a provider to a receiver of events. It may be one of no App.
func (r *Registry) receiver(ctx context.Context, rec *Record, revision state.Revision) (hangar.EventReceiver, error) {
	one := hangar.EventReceiver{
		// The name of a provider may be reused, its client id may not.
		ID: "provider-" + rec.ClientID, Version: uint64(revision), URL: rec.BaseURL + eventsPath,
		AllowPrivate: rec.AllowPrivate, OriginalNames: rec.PublicEventTypes, Apps: rec.GrantedAppIDs,
	}
	if rec.Removing {
		one.Apps = nil
		return one, nil
	}
	if rec.PlatformAppID != "" && !slices.Contains(one.Apps, rec.PlatformAppID) {
		one.Apps = append([]hangar.AppID{rec.PlatformAppID}, one.Apps...)
	}
	if len(one.Apps) == 0 {
		return one, nil
	}
	all, _, err := r.signing(ctx, rec.Name)
	if err != nil {
		return one, err
	}
	secrets := valid(all.Request, r.Now())
	one.Secret = hangar.NewSensitive(secrets[0].Value)
	if last := len(secrets) - 1; last > 0 {
		one.Next, one.NextAt = hangar.NewSensitive(secrets[last].Value), secrets[0].Until
	}
	return one, nil
}

package providers

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// client is what the key of an OAuth client says.
type client struct {
	Provider hangar.ProviderName `json:"provider"`
}

// OAuthClient is a provider as the client of single sign-on.
type OAuthClient struct {
	ID           string
	Name         hangar.ProviderName
	DisplayName  string
	RedirectURIs []string // compared as they are
	// SecretDigests are the SHA-256 of the secrets that are valid now: one, or two during a rotation.
	SecretDigests [][]byte
}

// OAuthClient finds a client by its id. It answers CodeNotFound with ReasonProviderNotFound.
func (r *Registry) OAuthClient(ctx context.Context, id string) (*OAuthClient, error) {
	if id == "" || strings.Contains(id, "/") || len(id) > 64 {
		return nil, hangar.ProviderNotFound("")
	}
	of, _, err := state.Read[client](ctx, r.Store, clientKey(id))
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
	if rec.Removing || rec.ClientID != id {
		return nil, hangar.ProviderNotFound("")
	}
	found := &OAuthClient{ID: id, Name: rec.Name, DisplayName: rec.DisplayName, RedirectURIs: rec.RedirectURIs}
	now := r.Now()
	for _, d := range rec.ClientSecrets {
		if !d.Until.IsZero() && !d.Until.After(now) {
			continue
		}
		sum, err := hex.DecodeString(d.SHA256)
		if err != nil {
			return nil, hangar.Errorf(hangar.CodeInternal, "", "digest of the secret of a provider: %w", err)
		}
		found.SecretDigests = append(found.SecretDigests, sum)
	}
	return found, nil
}

// EventReceiver is a provider that gets Machine events.
type EventReceiver struct {
	Name             hangar.ProviderName
	BaseURL          string
	AllowPrivate     bool
	Secret           hangar.Sensitive // that signs requests now
	PlatformApp      hangar.AppID     // whose Machines are the provider's own; empty: there is none
	GrantedApps      []hangar.AppID
	PublicEventTypes bool // types are spelled as the public platform does
}

// EventReceivers returns the providers that get Machine events of some App, sorted by name. One whose
// secrets cannot be read is left out.
func (r *Registry) EventReceivers(ctx context.Context) ([]EventReceiver, error) {
	all, err := r.all(ctx)
	if err != nil {
		return nil, err
	}
	var list []EventReceiver
	for i := range all {
		one, ok, err := r.receiver(ctx, &all[i])
		switch {
		case hangar.CodeOf(err) == hangar.CodeInternal, hangar.CodeOf(err) == hangar.CodeNotFound:
			r.Log.Error("receiver of machine events skipped", keyProvider, all[i].Name, keyError, err)
		case err != nil:
			return nil, err
		case ok:
			list = append(list, one)
		}
	}
	return list, nil
}

// EventReceiver returns a provider that gets Machine events of some App. It answers CodeNotFound with
// ReasonProviderNotFound, also for one that gets none.
func (r *Registry) EventReceiver(ctx context.Context, name hangar.ProviderName) (EventReceiver, error) {
	rec, _, err := r.Find(ctx, name)
	if err != nil {
		return EventReceiver{}, err
	}
	one, ok, err := r.receiver(ctx, &rec)
	if err == nil && !ok {
		err = hangar.ProviderNotFound(name)
	}
	return one, err
}

func (r *Registry) receiver(ctx context.Context, rec *Record) (EventReceiver, bool, error) {
	if rec.Removing || rec.PlatformAppID == "" && len(rec.GrantedAppIDs) == 0 {
		return EventReceiver{}, false, nil
	}
	secret, err := r.RequestSecret(ctx, rec.Name)
	return EventReceiver{
		Name: rec.Name, BaseURL: rec.BaseURL, AllowPrivate: rec.AllowPrivate, Secret: secret,
		PlatformApp: rec.PlatformAppID, GrantedApps: rec.GrantedAppIDs, PublicEventTypes: rec.PublicEventTypes,
	}, err == nil, err
}

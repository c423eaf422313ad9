package vault

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// loginRecord is a credential as the state keeps it, encrypted.
type loginRecord struct {
	Username  string    `json:"username"`
	Password  string    `json:"password"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

func (r loginRecord) view(registry string) hangar.RegistryCredential {
	return hangar.RegistryCredential{Registry: registry, Username: r.Username, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt}
}

func credentialKey(registry string) string { return state.CredentialsPrefix + registry }

// Registries implements hangar.RegistryService.
type Registries struct {
	store state.Store
	vault *Vault
	now   func() time.Time
	log   *slog.Logger
}

var _ hangar.RegistryService = (*Registries)(nil)

// NewRegistries returns the service of the credentials that are in a Vault.
func NewRegistries(v *Vault, now func() time.Time) *Registries {
	return &Registries{store: v.store, vault: v, now: now, log: v.log}
}

// registriesAllowed refuses all but administrators: hosts pull with these credentials for everyone.
func registriesAllowed(ctx context.Context) error {
	return tenants.NeedAdministrator(ctx, "see or change the credentials for registries")
}

// named is registriesAllowed, and returns the name of a registry.
func (r *Registries) named(ctx context.Context, registry string) (string, error) {
	if err := registriesAllowed(ctx); err != nil {
		return "", err
	}
	return hangar.RegistryName(registry)
}

// RegistryCredentials implements hangar.RegistryService. One that cannot be read is
// left out.
func (r *Registries) RegistryCredentials(ctx context.Context) ([]hangar.RegistryCredential, error) {
	if err := registriesAllowed(ctx); err != nil {
		return nil, err
	}
	list := []hangar.RegistryCredential{}
	err := r.vault.Each(ctx, state.CredentialsPrefix, func(item state.Item, open func(value any) error) {
		var rec loginRecord
		if err := open(&rec); err != nil {
			r.log.Error("credential skipped", keyKey, item.Key, keyError, err)
			return
		}
		list = append(list, rec.view(item.Key[len(state.CredentialsPrefix):]))
	})
	return list, state.HangarError(err)
}

// RegistryCredential implements hangar.RegistryService.
func (r *Registries) RegistryCredential(ctx context.Context, registry string) (hangar.RegistryCredential, error) {
	name, err := r.named(ctx, registry)
	if err != nil {
		return hangar.RegistryCredential{}, err
	}
	var rec loginRecord
	if err := r.vault.Get(ctx, credentialKey(name), &rec); err != nil {
		return hangar.RegistryCredential{}, credentialError(name, err)
	}
	return rec.view(name), nil
}

func credentialError(registry string, err error) error {
	if errors.Is(err, state.ErrNotFound) {
		return hangar.Errorf(hangar.CodeNotFound, "", "there is no credential for registry %s", registry)
	}
	return state.HangarError(err)
}

// SetRegistryCredential implements hangar.RegistryService.
func (r *Registries) SetRegistryCredential(ctx context.Context, registry string, in hangar.RegistryLogin) (hangar.RegistryCredential, error) {
	name, err := r.named(ctx, registry)
	if err != nil {
		return hangar.RegistryCredential{}, err
	}
	if err := in.Validate(); err != nil {
		return hangar.RegistryCredential{}, err
	}
	key, now := credentialKey(name), r.now().UTC().Truncate(time.Second)
	for {
		next := loginRecord{Username: in.Username, Password: in.Password.Reveal(), CreatedAt: now, UpdatedAt: now}
		cond := state.Absent(key)
		item, err := r.store.Get(ctx, key)
		if err == nil {
			cond = state.Unchanged(item)
			var before loginRecord
			// An unreadable one is replaced, which repairs it.
			if err := r.vault.Get(ctx, key, &before); err == nil {
				next.CreatedAt = before.CreatedAt
			}
		} else if !errors.Is(err, state.ErrNotFound) {
			return hangar.RegistryCredential{}, state.HangarError(err)
		}
		err = r.vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
			put, err := Sealed(keys, key, next)
			return state.Txn{If: []state.Compare{cond}, Then: []state.Op{put}}, err
		})
		if err == nil {
			return next.view(name), nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return hangar.RegistryCredential{}, state.HangarError(err)
		}
	}
}

// DeleteRegistryCredential implements hangar.RegistryService.
func (r *Registries) DeleteRegistryCredential(ctx context.Context, registry string) error {
	name, err := r.named(ctx, registry)
	if err != nil {
		return err
	}
	for {
		item, err := r.store.Get(ctx, credentialKey(name))
		if err != nil {
			return credentialError(name, err)
		}
		_, err = r.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}})
		if !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// Logins is what the hosts of this process sign in at registries with.
type Logins struct{ vault *Vault }

// NewLogins returns the Logins that are in a Vault. On a mirror, they are
// known while the state cannot be reached, so that a pull does not need it.
func NewLogins(v *Vault) *Logins {
	return &Logins{v}
}

// Credentials returns how to sign in at a registry, as an ImageRef names it. If that
// cannot be found out, the pull is tried without, and fails with the registry's words.
func (l *Logins) Credentials(ctx context.Context, registry string) (user, password string, ok bool) {
	var rec loginRecord
	err := l.vault.Get(ctx, credentialKey(registry), &rec)
	if err != nil && !errors.Is(err, state.ErrNotFound) {
		l.vault.log.ErrorContext(ctx, "credential is not usable", keyKey, credentialKey(registry), keyError, err)
	}
	return rec.Username, rec.Password, err == nil
}

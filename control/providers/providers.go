// Package providers keeps the registry of providers of extensions: the addresses of their servers,
// their rights, and the secrets that they share with the platform.
//
// Promises. Of the OAuth secret only a digest is kept; the two secrets of signatures are encrypted.
// During a rotation an old secret stays valid for a fixed time, and no third one exists. A provider
// and its client id are added and removed in one transaction. Apps are stored by id, so a new App
// with an old name has no rights.
//
// Concurrency. All is safe for concurrent use, also by several processes that share a state. Nothing
// is kept in memory.
//
// The package calls no providers, and knows only the number of their extensions.
package providers

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
	"github.com/hangar-platform/hangar/internal/random"
)

// Keys of log records.
const (
	keyKey      = "key"
	keyProvider = "provider"
	keyError    = "error"
)

// Config is what a Registry needs.
type Config struct {
	Store   state.Store
	Tenants *tenants.Directory // of the same state, like the Vault
	Vault   *vault.Vault
	// Hooks is the URL below which webhooks are received, without a slash at its end.
	Hooks string
	Log   *slog.Logger
	Now   func() time.Time
}

// Registry has the providers. It asks for no principal.
type Registry struct{ Config }

// New returns the Registry of a state.
func New(cfg Config) *Registry { return &Registry{cfg} }

// Record is the stored form of a provider.
type Record struct {
	Name hangar.ProviderName `json:"name"`
	hangar.ProviderSettings
	ClientID       string         `json:"client_id"`
	ClientSecrets  []Digest       `json:"client_secrets"` // the current one last
	PlatformAppID  hangar.AppID   `json:"platform_app_id,omitempty"`
	PlatformOrgID  hangar.OrgID   `json:"platform_org_id,omitempty"` // of that App
	GrantedAppIDs  []hangar.AppID `json:"granted_app_ids,omitempty"`
	CreatedAt      time.Time      `json:"created_at"`
	UpdatedAt      time.Time      `json:"updated_at"`
	RotationEndsAt time.Time      `json:"rotation_ends_at,omitzero"`
	// Removing says that the provider is being removed: it gets no new extensions and no calls.
	Removing bool `json:"removing,omitempty"`
}

// Digest is the SHA-256 of a random secret, in hexadecimal.
type Digest struct {
	SHA256 string    `json:"sha256"`
	Until  time.Time `json:"until,omitzero"` // zero: without end
}

// DefaultName is the name of an extension of an App whose creator names none.
func (r *Record) DefaultName(app hangar.AppName) string {
	if r.NameSuffix != "" {
		return string(app) + r.NameSuffix
	}
	return string(app) + "-" + string(r.Name)
}

func key(name hangar.ProviderName) string { return state.ProvidersPrefix + string(name) }

func secretsKey(name hangar.ProviderName) string { return state.ProviderSecretsPrefix + string(name) }

func clientKey(id string) string { return state.ClientsPrefix + id }

// Find returns a provider with the item that it was read from. It answers CodeNotFound with
// ReasonProviderNotFound.
func (r *Registry) Find(ctx context.Context, name hangar.ProviderName) (Record, state.Item, error) {
	if tenants.NameFault(string(name)) != "" {
		return Record{}, state.Item{}, hangar.ProviderNotFound(name)
	}
	rec, item, err := state.Read[Record](ctx, r.Store, key(name))
	if errors.Is(err, state.ErrNotFound) {
		return rec, item, hangar.ProviderNotFound(name)
	}
	return rec, item, state.HangarError(err)
}

// all returns all providers that can be read, sorted by name.
func (r *Registry) all(ctx context.Context) ([]Record, error) {
	items, _, err := state.All(ctx, r.Store, state.ProvidersPrefix, false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	list := make([]Record, 0, len(items))
	for _, item := range items {
		rec, err := state.Decode[Record](item)
		if err != nil {
			r.Log.Error("provider skipped", keyKey, item.Key, keyError, err)
			continue
		}
		list = append(list, rec)
	}
	return list, nil
}

// Count returns the number of a provider's extensions, and the condition that it is unchanged.
func (r *Registry) Count(ctx context.Context, name hangar.ProviderName) (int, state.Compare, error) {
	key := state.ProviderCountsPrefix + string(name)
	item, err := r.Store.Get(ctx, key)
	if errors.Is(err, state.ErrNotFound) {
		return 0, state.Absent(key), nil
	}
	if err != nil {
		return 0, state.Compare{}, state.HangarError(err)
	}
	n, err := strconv.Atoi(string(item.Value))
	return n, state.Unchanged(item), err
}

// Counted adds a change of the number of a provider's extensions to a transaction. It answers
// CodeExhausted beyond limit; 0: no limit.
func (r *Registry) Counted(ctx context.Context, name hangar.ProviderName, more, limit int, txn *state.Txn) error {
	n, unchanged, err := r.Count(ctx, name)
	if err != nil {
		return err
	}
	if limit > 0 && n+more > limit {
		return hangar.Errorf(hangar.CodeExhausted, hangar.ReasonQuota, "There are %d extensions of provider %s, which is the most there may be", n, name)
	}
	op := state.Delete(unchanged.Key)
	if n = max(0, n+more); n > 0 {
		op = state.Put(unchanged.Key, strconv.AppendInt(nil, int64(n), 10))
	}
	txn.If, txn.Then = append(txn.If, unchanged), append(txn.Then, op)
	return nil
}

// read returns a provider as the API shows it to administrators.
func (r *Registry) read(ctx context.Context, rec *Record) (*hangar.Provider, error) {
	n, _, err := r.Count(ctx, rec.Name)
	return r.view(rec, n), err
}

// view returns a provider, which has so many extensions, as the API shows it to administrators.
func (r *Registry) view(rec *Record, extensions int) *hangar.Provider {
	p := &hangar.Provider{
		Name: rec.Name, ProviderSettings: rec.ProviderSettings, ClientID: rec.ClientID, WebhookURL: r.Hooks + "/" + string(rec.Name),
		Extensions: extensions, CreatedAt: rec.CreatedAt, UpdatedAt: rec.UpdatedAt,
	}
	p.Limits = p.Limits.WithDefaults()
	if rec.RotationEndsAt.After(r.Now()) {
		p.RotationEnds = rec.RotationEndsAt
	}
	return p
}

// complete fills in missing settings, validates all, and resolves the Apps of those that are set now. What was set
// before stays with its Apps, because another App may have such a name by now.
func (r *Registry) complete(ctx context.Context, rec *Record, platform, granted bool) error {
	if rec.DisplayName == "" {
		rec.DisplayName = string(rec.Name)
	}
	if err := rec.Validate(); err != nil {
		return err
	}
	if platform {
		rec.PlatformAppID, rec.PlatformOrgID = "", ""
	}
	if platform && rec.PlatformApp != "" {
		app, err := r.app(ctx, "platform_app_name", rec.PlatformApp)
		if err != nil {
			return err
		}
		rec.PlatformAppID, rec.PlatformOrgID = app.ID, app.OrgID
	}
	if !granted {
		return nil
	}
	rec.GrantedAppIDs = nil
	for _, name := range rec.GrantedApps {
		app, err := r.app(ctx, "granted_apps", name)
		if err != nil {
			return err
		}
		rec.GrantedAppIDs = append(rec.GrantedAppIDs, app.ID)
	}
	return nil
}

// app returns the App that a field of the settings names.
func (r *Registry) app(ctx context.Context, field string, name hangar.AppName) (tenants.AppRecord, error) {
	app, _, err := r.Tenants.AnyApp(ctx, name)
	if hangar.CodeOf(err) == hangar.CodeNotFound || err == nil && app.Deleting {
		err = hangar.Errorf(hangar.CodeInvalid, hangar.ReasonAppNotFound, "invalid %s: there is no App %.63q", field, string(name))
	}
	return app, err
}

// Providers implements hangar.ProviderService.
type Providers struct {
	registry *Registry
	// forget removes all extensions of a provider with Record.Removing.
	forget func(ctx context.Context, name hangar.ProviderName) error
}

var _ hangar.ProviderService = (*Providers)(nil)

// NewProviders returns the service of the providers of a Registry. forget removes all extensions of
// a provider without calling it.
func NewProviders(r *Registry, forget func(ctx context.Context, name hangar.ProviderName) error) *Providers {
	return &Providers{registry: r, forget: forget}
}

func administrator(ctx context.Context) error {
	return tenants.NeedAdministrator(ctx, "see and change providers")
}

// CreateProvider implements hangar.ProviderService.
func (p *Providers) CreateProvider(ctx context.Context, in hangar.ProviderCreate) (*hangar.NewProvider, error) {
	if err := administrator(ctx); err != nil {
		return nil, err
	}
	if fault := tenants.NameFault(string(in.Name)); fault != "" {
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadName, "Validation failed: Name %s", fault)
	}
	now := p.registry.Now().UTC().Truncate(time.Second)
	rec := Record{Name: in.Name, ProviderSettings: in.ProviderSettings, ClientID: random.ID(), CreatedAt: now, UpdatedAt: now}
	if err := p.registry.complete(ctx, &rec, true, true); err != nil {
		return nil, err
	}
	made := p.newSecrets(hangar.ProviderSecrets())
	rec.ClientSecrets = []Digest{digestOf(made.client)}
	sealed := signing{Request: []secret{{Value: made.request}}, Webhook: []secret{{Value: made.webhook}}}
	for {
		known, err := p.registry.all(ctx)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(known, func(o Record) bool { return o.Name == in.Name }) {
			return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "Validation failed: Name has already been taken")
		}
		if len(known) >= hangar.MaxProviders {
			return nil, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonQuota, "There are %d providers, which is the most there may be", len(known))
		}
		err = p.registry.Vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
			put, err := state.Write(key(rec.Name), rec)
			own, ownErr := state.Write(clientKey(rec.ClientID), client{rec.Name})
			seal, sealErr := vault.Sealed(keys, secretsKey(rec.Name), sealed)
			return state.Txn{
				If:   []state.Compare{state.Absent(put.Key), state.Absent(own.Key), state.Absent(seal.Key)},
				Then: []state.Op{put, own, seal},
			}, errors.Join(err, ownErr, sealErr)
		})
		if err == nil {
			return p.withSecrets(&rec, 0, made), nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, state.HangarError(err)
		}
		if _, err := p.registry.Store.Get(ctx, key(rec.Name)); errors.Is(err, state.ErrNotFound) {
			if _, err := p.registry.Store.Get(ctx, secretsKey(rec.Name)); err == nil { // the name belongs to a provider whose record was unreadable
				return nil, hangar.Errorf(hangar.CodeInternal, "", "Secrets of a provider %s are there already", rec.Name)
			}
		}
	}
}

// Providers implements hangar.ProviderService.
func (p *Providers) Providers(ctx context.Context) ([]*hangar.Provider, error) {
	if err := administrator(ctx); err != nil {
		return nil, err
	}
	all, err := p.registry.all(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]*hangar.Provider, 0, len(all))
	for i := range all {
		one, err := p.registry.read(ctx, &all[i])
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b *hangar.Provider) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return list, nil
}

// Provider implements hangar.ProviderService.
func (p *Providers) Provider(ctx context.Context, name hangar.ProviderName) (*hangar.Provider, error) {
	if err := administrator(ctx); err != nil {
		return nil, err
	}
	rec, _, err := p.registry.Find(ctx, name)
	if err != nil {
		return nil, err
	}
	return p.registry.read(ctx, &rec)
}

// UpdateProvider implements hangar.ProviderService.
func (p *Providers) UpdateProvider(ctx context.Context, name hangar.ProviderName, in hangar.ProviderUpdate) (*hangar.Provider, error) {
	if err := administrator(ctx); err != nil {
		return nil, err
	}
	for {
		rec, item, err := p.registry.Find(ctx, name)
		if err != nil {
			return nil, err
		}
		rec.ProviderSettings, rec.UpdatedAt = in.Apply(rec.ProviderSettings), p.registry.Now().UTC().Truncate(time.Second)
		if err := p.registry.complete(ctx, &rec, in.PlatformApp != nil, in.GrantedApps != nil); err != nil {
			return nil, err
		}
		n, _, err := p.registry.Count(ctx, name)
		if err != nil {
			return nil, err
		}
		put, err := state.Write(item.Key, rec)
		if err != nil {
			return nil, err
		}
		_, err = p.registry.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{put}})
		if err == nil {
			return p.registry.view(&rec, n), nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, state.HangarError(err)
		}
	}
}

// RemoveProvider implements hangar.ProviderService. Removal by force cannot be undone once the
// record has Removing. After an error it is continued by another call.
func (p *Providers) RemoveProvider(ctx context.Context, name hangar.ProviderName, force bool) error {
	if err := administrator(ctx); err != nil {
		return err
	}
	for left := math.MaxInt; ; {
		rec, item, err := p.registry.Find(ctx, name)
		if err != nil {
			return err
		}
		n, unchanged, err := p.registry.Count(ctx, name)
		if err != nil {
			return err
		}
		switch {
		case n == 0:
			if err := p.forgetTerms(ctx, name); err != nil {
				return state.HangarError(err)
			}
			_, err = p.registry.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item), unchanged}, Then: []state.Op{
				state.Delete(item.Key), state.Delete(secretsKey(name)), state.Delete(clientKey(rec.ClientID)), state.Delete(unchanged.Key),
			}})
			if err == nil {
				return nil
			}
		case !force && !rec.Removing:
			return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState,
				"There are %d extensions of provider %s; destroy them first, or use force to forget them", n, name)
		case !rec.Removing:
			rec.Removing = true
			put, writeErr := state.Write(item.Key, rec)
			if writeErr != nil {
				return writeErr
			}
			_, err = p.registry.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{put}})
		case n >= left: // such as one whose record cannot be read
			return hangar.Errorf(hangar.CodeInternal, "", "%d extensions of provider %s could not be forgotten; try again, and look for them in the log", n, name)
		default:
			left = n
			err = p.forget(ctx, name)
		}
		if err != nil && !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// forgetTerms removes the records of users who have accepted the terms of a provider.
func (p *Providers) forgetTerms(ctx context.Context, name hangar.ProviderName) error {
	items, _, err := state.All(ctx, p.registry.Store, state.TermsPrefix+string(name)+"/", true)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(items, state.MaxTxnOps) {
		var txn state.Txn
		for _, item := range batch {
			txn.Then = append(txn.Then, state.Delete(item.Key))
		}
		if _, err := p.registry.Store.Txn(ctx, txn); err != nil {
			return err
		}
	}
	return nil
}

package control

import (
	"context"
	"log/slog"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Identity implements hangar.IdentityService and hangar.SigningKeyService.
type Identity struct{ *Control }

var (
	_ hangar.IdentityService   = (*Identity)(nil)
	_ hangar.SigningKeyService = (*Identity)(nil)
)

// IssueIdentityToken implements hangar.IdentityService. What a Machine is its host
// says, which knows whether it runs; so it needs the host and not the state.
func (i *Identity) IssueIdentityToken(ctx context.Context, ref hangar.MachineRef, in hangar.IdentityTokenRequest) (string, error) {
	if ref == (hangar.MachineRef{}) {
		self, err := hangar.CallerMachine(ctx)
		if err != nil {
			return "", err
		}
		ref = self
	}
	r, ref, err := i.Machines().reservationIf(ctx, ref, func(p hangar.Principal, t hangar.Target) bool { return hangar.MayIdentify(ctx, p, t) })
	if err != nil {
		return "", err
	}
	if err := in.Validate(); err != nil {
		return "", err
	}
	agent, err := i.agent(r.Host)
	if err != nil {
		return "", err
	}
	m, err := agent.Machine(ctx, ref)
	if err != nil {
		return "", err
	}
	if !m.State.HasIdentity() {
		return "", hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "machine not running, currently %s", m.State)
	}
	app, _, err := i.anyApp(ctx, ref.App)
	if err == nil && app.ID != ref.AppID {
		err = hangar.AppNotFound()
	}
	if err != nil {
		return "", err
	}
	org, _, err := i.anyOrg(ctx, app.Org)
	if err != nil {
		return "", err
	}
	return i.issuer.Issue(ctx, hangar.IdentityOf(present(app, org.Org, 1, 0), m), in)
}

// SigningKeys implements hangar.SigningKeyService.
func (i *Identity) SigningKeys(ctx context.Context) ([]hangar.SigningKey, error) {
	if err := signingKeysAllowed(ctx); err != nil {
		return nil, err
	}
	keys, err := i.issuer.Keys(ctx)
	return keys, stateError(err)
}

// RotateSigningKey implements hangar.SigningKeyService.
func (i *Identity) RotateSigningKey(ctx context.Context) ([]hangar.SigningKey, error) {
	if err := signingKeysAllowed(ctx); err != nil {
		return nil, err
	}
	keys, err := i.issuer.Rotate(ctx)
	return keys, stateError(err)
}

func signingKeysAllowed(ctx context.Context) error {
	p, err := hangar.PrincipalFrom(ctx)
	if err == nil && !p.Admin {
		err = hangar.Errorf(hangar.CodeForbidden, "", "Only an administrator may see and rotate the keys of identity tokens")
	}
	return err
}

// issuer implements hangar.IdentityIssuer. On a store that NewMirror made, it answers
// from memory.
type issuer struct{ c *Control }

// IssuerMetadata implements hangar.IdentityIssuer.
func (i issuer) IssuerMetadata(ctx context.Context, org hangar.OrgSlug) (hangar.IssuerDocument, error) {
	if _, _, err := i.c.anyOrg(ctx, org); err != nil {
		return hangar.IssuerDocument{}, err
	}
	return i.c.issuer.Metadata(org)
}

// IssuerKeys implements hangar.IdentityIssuer.
func (i issuer) IssuerKeys(ctx context.Context, org hangar.OrgSlug) (hangar.IssuerDocument, error) {
	if _, _, err := i.c.anyOrg(ctx, org); err != nil {
		return hangar.IssuerDocument{}, err
	}
	return i.c.issuer.KeySet(ctx)
}

// Vault implements oidc.Vault.
type Vault struct{ vault *vault }

var _ oidc.Vault = (*Vault)(nil)

// NewVault returns the Vault of a state.
func NewVault(store state.Store, keys *keyset.Keyset, log *slog.Logger) *Vault {
	return &Vault{&vault{store: store, keys: keys, log: log}}
}

// Open implements oidc.Vault.
func (v *Vault) Open(item state.Item) (plain []byte, err error) {
	err = v.vault.keys.Use(func(keys keyset.Keys) error {
		rec, err := decode[sealedRecord](item)
		if err == nil {
			plain, err = keys.Open(rec.Sealed, labelOf(item.Key, rec.Of)...)
		}
		return err
	})
	return plain, err
}

// Put implements oidc.Vault.
func (v *Vault) Put(ctx context.Context, key string, plain []byte, unchanged state.Compare) error {
	return v.vault.put(ctx, func(keys keyset.Keys) (state.Txn, error) {
		put, err := sealedBytes(keys, key, plain, nil)
		return state.Txn{If: []state.Compare{unchanged}, Then: []state.Op{put}}, err
	})
}

package control

import (
	"context"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// Identity implements hangar.IdentityService and hangar.SigningKeyService.
type Identity struct {
	tenants      *tenants.Directory
	hosts        *hosts
	reservations *reservations
	issuer       *oidc.Issuer
}

var (
	_ hangar.IdentityService   = (*Identity)(nil)
	_ hangar.SigningKeyService = (*Identity)(nil)
)

// IssueIdentityToken implements hangar.IdentityService. The Machine's host says what the Machine is
// and whether it runs, so the host is needed and the state is not.
func (i *Identity) IssueIdentityToken(ctx context.Context, ref hangar.MachineRef, in hangar.IdentityTokenRequest) (string, error) {
	if ref == (hangar.MachineRef{}) {
		self, err := hangar.CallerMachine(ctx)
		if err != nil {
			return "", err
		}
		ref = self
	}
	r, ref, err := i.reservations.find(ctx, ref, func(p hangar.Principal, t hangar.Target) bool { return hangar.MayIdentify(ctx, p, t) })
	if err != nil {
		return "", err
	}
	if err := in.Validate(); err != nil {
		return "", err
	}
	agent, err := i.hosts.agent(r.Host)
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
	app, err := i.tenants.AppOf(ctx, ref.App, ref.AppID)
	if err != nil {
		return "", err
	}
	org, _, err := i.tenants.AnyOrg(ctx, app.Org)
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
	return keys, state.HangarError(err)
}

// RotateSigningKey implements hangar.SigningKeyService.
func (i *Identity) RotateSigningKey(ctx context.Context) ([]hangar.SigningKey, error) {
	if err := signingKeysAllowed(ctx); err != nil {
		return nil, err
	}
	keys, err := i.issuer.Rotate(ctx)
	return keys, state.HangarError(err)
}

func signingKeysAllowed(ctx context.Context) error {
	return tenants.NeedAdministrator(ctx, "see and rotate the keys of identity tokens")
}

// issuer implements hangar.IdentityIssuer. On a store that NewMirror made, it answers
// from memory.
type issuer struct {
	tenants *tenants.Directory
	issuer  *oidc.Issuer
}

// IssuerMetadata implements hangar.IdentityIssuer.
func (i *issuer) IssuerMetadata(ctx context.Context, org hangar.OrgSlug) (hangar.IssuerDocument, error) {
	if _, _, err := i.tenants.AnyOrg(ctx, org); err != nil {
		return hangar.IssuerDocument{}, err
	}
	return i.issuer.Metadata(org)
}

// IssuerKeys implements hangar.IdentityIssuer.
func (i *issuer) IssuerKeys(ctx context.Context, org hangar.OrgSlug) (hangar.IssuerDocument, error) {
	if _, _, err := i.tenants.AnyOrg(ctx, org); err != nil {
		return hangar.IssuerDocument{}, err
	}
	return i.issuer.KeySet(ctx)
}

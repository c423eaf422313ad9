package control

import (
	"context"
	"errors"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// AuthenticateTokens implements hangar.TokenService.
func (t *Tokens) AuthenticateTokens(ctx context.Context, header hangar.Authorization) ([]*hangar.Token, error) {
	p, err := t.presented(ctx, header)
	if err != nil {
		return nil, err
	}
	return t.records(p), nil
}

// presented returns the principal of a header that the caller has received.
func (t *Tokens) presented(ctx context.Context, header hangar.Authorization) (hangar.Principal, error) {
	if _, err := tenants.Caller(ctx); err != nil {
		return hangar.Principal{}, err
	}
	credential, ok := hangar.Credential(string(header))
	if !ok {
		return hangar.Principal{}, hangar.NoToken()
	}
	p, err := t.tokens.Authenticate(ctx, credential)
	if hangar.CodeOf(err) == hangar.CodeUnauthenticated {
		err = hangar.NoToken()
	}
	return p, err
}

// Authorize implements hangar.TokenService. It looks the target up only once the principal is known
// to have the right.
func (t *Tokens) Authorize(ctx context.Context, header hangar.Authorization, in hangar.Access) (hangar.Access, error) {
	p, err := t.presented(ctx, header)
	if err == nil {
		err = in.Validate()
	}
	if err == nil {
		in.Org, err = t.accessible(ctx, p, in)
	}
	switch {
	case hangar.CodeOf(err) == hangar.CodeNotFound:
		return hangar.Access{}, hangar.NoAccess()
	case err != nil:
		return hangar.Access{}, err
	default:
		return in, nil
	}
}

// accessible returns the organization of an access of a principal, if its target exists. Its
// CodeNotFound may reveal more than the principal may know.
func (t *Tokens) accessible(ctx context.Context, p hangar.Principal, in hangar.Access) (hangar.OrgSlug, error) {
	if in.App == "" {
		org, _, err := t.tenants.AnyOrg(ctx, in.Org)
		if err == nil && !in.AllowedTo(p, tenants.OrgTarget(org.Org)) {
			err = hangar.NoAccess()
		}
		return org.Slug, err
	}
	app, _, err := t.tenants.AnyApp(ctx, in.App)
	if err != nil {
		return "", err
	}
	org := app.Org
	if in.Org != "" && in.Org != org || !in.AllowedTo(p, app.Target(in.Machine)) {
		return "", hangar.NoAccess()
	}
	if in.Volume != "" {
		_, err := t.rows.volumeOf(ctx, app.ID, in.Volume)
		return org, err
	}
	if in.Machine == "" {
		return org, nil
	}
	_, err = t.store.Get(ctx, state.ReservationKey(app.Ref(in.Machine)))
	if errors.Is(err, state.ErrNotFound) {
		return "", tenants.MachineNotFound(in.Machine)
	}
	return org, state.HangarError(err)
}

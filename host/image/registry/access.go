package registry

import (
	"context"
	"net/http"

	"github.com/hangar-platform/hangar"
)

// TokenAccess lets the callers of a registry do what their API tokens allow. A caller sends one or
// more tokens as a bearer token or as the password of any user.
type TokenAccess struct {
	tokens       hangar.Authenticator
	repositories hangar.RepositoryService
	orgs         hangar.OrgService
}

var _ Access = (*TokenAccess)(nil)

// NewTokenAccess returns an Access that identifies callers by their tokens, and calls the services on
// their behalf.
func NewTokenAccess(tokens hangar.Authenticator, repositories hangar.RepositoryService, orgs hangar.OrgService) *TokenAccess {
	return &TokenAccess{tokens, repositories, orgs}
}

func (a *TokenAccess) principal(r *http.Request) (context.Context, error) {
	credential, ok := hangar.Credential(r.Header.Get("Authorization"))
	if !ok {
		_, credential, _ = r.BasicAuth()
	}
	p, err := a.tokens.Authenticate(r.Context(), credential)
	return hangar.WithPrincipal(r.Context(), p), err
}

// Repository implements Access.
func (a *TokenAccess) Repository(r *http.Request, name string, action hangar.Action) (hangar.Repository, error) {
	ctx, err := a.principal(r)
	if err != nil || action == 0 {
		return hangar.Repository{}, err
	}
	return a.repositories.Repository(ctx, hangar.RepositoryName(name), action)
}

// Orgs implements Access.
func (a *TokenAccess) Orgs(r *http.Request) ([]*hangar.Org, error) {
	ctx, err := a.principal(r)
	if err != nil {
		return nil, err
	}
	return a.orgs.Orgs(ctx)
}

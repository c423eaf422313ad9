package registry_test

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image/registry"
)

// askers is a service of repositories that records the subject of a request.
type askers struct{ subject string }

func (w *askers) Repository(ctx context.Context, name hangar.RepositoryName, _ hangar.Action) (hangar.Repository, error) {
	p, err := hangar.PrincipalFrom(ctx)
	w.subject = p.Subject
	return hangar.Repository{Org: "id", Name: name.Name()}, err
}

// reader is an authenticator that knows one token.
type reader struct{}

func (reader) Authenticate(_ context.Context, credential string) (hangar.Principal, error) {
	if credential != "reader" {
		return hangar.Principal{}, hangar.Unauthenticated()
	}
	return hangar.Principal{Subject: "me", Grants: []hangar.Grant{{Org: "acme", Actions: hangar.ActionRead}}}, nil
}

func (reader) Life(hangar.TokenID) context.Context { return context.Background() }

// TestTokenAccess: the registry accepts a token in every form in which clients send it, and asks
// the control plane about that client's rights.
func TestTokenAccess(t *testing.T) {
	t.Parallel()
	asked := &askers{}
	access := registry.NewTokenAccess(reader{}, asked, nil)
	for header, valid := range map[string]bool{
		"Bearer reader": true, "flyv1 FlyV1 reader": true, "Basic bWU6cmVhZGVy": true,
		"Bearer void": false, "": false, "reader": false, "Basic cmVhZGVyOnZvaWQ=": false,
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/v2/", nil)
		r.Header.Set("Authorization", header)
		if _, err := access.Repository(r, "", 0); (err == nil) != valid || err != nil && hangar.CodeOf(err) != hangar.CodeUnauthenticated {
			t.Errorf("%q: %v, want valid %t", header, err, valid)
		}
		asked.subject = ""
		at, err := access.Repository(r, "acme/app", hangar.ActionRead)
		if (err == nil) != valid || valid && (at.Path() != "orgs/id/app" || asked.subject != "me") || !valid && asked.subject != "" {
			t.Errorf("%q: %+v for %q, %v", header, at, asked.subject, err)
		}
	}
}

package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
)

// me has what a Machine may ask about itself. It fails the test if another caller asks.
type me struct {
	hangar.AppService
	hangar.MachineService
	hangar.ElectionService
	t   *testing.T
	ref hangar.MachineRef
}

func (m me) asked(ctx context.Context, ref hangar.MachineRef) {
	m.t.Helper()
	if self, ok := hangar.SelfFrom(ctx); !ok || self != m.ref || ref != m.ref {
		m.t.Errorf("%v is asked about %v", self, ref)
	}
}

func (m me) App(ctx context.Context, name hangar.AppName) (*hangar.App, error) {
	m.asked(ctx, hangar.MachineRef{App: name, ID: m.ref.ID})
	return &hangar.App{Name: name}, nil
}

func (m me) Machine(ctx context.Context, ref hangar.MachineRef) (*hangar.Machine, error) {
	m.asked(ctx, ref)
	return &hangar.Machine{ID: ref.ID, App: ref.App}, nil
}

func (m me) MachineEvents(ctx context.Context, ref hangar.MachineRef, _ int) ([]hangar.Event, error) {
	m.asked(ctx, ref)
	return nil, nil
}

func (m me) MachineVersions(ctx context.Context, ref hangar.MachineRef) ([]hangar.MachineVersion, error) {
	m.asked(ctx, ref)
	return nil, nil
}

func (m me) WaitMachine(ctx context.Context, ref hangar.MachineRef, _ hangar.MachineWait) (hangar.MachineReached, error) {
	m.asked(ctx, ref)
	return hangar.MachineReached{}, nil
}

func (m me) SuspendMachine(ctx context.Context, ref hangar.MachineRef) error {
	m.asked(ctx, ref)
	return nil
}

func (m me) MachineMetadata(ctx context.Context, ref hangar.MachineRef) (map[string]string, error) {
	m.asked(ctx, ref)
	return map[string]string{"role": "primary"}, nil
}

func (m me) SetMachineMetadata(ctx context.Context, ref hangar.MachineRef, _ hangar.MetadataPair) error {
	m.asked(ctx, ref)
	return nil
}

func (m me) RemoveMachineMetadata(ctx context.Context, ref hangar.MachineRef, _ string) error {
	m.asked(ctx, ref)
	return nil
}

func (m me) ReplaceMachineMetadata(ctx context.Context, ref hangar.MachineRef, _ hangar.MetadataWrite) error {
	m.asked(ctx, ref)
	return nil
}

func (m me) MergeMachineMetadata(ctx context.Context, ref hangar.MachineRef, _ hangar.MetadataWrite) error {
	m.asked(ctx, ref)
	return nil
}

func (m me) IssueIdentityToken(ctx context.Context, ref hangar.MachineRef, _ hangar.IdentityTokenRequest) (string, error) {
	if ref != (hangar.MachineRef{}) {
		m.asked(ctx, ref)
	}
	caller, err := hangar.CallerMachine(ctx)
	m.asked(ctx, caller)
	return "token", err
}

func (m me) Election(ctx context.Context, app hangar.AppName, name hangar.ElectionName, _ hangar.ElectionQuery) (*hangar.Election, error) {
	m.asked(ctx, hangar.MachineRef{App: app, AppID: m.ref.AppID, ID: m.ref.ID})
	return &hangar.Election{Name: name}, nil
}

func (m me) ChangeElection(ctx context.Context, app hangar.AppName, _ hangar.ElectionName, _ hangar.ElectionChange) (hangar.ElectionChanged, error) {
	m.asked(ctx, hangar.MachineRef{App: app, AppID: m.ref.AppID, ID: m.ref.ID})
	return hangar.ElectionChanged{}, nil
}

func (m me) OpenElectionSession(ctx context.Context, app hangar.AppName, _ hangar.ElectionName, _ hangar.ElectionSessionOpen) (hangar.ElectionSession, error) {
	m.asked(ctx, hangar.MachineRef{App: app, AppID: m.ref.AppID, ID: m.ref.ID})
	return hangar.ElectionSession{}, nil
}

func (m me) RenewElectionSession(ctx context.Context, app hangar.AppName, _ hangar.ElectionName, _ hangar.ElectionSessionID) (hangar.ElectionSession, error) {
	m.asked(ctx, hangar.MachineRef{App: app, AppID: m.ref.AppID, ID: m.ref.ID})
	return hangar.ElectionSession{}, nil
}

func (m me) EndElectionSession(ctx context.Context, app hangar.AppName, _ hangar.ElectionName, _ hangar.ElectionSessionID) error {
	m.asked(ctx, hangar.MachineRef{App: app, AppID: m.ref.AppID, ID: m.ref.ID})
	return nil
}

// TestSelf: what a Machine may ask over its local socket. Credentials in its requests do not change its
// identity.
func TestSelf(t *testing.T) {
	const mine, sibling, stranger = "d8912340000001", "d8912340000002", "d8912340000003"
	const wish = `{"config":{"image":"nginx"}}`
	ref := hangar.MachineRef{App: "mine", ID: mine}
	services := me{t: t, ref: ref}
	handler := newAPI(func(c *api.Config) {
		c.Apps, c.Machines, c.Identity, c.Elections = services, services, services, services
	})
	do := func(r *http.Request) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	self := "/v1/apps/mine/machines/" + mine
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", self, "", 200},
		{"GET", self + "/events", "", 200},
		{"GET", self + "/versions", "", 200},
		{"GET", self + "/wait?state=started&timeout=1", "", 200},
		{"GET", "/v1/apps/mine", "", 200},
		{"POST", self + "/metadata/role", `{"value":"primary"}`, 204},
		{"GET", self + "/metadata/role", "", 200},
		{"PATCH", self + "/metadata", `{"metadata":{"a":"b"}}`, 204},
		{"PUT", self + "/metadata", `{"metadata":{"a":"b"}}`, 204},
		{"GET", self + "/metadata", "", 200},
		{"DELETE", self + "/metadata/a", "", 204},
		{"POST", "/v1/tokens/oidc", `{"aud":"me"}`, 200},
		{"POST", self + "/oidc_token", "", 200},
		{"POST", self + "/suspend", "", 200},
		{"GET", "/healthz", "", 200},
		{"GET", "/v1/apps/mine/elections/db", "", 200},
		{"POST", "/v1/apps/mine/elections/db", `{"put":[{"key":"a","value":"b"}]}`, 200},
		{"POST", "/v1/apps/mine/elections/db/sessions", `{"ttl":"5s"}`, 201},
		{"POST", "/v1/apps/mine/elections/db/sessions/s/renew", "", 200},
		{"DELETE", "/v1/apps/mine/elections/db/sessions/s", "", 204},

		{"DELETE", "/v1/apps/mine/elections/db", "", 403},
		{"GET", "/v1/apps/other/elections/db", "", 404},
		{"POST", "/v1/apps/other/elections/db", `{"put":[{"key":"a","value":"b"}]}`, 404},
		{"POST", "/v1/apps/other/elections/db/sessions", `{"ttl":"5s"}`, 404},

		{"POST", self, wish, 403},
		{"DELETE", self, "", 403},
		{"DELETE", self + "?force=true", "", 403},
		{"POST", self + "/start", "", 403},
		{"POST", self + "/stop", "", 403},
		{"POST", self + "/restart", "", 403},
		{"POST", self + "/signal", `{"signal":9}`, 403},
		{"POST", self + "/exec", `{"command":["id"]}`, 403},
		{"GET", self + "/exec?command=id", "", 403},
		{"GET", self + "/ps", "", 403},
		{"GET", self + "/tunnel?port=80", "", 403},
		{"POST", "/v1/tokens/authenticate", `{"header":"Bearer x"}`, 403},
		{"POST", self + "/cordon", "", 403},
		{"GET", self + "/lease", "", 403},
		{"POST", self + "/lease", "", 403},
		{"DELETE", self + "/lease", "", 403},
		{"GET", "/v1/apps/mine/machines", "", 403},
		{"POST", "/v1/apps/mine/machines", wish, 403},
		{"DELETE", "/v1/apps/mine", "", 403},
		{"GET", "/v1/apps/mine/secrets", "", 403},
		{"GET", "/v1/apps/mine/logs", "", 403},
		{"POST", "/v1/apps/mine/deploy_token", "", 403},
		{"GET", "/v1/apps?org_slug=personal", "", 403},
		{"POST", "/v1/apps", `{"app_name":"new","org_slug":"personal"}`, 403},
		{"GET", "/v1/tokens", "", 403},
		{"POST", "/v1/tokens", `{"kind":"org","org_slug":"personal"}`, 403},
		{"GET", "/v1/orgs/personal/machines", "", 403},
		{"GET", "/v1/images", "", 403},
		{"POST", "/v1/encryption/rotate", "", 403},
		{"GET", "/v2/", "", 403},

		{"GET", "/v1/apps/mine/machines/" + sibling, "", 404},
		{"POST", "/v1/apps/mine/machines/" + sibling + "/suspend", "", 404},
		{"POST", "/v1/apps/mine/machines/" + sibling + "/metadata/a", `{"value":"b"}`, 404},
		{"POST", "/v1/apps/mine/machines/" + sibling + "/stop", "", 404},
		{"POST", "/v1/apps/mine/machines/" + sibling + "/oidc_token", "", 404},
		{"GET", "/v1/apps/mine/machines/none", "", 404},
		{"GET", "/v1/apps/other", "", 404},
		{"GET", "/v1/apps/other/machines/" + stranger, "", 404},
		{"GET", "/v1/apps/other/machines/" + mine, "", 404},
		{"GET", "/v1/apps/none", "", 404},
	} {
		r := request(t, c.method, c.path, strings.NewReader(c.body)) // with the token of an administrator
		w := do(r.WithContext(hangar.AsMachine(r.Context(), hangar.OrgPersonal, "", ref)))
		if w.Code != c.status {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, w.Code, w.Body, c.status)
		}
	}
	// To a Machine, others look like missing ones.
	for _, pair := range [][2]string{{"/v1/apps/other", "/v1/apps/none0"}, {"/v1/apps/mine/machines/" + sibling, "/v1/apps/mine/machines/00000000000000"}} {
		var texts []string
		for _, path := range pair {
			r := request(t, http.MethodGet, path, http.NoBody)
			w := do(r.WithContext(hangar.AsMachine(r.Context(), hangar.OrgPersonal, "", ref)))
			text := strings.ReplaceAll(w.Body.String(), path[strings.LastIndex(path, "/")+1:], "X")
			texts = append(texts, text)
		}
		if texts[0] != texts[1] {
			t.Errorf("%q and %q differ", texts[0], texts[1])
		}
	}
}

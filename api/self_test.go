package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// TestSelf: what a Machine may ask over its local socket, of the platform of the golden
// exchanges. Whatever it sends along, it is itself.
func TestSelf(t *testing.T) {
	handler := newAPI()
	do := func(r *http.Request) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	must := func(method, path, body string) string {
		t.Helper()
		w := do(request(t, method, path, strings.NewReader(body)))
		if w.Code/100 != 2 {
			t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
		return w.Body.String()
	}
	id := func(answer string) string {
		_, rest, _ := strings.Cut(answer, `"id":"`)
		id, _, _ := strings.Cut(rest, `"`)
		return id
	}
	for _, app := range []string{"mine", "other"} {
		must(http.MethodPost, "/v1/apps", `{"app_name":"`+app+`","org_slug":"personal"}`)
	}
	const wish = `{"config":{"image":"nginx"}}`
	mine, sibling := id(must(http.MethodPost, "/v1/apps/mine/machines", wish)), id(must(http.MethodPost, "/v1/apps/mine/machines", wish))
	stranger := id(must(http.MethodPost, "/v1/apps/other/machines", wish))
	ref := hangar.MachineRef{App: "mine", ID: hangar.MachineID(mine)}
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
	// Of others it hears what it hears of what is not there.
	for _, pair := range [][2]string{{"/v1/apps/other", "/v1/apps/none0"}, {"/v1/apps/mine/machines/" + sibling, "/v1/apps/mine/machines/00000000000000"}} {
		var texts []string
		for _, path := range pair {
			r := request(t, http.MethodGet, path, http.NoBody)
			w := do(r.WithContext(hangar.AsMachine(r.Context(), hangar.OrgPersonal, "", ref)))
			text := strings.ReplaceAll(w.Body.String(), path[strings.LastIndex(path, "/")+1:], "X")
			texts = append(texts, text)
		}
		if texts[0] != texts[1] {
			t.Errorf("%q and %q are told apart", texts[0], texts[1])
		}
	}
}

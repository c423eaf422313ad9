package contract_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/platform"
)

// refusal is how a request was answered: with which code and reason; both are empty for success.
type refusal struct{ code, reason string }

// send makes a request and returns its status and body.
func send(t *testing.T, p *platform.Platform, token, method, path, body string) (status int, answer []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, p.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, raw
}

// askREST returns how a request of the REST API is answered.
func askREST(t *testing.T, p *platform.Platform, token, method, path, body string) refusal {
	t.Helper()
	status, raw := send(t, p, token, method, path, body)
	if status < http.StatusBadRequest {
		return refusal{}
	}
	var fault struct{ Code, Status string }
	if err := json.Unmarshal(raw, &fault); err != nil {
		t.Fatalf("%s %s: %d %s", method, path, status, raw)
	}
	return refusal{fault.Code, fault.Status}
}

// askGraphQL returns how a GraphQL request is answered, with its data.
func askGraphQL(t *testing.T, p *platform.Platform, token, query string) (refusal, json.RawMessage) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"query": query})
	if err != nil {
		t.Fatal(err)
	}
	status, raw := send(t, p, token, http.MethodPost, "/graphql", string(body))
	var answer struct {
		Data   json.RawMessage
		Errors []struct {
			Message    string
			Extensions struct{ Code, Status string }
		}
	}
	if err := json.Unmarshal(raw, &answer); err != nil || status != http.StatusOK {
		t.Fatalf("%s: %d %s", query, status, raw)
	}
	if len(answer.Errors) == 0 {
		return refusal{}, answer.Data
	}
	return refusal{strings.ToLower(answer.Errors[0].Extensions.Code), answer.Errors[0].Extensions.Status}, answer.Data
}

// TestGraphQLRefusesAsREST asks the same by both APIs, with every kind of token: what one refuses, the
// other does, for the same reason. A GraphQL request reads what it is about before it does anything, so that
// it is refused first what the REST API refuses to a read. What succeeds may be repeated.
func TestGraphQLRefusesAsREST(t *testing.T) {
	p := serve(t)
	c := p.Client()
	m := started(t, c)
	ctx := t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.CreateApp(ctx, hangar.AppCreate{Name: "neighbour", Org: hangar.OrgPersonal})
	check(err)
	_, err = c.CreateOrg(ctx, hangar.OrgCreate{Slug: "other"})
	check(err)
	_, err = c.CreateApp(ctx, hangar.AppCreate{Name: "foreign", Org: "other"})
	check(err)
	volume, err := c.CreateVolume(ctx, "web", hangar.VolumeCreate{Name: "data", SizeGB: 1})
	check(err)
	_, err = c.SetSecrets(ctx, "web", map[string]hangar.Sensitive{"PASSWORD": hangar.NewSensitive("plain")})
	check(err)
	release, err := c.CreateRelease(ctx, "web", hangar.ReleaseCreate{Image: "web:1"})
	check(err)
	_, err = c.UpdateRelease(ctx, release.ID, hangar.ReleaseUpdate{Status: hangar.ReleaseComplete})
	check(err)
	token := func(in hangar.TokenCreate) string {
		t.Helper()
		made, err := c.CreateToken(ctx, in)
		check(err)
		return made.Text
	}
	web := []hangar.AppName{"web"}
	tokens := map[string]string{
		"admin":     p.Token(),
		"org":       token(hangar.TokenCreate{Kind: hangar.TokenOrg, Org: hangar.OrgPersonal}),
		"deploy":    token(hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: web}),
		"neighbour": token(hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{"neighbour"}}),
		"readonly":  token(hangar.TokenCreate{Kind: hangar.TokenReadOnly, Org: hangar.OrgPersonal}),
		"machine":   token(hangar.TokenCreate{Kind: hangar.TokenReadOnly, Apps: web, Machines: []hangar.MachineID{m.ID}}),
		"exec":      token(hangar.TokenCreate{Kind: hangar.TokenMachineExec, Apps: web, Commands: []hangar.CommandRule{{Args: []string{"ls"}}}}),
		"metrics":   token(hangar.TokenCreate{Kind: hangar.TokenMetrics, Org: hangar.OrgPersonal}),
		"custom":    token(hangar.TokenCreate{Kind: hangar.TokenCustom, Org: hangar.OrgPersonal, Actions: hangar.ActionCreate | hangar.ActionDelete}),
		"foreign":   token(hangar.TokenCreate{Kind: hangar.TokenOrg, Org: "other"}),
	}
	const web1 = "/v1/apps/web"
	for _, c := range []struct {
		name, query        string
		method, path, body string
		before             string // what is read first
	}{
		{"app", `{ app(name: "web") { name } }`, "GET", web1, "", web1},
		{"app that there is not", `{ app(name: "nothing") { name } }`, "GET", "/v1/apps/nothing", "", ""},
		{"app of others", `{ app(name: "foreign") { name } }`, "GET", "/v1/apps/foreign", "", ""},
		{"org", `{ organization(slug: "personal") { slug } }`, "GET", "/v1/orgs/personal", "", ""},
		{"members", `{ organization(slug: "personal") { members { nodes { id } } } }`, "GET", "/v1/users?org_slug=personal", "", ""},
		{"peers", `{ organization(slug: "personal") { wireGuardPeers { nodes { name } } } }`, "GET", "/v1/orgs/personal/wireguard_peers", "", ""},
		{"tokens of an app", `{ app(name: "web") { limitedAccessTokens { nodes { name } } } }`, "GET", "/v1/tokens?app_name=web", "", web1},
		{"tokens of an org", `{ organization(slug: "personal") { limitedAccessTokens { nodes { name } } } }`, "GET", "/v1/tokens?org_slug=personal", "", ""},
		{"secrets", `{ app(name: "web") { secrets { name } } }`, "GET", web1 + "/secrets", "", web1},
		{"addresses", `{ app(name: "web") { ipAddresses { nodes { address } } } }`, "GET", web1 + "/ip_assignments", "", web1},
		{"certificates", `{ app(name: "web") { certificates { nodes { hostname } } } }`, "GET", web1 + "/certificates", "", web1},
		{"machines", `{ app(name: "web") { machines { nodes { id } } } }`, "GET", web1 + "/machines", "", web1},
		{"machine", `{ app(name: "web") { machine(id: "` + string(m.ID) + `") { id } } }`, "GET", web1 + "/machines/" + string(m.ID), "", web1},
		{"volumes", `{ app(name: "web") { volumes { nodes { id } } } }`, "GET", web1 + "/volumes", "", web1},
		{"releases", `{ app(name: "web") { releases { nodes { id } } } }`, "GET", web1 + "/releases", "", web1},
		{"set secrets", `mutation { setSecrets(input: {appId: "web", secrets: [{key: "PASSWORD", value: "plain"}]}) { app { id } } }`, "POST", web1 + "/secrets", `{"values":{"PASSWORD":"plain"}}`, web1},
		{"allocate", `mutation { allocateIpAddress(input: {appId: "web", type: shared_v4}) { app { id } } }`, "POST", web1 + "/ip_assignments", `{"type":"shared_v4"}`, web1},
		{"release no address", `mutation { releaseIpAddress(input: {appId: "web", ip: "192.0.2.1"}) { app { id } } }`, "DELETE", web1 + "/ip_assignments/192.0.2.1", "", web1},
		{"hostname", `mutation { addCertificate(appId: "web", hostname: "www.example.com") { app { id } } }`, "POST", web1 + "/certificates/acme", `{"hostname":"www.example.com"}`, web1},
		{"a bad hostname", `mutation { addCertificate(appId: "web", hostname: "www") { app { id } } }`, "POST", web1 + "/certificates/acme", `{"hostname":"www"}`, web1},
		{"create an org", `mutation { createOrganization(input: {name: "other"}) { organization { id } } }`, "POST", "/v1/orgs", `{"slug":"other"}`, ""},
		{"create an app", `mutation { createApp(input: {organizationId: "personal", name: "web"}) { app { id } } }`, "POST", "/v1/apps", `{"name":"web","org_slug":"personal"}`, ""},
		{"create a release", `mutation { createRelease(input: {appId: "web", image: "web:2"}) { release { id } } }`, "POST", web1 + "/releases", `{"image":"web:2"}`, web1},
		{"update a release", `mutation { updateRelease(input: {releaseId: "` + string(release.ID) + `", status: "complete"}) { release { id } } }`, "PATCH", "/v1/releases/" + string(release.ID), `{"status":"complete"}`, ""},
		{"extend a volume", `mutation { extendVolume(input: {volumeId: "` + string(volume.ID) + `", sizeGb: 1}) { volume { id } } }`, "PUT", web1 + "/volumes/" + string(volume.ID) + "/extend", `{"size_gb":1}`, web1 + "/volumes/" + string(volume.ID)},
		{"start a machine", `mutation { startMachine(input: {id: "` + string(m.ID) + `"}) { machine { id } } }`, "POST", web1 + "/machines/" + string(m.ID) + "/start", "", web1 + "/machines/" + string(m.ID)},
		{"remove a machine that runs", `mutation { removeMachine(input: {id: "` + string(m.ID) + `"}) { machine { id } } }`, "DELETE", web1 + "/machines/" + string(m.ID), "", web1 + "/machines/" + string(m.ID)},
		{"make a token", `mutation { createLimitedAccessToken(input: {name: "x", organizationId: "personal", profile: "deploy", profileParams: {app_id: "web"}, expiry: "1h"}) { limitedAccessToken { id } } }`, "POST", "/v1/tokens", `{"kind":"deploy","apps":["web"],"org_slug":"personal","expiry":"1h"}`, web1},
		{"make a token of others", `mutation { createLimitedAccessToken(input: {name: "x", organizationId: "other", profile: "deploy_organization", expiry: "1h"}) { limitedAccessToken { id } } }`, "POST", "/v1/tokens", `{"kind":"org","org_slug":"other","expiry":"1h"}`, ""},
		{"revoke none", `mutation { deleteLimitedAccessToken(input: {id: "nothing"}) { token } }`, "DELETE", "/v1/tokens/nothing", "", ""},
		{"a peer of a bad key", `mutation { addWireGuardPeer(input: {organizationId: "personal", pubkey: "?"}) { peerip } }`, "POST", "/v1/orgs/personal/wireguard_peers", `{"public_key":"?"}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for who, text := range tokens {
				rest, unread := askREST(t, p, text, c.method, c.path, c.body), refusal{}
				if c.before != "" {
					unread = askREST(t, p, text, http.MethodGet, c.before, "")
				}
				graph, data := askGraphQL(t, p, text, c.query)
				want := rest
				if unread != (refusal{}) {
					want = unread
				}
				// An object named by its id alone is not found by a caller that may not read it.
				if hidden := graph.notFound() && (want.notFound() || unread != refusal{}); graph != want && !hidden {
					t.Errorf("%s: the REST API answers %+v, GraphQL %+v", who, want, graph)
				}
				if graph == (refusal{}) && rest != (refusal{}) {
					t.Errorf("%s: the REST API answers %+v, GraphQL %s", who, rest, data)
				}
			}
		})
	}
}

// notFound reports whether a refusal says that there is nothing. Of what, depends on how it was named.
func (r refusal) notFound() bool { return r.code == string(hangar.CodeNotFound) }

// TestGraphQLAnswersAsREST compares what both APIs say of the same things.
func TestGraphQLAnswersAsREST(t *testing.T) {
	p := serve(t)
	c := p.Client()
	m := started(t, c)
	for _, one := range []struct {
		name, query, path string
		same              map[string]string // paths in the answers
	}{
		{
			"app", `{ app(name: "web") { name status network internalNumericId } }`, "/v1/apps/web",
			map[string]string{"app.name": "name", "app.status": "status", "app.network": "network", "app.internalNumericId": "internal_numeric_id"},
		},
		{
			"machine", `{ machine(machineId: "` + string(m.ID) + `") { id name region instanceId createdAt config host { id } } }`, "/v1/apps/web/machines/" + string(m.ID),
			map[string]string{"machine.id": "id", "machine.name": "name", "machine.region": "region", "machine.instanceId": "instance_id", "machine.createdAt": "created_at", "machine.config": "config", "machine.host.id": "host_id"},
		},
		{
			"org", `{ organization(slug: "personal") { id slug name } }`, "/v1/orgs/personal",
			map[string]string{"organization.id": "id", "organization.slug": "slug", "organization.name": "name"},
		},
	} {
		_, rest := send(t, p, p.Token(), http.MethodGet, one.path, "")
		_, graph := askGraphQL(t, p, p.Token(), one.query)
		for g, r := range one.same {
			if a, b := at(t, graph, g), at(t, rest, r); !bytes.Equal(a, b) {
				t.Errorf("%s: %s is %s by GraphQL, and %s is %s by REST", one.name, g, a, r, b)
			}
		}
	}
}

// at returns what is at a path of an object, with the properties of objects sorted.
func at(t *testing.T, raw []byte, path string) []byte {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	for key := range strings.SplitSeq(path, ".") {
		object, ok := v.(map[string]any)
		if !ok || object[key] == nil {
			t.Fatalf("%s has no %s", raw, path)
		}
		v = object[key]
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

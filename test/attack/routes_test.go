// Package attack plays hostile tenants, clients and images against a real daemon: each test is a
// table of attempts and their expected results.
package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/daemon"
)

// answerWithin bounds one request. A route that streams answers with its status at once.
const answerWithin = time.Minute

// target is an organization with one of everything that a route can name.
type target struct {
	org      hangar.OrgSlug
	app      hangar.AppName
	machine  *hangar.Machine
	volume   *hangar.Volume
	snapshot hangar.SnapshotID
	// values are what the braces of paths stand for.
	values map[string]string
	// marks are texts that only this organization has: one in the answer to another organization is
	// a leak.
	marks []string
}

// newTarget makes an organization with one of everything. The marks of two targets differ.
func newTarget(t *testing.T, d *daemon.Daemon, c *client.Client, name string) *target {
	t.Helper()
	ctx := t.Context()
	v := &target{org: hangar.OrgSlug("org-" + name), app: hangar.AppName("app-" + name)}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.CreateOrg(ctx, hangar.OrgCreate{Slug: v.org, Name: "Title of " + name})
	check(err)
	_, err = c.CreateApp(ctx, hangar.AppCreate{Name: v.app, Org: v.org})
	check(err)
	image := d.Push(daemon.Busybox(t, "sh", "sleep"), "busybox:1", "--org", string(v.org), "--cmd", "sleep", "--cmd", "100000")
	secret, token, peer, host := "SECRET_"+strings.ToUpper(name), "token-"+name, "peer-"+name, hangar.Hostname("www."+name+"-site.com")
	_, err = c.SetSecrets(ctx, v.app, map[string]hangar.Sensitive{secret: hangar.NewSensitive("plain-" + name)})
	check(err)
	key := hangar.SecretKeyRef{App: v.app, Name: "key-" + name}
	_, _, err = c.GenerateSecretKey(ctx, key, hangar.SecretKeyNaClSign)
	check(err)
	v.volume, err = c.CreateVolume(ctx, v.app, hangar.VolumeCreate{Name: "vol_" + name, SizeGB: 1})
	check(err)
	v.machine, err = c.CreateMachine(ctx, v.app, hangar.MachineCreate{Name: "machine-" + name, Config: hangar.MachineConfig{
		Image: image, Env: map[string]string{"MARK": "env-" + name}, Metadata: map[string]string{"role": "meta-" + name},
	}})
	check(err)
	_, err = c.WaitMachine(ctx, v.machine.Ref(), hangar.MachineWait{Timeout: time.Minute})
	check(err)
	address, err := c.AllocateAddress(ctx, v.app, hangar.AddressCreate{Kind: hangar.AddressV4})
	check(err)
	_, err = c.CreateToken(ctx, hangar.TokenCreate{Kind: hangar.TokenDeploy, Name: token, Org: v.org, Apps: []hangar.AppName{v.app}})
	check(err)
	v.snapshot = newSnapshot(t, c, v.volume.Ref())
	email := "ann@" + name + ".test"
	invited, err := c.InviteUser(ctx, hangar.UserInvite{Email: email, Org: v.org})
	check(err)
	user, err := c.UseCode(ctx, hangar.CodeUse{Code: hangar.NewSensitive(invited.Code), Name: "Ann of " + name, Password: hangar.NewSensitive("a password of " + name)})
	check(err)
	waiting, err := c.InviteUser(ctx, hangar.UserInvite{Email: "ben@" + name + ".test", Org: v.org})
	check(err)
	_, err = c.RequestCertificate(ctx, v.app, host)
	if code := hangar.CodeOf(err); code != hangar.CodeFailedPrecondition { // without an ACME server
		check(err)
	}
	release, err := c.CreateRelease(ctx, v.app, hangar.ReleaseCreate{Image: "image-" + name, Reason: "reason-" + name, Definition: []byte(`{"mark":"definition-` + name + `"}`)})
	check(err)
	webhook, err := c.CreateWebhook(ctx, v.org, hangar.WebhookCreate{URL: "https://hook-" + name + ".test/path"})
	check(err)
	offered := hangar.ProviderName("provider-" + name)
	_, err = c.CreateProvider(ctx, hangar.ProviderCreate{Name: offered, ProviderSettings: hangar.ProviderSettings{BaseURL: "https://" + name + ".invalid"}})
	check(err)
	_, err = c.CreateExtension(ctx, v.app, hangar.ExtensionCreate{Provider: offered, Name: "extension-" + name})
	check(err)
	election := hangar.ElectionName("election-" + name)
	session, err := c.OpenElectionSession(ctx, v.app, election, hangar.ElectionSessionOpen{TTL: hangar.Duration(hangar.MaxElectionTTL)})
	check(err)
	_, err = c.ChangeElection(ctx, v.app, election, hangar.ElectionChange{Put: []hangar.ElectionPut{{Key: "primary", Value: "vote-" + name}}})
	check(err)
	v.values = map[string]string{
		"election": string(election), "session": string(session.ID),
		"webhook": string(webhook.ID), "delivery": "01K2KJQ1M6Y8T9V0B3C4D5E6F7",
		"org": string(v.org), "app": string(v.app), "machine": string(v.machine.ID), "volume": string(v.volume.ID),
		"token": token, "secret": secret, "secretkey": key.Name, "peer": peer, "hostname": string(host), "ip": address.IP.String(),
		"release": string(release.ID), "key": "role", "label": "instance", "registry": "registry." + name + ".test", "digest": v.machine.ImageRef.Digest,
		"host": "00000009", "jointoken": "aaaaaaaaaaaa",
		"user": string(user.ID), "invitation": string(waiting.ID), "provider": string(offered), "extension": "extension-" + name,
	}
	v.marks = []string{
		string(session.ID), "vote-" + name,
		"Title of " + name, string(v.machine.ID), "machine-" + name, string(v.volume.ID), string(v.snapshot), token, secret, key.Name, "plain-" + name,
		"env-" + name, "meta-" + name, v.machine.PrivateIP.String(), "vol_" + name, email, string(webhook.ID), webhook.Secret, "hook-" + name, "extension-" + name, "image-" + name, "reason-" + name, "definition-" + name, string(release.ID), "Ann of " + name, "ben@" + name + ".test",
	}
	return v
}

// newSnapshot takes a snapshot and waits until it is complete.
func newSnapshot(t *testing.T, c *client.Client, ref hangar.VolumeRef) hangar.SnapshotID {
	t.Helper()
	made, err := c.CreateSnapshot(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	for {
		list, err := c.Snapshots(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			switch {
			case s.ID != made.ID:
			case s.State == hangar.SnapshotCreated:
				return s.ID
			case s.State == hangar.SnapshotFailed:
				t.Fatalf("snapshot: %+v", s)
			}
		}
	}
}

// document fetches the OpenAPI document of a daemon.
func document(t *testing.T, d *daemon.Daemon) *openapi.Document {
	t.Helper()
	res, err := http.Get(d.URL() + "/v1/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	doc := new(openapi.Document)
	if err := json.NewDecoder(res.Body).Decode(doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// route is an operation of the document.
type route struct {
	method, path string
	*openapi.Operation
}

func (r route) String() string { return r.method + " " + r.path }

func routes(doc *openapi.Document) []route {
	var all []route
	for path, methods := range doc.Paths {
		for method, op := range methods {
			all = append(all, route{strings.ToUpper(method), path, op})
		}
	}
	slices.SortFunc(all, func(a, b route) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// public reports whether the route takes no token.
func (r route) public() bool { return len(r.Security) == 1 && len(r.Security[0]) == 0 }

// request makes the request that the owner of v would make.
func (r route) request(ctx context.Context, base string, v *target) (*http.Request, error) {
	path := r.path
	for name, value := range v.values {
		path = strings.ReplaceAll(path, "{"+name+"}", url.PathEscape(value))
	}
	if strings.Contains(path, "{") {
		return nil, fmt.Errorf("%s has a parameter that the target has no value for", r)
	}
	query := url.Values{}
	for _, p := range r.Parameters {
		if value, ok := v.named(p.Name); ok && p.In == "query" {
			query.Set(p.Name, value)
		}
	}
	if slices.Contains([]string{"dialMachine", "execStream"}, r.ID) {
		query.Set("port", "8080")
		query.Set("command", "ls")
	}
	var body io.Reader
	if r.RequestBody != nil {
		content := v.addressed(r.RequestBody.Content["application/json"].Example)
		if r.ID == "placeMachines" {
			content = map[string]any{"org_slug": v.org}
		}
		raw, err := json.Marshal(content)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(raw)
	}
	if encoded := query.Encode(); encoded != "" {
		path += "?" + encoded
	}
	req, err := http.NewRequestWithContext(ctx, r.method, base+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if query.Has("command") {
		req.Header = http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="},
		}
	}
	return req, nil
}

// named returns what a property or a parameter of this name has to be to be about v.
func (v *target) named(name string) (string, bool) {
	switch name {
	case "org", "org_slug", "organization", "organization_slug":
		return string(v.org), true
	case "app", "app_name":
		return string(v.app), true
	case "instance", "machine_id":
		return string(v.machine.ID), true
	case "source_volume_id", "volume_id":
		return string(v.volume.ID), true
	case "snapshot_id":
		return string(v.snapshot), true
	default:
		return "", false
	}
}

// addressed returns the example of a body with v in the place of what it names.
func (v *target) addressed(example any) any {
	switch e := example.(type) {
	case map[string]any:
		out := make(map[string]any, len(e))
		for key, value := range e {
			out[key] = v.addressed(value)
			if named, ok := v.named(key); ok {
				if _, text := value.(string); text {
					out[key] = named
				}
			}
			if key == "apps" {
				out[key] = []any{string(v.app)}
			}
			if key == "machines" {
				out[key] = []any{string(v.machine.ID)}
			}
		}
		return out
	case []any:
		out := make([]any, len(e))
		for i, value := range e {
			out[i] = v.addressed(value)
		}
		return out
	default:
		return example
	}
}

// answer is what came back.
type answer struct {
	status int
	body   string
}

// ask sends the request of a route with the value of an Authorization header, and reads the
// answer as far as it comes at once.
func ask(t *testing.T, d *daemon.Daemon, r route, v *target, authorization string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerWithin)
	defer cancel()
	req, err := r.request(ctx, d.URL(), v)
	if err != nil {
		t.Fatal(err)
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	defer res.Body.Close()
	raw := make([]byte, 64<<10)
	least := len(raw)
	if res.StatusCode == http.StatusSwitchingProtocols {
		least = 1 // the first message says what became of it
	}
	n, err := io.ReadAtLeast(res.Body, raw, least)
	if err != nil && n == 0 && ctx.Err() != nil {
		t.Fatalf("%s: no answer: %v", r, err)
	}
	return answer{res.StatusCode, string(raw[:n])}
}

// stays reports whether the answer to a request of the owner is the same when it is repeated,
// without changes in between.
func (r route) stays() bool {
	switch r.ID {
	case "followLogs", "pollLogs", "execStream", "dialMachine", "waitMachine", "listProcesses", "readMetrics", "getHealth":
		return false
	default:
		// Series grow by themselves.
		return r.method == http.MethodGet && !r.public() && !strings.HasPrefix(r.path, "/prometheus/")
	}
}

// view is all that the owner sees of a target.
func view(t *testing.T, d *daemon.Daemon, all []route, v *target) map[string]string {
	t.Helper()
	seen := map[string]string{}
	for _, r := range all {
		if r.stays() && strings.Contains(r.path, "{") {
			a := ask(t, d, r, v, "Bearer "+d.Token())
			seen[r.String()] = fmt.Sprintf("%d %s", a.status, readAt.ReplaceAllString(a.body, ""))
		}
	}
	return seen
}

// readAt is the moment of the answer in lists that are followed.
var readAt = regexp.MustCompile(`"last_updated_at":"[^"]*"`)

// TestRoutes calls every route of the OpenAPI document for what one organization has: with every
// kind of token that another organization can have, with tokens of its own that do not allow
// it, and with tokens that are not valid. None of them may see or change anything.
func TestRoutes(t *testing.T) {
	d := daemon.Start(t, daemon.Options{Driver: "fake", Args: []string{"--acme", "off", "--volume-overcommit", "100"}})
	c := d.Client()
	victim, attacker := newTarget(t, d, c, "alpha"), newTarget(t, d, c, "omega")
	neighbour := hangar.AppName("app-neighbour") // of the victim's organization
	if _, err := c.CreateApp(t.Context(), hangar.AppCreate{Name: neighbour, Org: victim.org}); err != nil {
		t.Fatal(err)
	}

	token := func(in hangar.TokenCreate) string {
		t.Helper()
		made, err := c.CreateToken(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + made.Text
	}
	kinds := func(org hangar.OrgSlug, app hangar.AppName) map[string]string {
		apps := []hangar.AppName{app}
		return map[string]string{
			"org":          token(hangar.TokenCreate{Kind: hangar.TokenOrg, Org: org}),
			"deploy":       token(hangar.TokenCreate{Kind: hangar.TokenDeploy, Org: org, Apps: apps}),
			"readonly":     token(hangar.TokenCreate{Kind: hangar.TokenReadOnly, Org: org}),
			"metrics":      token(hangar.TokenCreate{Kind: hangar.TokenMetrics, Org: org}),
			"machine-exec": token(hangar.TokenCreate{Kind: hangar.TokenMachineExec, Org: org, Apps: apps, Commands: []hangar.CommandRule{{Args: []string{"ls"}}}}),
			"custom":       token(hangar.TokenCreate{Kind: hangar.TokenCustom, Org: org, Actions: hangar.ActionCreate | hangar.ActionDelete}),
		}
	}
	foreign := kinds(attacker.org, attacker.app)
	own := kinds(victim.org, neighbour)
	revoked := token(hangar.TokenCreate{Kind: hangar.TokenOrg, Org: victim.org, Name: "revoked"})
	if err := c.RevokeToken(t.Context(), "revoked"); err != nil {
		t.Fatal(err)
	}
	worthless := map[string]string{
		"none": "", "garbage": "Bearer garbage", "revoked": revoked, "basic": "Basic YWRtaW46YWRtaW4=",
		"cut": strings.TrimRight(revoked, "0123456789abcdefghijklmnopqrstuvwxyz")[:10],
	}

	all := routes(document(t, d))
	before := view(t, d, all, victim)
	for _, r := range all {
		if r.public() {
			continue
		}
		t.Run(r.ID, func(t *testing.T) {
			for name, header := range worthless {
				// Those that come too often are refused without a look.
				if a := ask(t, d, r, victim, header); a.status != http.StatusUnauthorized && a.status != http.StatusTooManyRequests {
					t.Errorf("token %s: %d %s, want 401 or 429", name, a.status, a.body)
				}
			}
			for name, header := range foreign {
				r.refuses(t, "foreign "+name, ask(t, d, r, victim, header), victim)
			}
			for _, name := range r.refusedWithin() {
				r.refuses(t, "own "+name, ask(t, d, r, victim, own[name]), victim)
			}
		})
	}
	after := view(t, d, all, victim)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if before[name] != after[name] {
			t.Errorf("%s has changed\nfrom %s\nto   %s", name, before[name], after[name])
		}
	}
	if len(all) < 90 {
		t.Errorf("only %d routes were walked", len(all))
	}
}

// refusedWithin lists the kinds of tokens of the same organization that the route refuses: a
// deploy token is of another App.
func (r route) refusedWithin() []string {
	switch {
	case !strings.Contains(r.path, "{app}"):
		return nil
	case r.method == http.MethodGet, r.ID == "encryptWithKey", r.ID == "verifyWithKey":
		return []string{"deploy", "metrics"}
	default:
		return []string{"deploy", "metrics", "readonly"}
	}
}

// refuses checks the answer to a caller that may not do what the route does to v. Routes that name
// nothing in their path may answer with what is the caller's own.
func (r route) refuses(t *testing.T, who string, a answer, v *target) {
	t.Helper()
	for _, mark := range v.marks {
		if asked := r.mentions(v, mark); !asked && strings.Contains(a.body, mark) {
			t.Errorf("%s learns %q: %d %s", who, mark, a.status, a.body)
		}
	}
	if r.ID == "queryGraphQL" { // whose errors are a part of the answer
		if a.status != http.StatusOK || !strings.HasPrefix(a.body, `{"data":null,"errors":[`) ||
			!strings.Contains(a.body, `"code":"NOT_FOUND"`) && !strings.Contains(a.body, `"code":"FORBIDDEN"`) {
			t.Errorf("%s: %d %s, want an error and no data", who, a.status, a.body)
		}
		return
	}
	switch a.status {
	case http.StatusForbidden, http.StatusNotFound:
	case http.StatusSwitchingProtocols:
		if !strings.Contains(a.body, `"not_found"`) && !strings.Contains(a.body, `"forbidden"`) {
			t.Errorf("%s: %d %q, want not_found or forbidden", who, a.status, a.body)
		}
	case http.StatusBadRequest:
		// The header in the body is worthless; with a valid one the answer is the caller's own.
		if r.ID != "authenticateTokens" && r.ID != "authorizeTokens" {
			t.Errorf("%s: %d %s, want 403 or 404", who, a.status, a.body)
		}
	case http.StatusOK, http.StatusCreated:
		if strings.Contains(r.path, "{") || r.method != http.MethodGet {
			t.Errorf("%s: %d %s, want 403 or 404", who, a.status, a.body)
		}
	default:
		t.Errorf("%s: %d %s, want 403 or 404", who, a.status, a.body)
	}
}

// mentions reports whether the request names the mark, so that an answer may repeat it.
func (r route) mentions(v *target, mark string) bool {
	for name, value := range v.values {
		if value == mark && strings.Contains(r.path, "{"+name+"}") {
			return true
		}
	}
	return slices.ContainsFunc(r.Parameters, func(p openapi.Parameter) bool {
		value, ok := v.named(p.Name)
		return ok && value == mark && p.In == "query"
	})
}

package contract

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// IdentityService checks an implementation of hangar.IdentityService and of
// hangar.SigningKeyService. That the tokens verify is for the tests of what issues
// and serves them.
func IdentityService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"claims":       identityClaims,
		"audience":     identityAudience,
		"caller":       identityCaller,
		"states":       identityStates,
		"strangers":    identityStrangers,
		"signing keys": signingKeys,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

// issue returns a token's claims, and the key that it names.
func (h Harness) issue(t *testing.T, ref hangar.MachineRef, in hangar.IdentityTokenRequest) (claims hangar.IdentityClaims, key string) {
	t.Helper()
	text, err := h.Identity.IssueIdentityToken(h.Context(t), ref, in)
	must(t, "issue", err)
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		t.Fatalf("%q is not a JSON Web Token", text)
	}
	var header struct {
		Algorithm string `json:"alg"`
		Type      string `json:"typ"`
		Key       string `json:"kid"`
	}
	for part, into := range map[string]any{parts[0]: &header, parts[1]: &claims} {
		raw, err := base64.RawURLEncoding.DecodeString(part)
		must(t, "decode "+part, err)
		must(t, "decode "+string(raw), json.Unmarshal(raw, into))
	}
	if header.Algorithm != "RS256" || header.Type != "JWT" || header.Key == "" {
		t.Errorf("the header is %+v", header)
	}
	return claims, header.Key
}

var (
	uuid4  = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	sha256 = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

func identityClaims(t *testing.T, h Harness) {
	name := h.newApp(t)
	m := h.started(t, name)
	app, err := h.Apps.App(h.Context(t), name)
	must(t, "get app", err)
	now := h.get(t, m.Ref())
	c, _ := h.issue(t, m.Ref(), hangar.IdentityTokenRequest{Audience: "sts.example.com"})
	image := now.ImageRef
	image.Digest = ""
	want := hangar.IdentityClaims{
		AppID: strconv.FormatUint(app.NumericID, 10), AppName: name, Audience: "sts.example.com",
		Expiry: c.IssuedAt + 900, IssuedAt: c.IssuedAt, Image: image.String(), ImageDigest: now.ImageRef.Digest, Issuer: c.Issuer, ID: c.ID,
		MachineID: m.ID, MachineName: m.Name, MachineVersion: now.InstanceID, NotBefore: c.IssuedAt,
		OrgID: strconv.FormatUint(app.Org.NumericID, 10), OrgName: hangar.OrgPersonal, Region: now.Region,
		Subject: "personal:" + string(name) + ":" + m.Name,
	}
	if c != want {
		t.Errorf("claims are %+v, want %+v", c, want)
	}
	if !strings.HasSuffix(c.Issuer, "/personal") || !uuid4.MatchString(c.ID) || !sha256.MatchString(c.ImageDigest) {
		t.Errorf("iss %q, jti %q, image_digest %q", c.Issuer, c.ID, c.ImageDigest)
	}
	again, _ := h.issue(t, m.Ref(), hangar.IdentityTokenRequest{Audience: "sts.example.com"})
	if again.ID == c.ID {
		t.Error("two tokens have one jti")
	}
}

func identityAudience(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	c, _ := h.issue(t, m.Ref(), hangar.IdentityTokenRequest{})
	if !strings.HasPrefix(c.Audience, "https://") || !strings.HasSuffix(c.Audience, "/personal") || c.AWSTags != nil {
		t.Errorf("by default the audience is %q, and the tags are %+v", c.Audience, c.AWSTags)
	}
	long := strings.Repeat("a", hangar.MaxAudience)
	c, _ = h.issue(t, m.Ref(), hangar.IdentityTokenRequest{Audience: long, AWSPrincipalTags: true})
	if c.Audience != long {
		t.Errorf("the audience is %q", c.Audience)
	}
	if c.AWSTags == nil || !slices.Equal(c.AWSTags.PrincipalTags["app_name"], []string{string(m.App)}) || len(c.AWSTags.PrincipalTags) != 5 {
		t.Errorf("tags are %+v", c.AWSTags)
	}
	for _, bad := range []string{long + "a", "two\nlines"} {
		_, err := h.Identity.IssueIdentityToken(h.Context(t), m.Ref(), hangar.IdentityTokenRequest{Audience: bad})
		wantError(t, "issue for a bad audience", err, hangar.CodeInvalid, "")
		if err != nil && !strings.Contains(err.Error(), "invalid aud: ") {
			t.Errorf("%v does not say what is wrong", err)
		}
	}
}

// identityCaller: a token for one Machine alone acts for it.
func identityCaller(t *testing.T, h Harness) {
	app := h.newApp(t)
	m, other := h.started(t, app), h.started(t, app)
	of := func(actions hangar.Action, machines ...hangar.MachineID) Harness {
		return h.with(t, hangar.TokenCreate{Kind: hangar.TokenCustom, Apps: []hangar.AppName{app}, Machines: machines, Actions: actions})
	}
	self := of(hangar.ActionRead|hangar.ActionControl, m.ID)
	for _, ref := range []hangar.MachineRef{{}, m.Ref()} {
		if c, _ := self.issue(t, ref, hangar.IdentityTokenRequest{}); c.MachineID != m.ID {
			t.Errorf("the token is of machine %s", c.MachineID)
		}
	}
	ask := func(h Harness, ref hangar.MachineRef) error {
		_, err := h.Identity.IssueIdentityToken(h.Context(t), ref, hangar.IdentityTokenRequest{})
		return err
	}
	wantError(t, "another machine", ask(self, other.Ref()), hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	wantError(t, "an administrator, who is no machine", ask(h, hangar.MachineRef{}), hangar.CodeForbidden, "")
	wantError(t, "one of two", ask(of(hangar.ActionAll, m.ID, other.ID), hangar.MachineRef{}), hangar.CodeForbidden, "")
	wantError(t, "a reader of the machine", ask(of(hangar.ActionRead, m.ID), hangar.MachineRef{}), hangar.CodeForbidden, "")
	commands := h.with(t, hangar.TokenCreate{
		Kind: hangar.TokenMachineExec, Apps: []hangar.AppName{app}, Machines: []hangar.MachineID{m.ID}, Commands: []hangar.CommandRule{{Args: []string{"ls"}}},
	})
	wantError(t, "who may only run ls", ask(commands, m.Ref()), hangar.CodeForbidden, "")
	deploy := h.with(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{app}})
	wantError(t, "a deploy token, which is no machine's", ask(deploy, hangar.MachineRef{}), hangar.CodeForbidden, "")
	must(t, "a deploy token that names a machine", ask(deploy, m.Ref()))
}

func identityStates(t *testing.T, h Harness) {
	app := h.newApp(t)
	for what, ref := range map[string]hangar.MachineRef{
		"nothing": {App: app, ID: "00000000000000"}, "a machine of another app": {App: h.newApp(t), ID: h.stopped(t, app).ID},
	} {
		_, err := h.Identity.IssueIdentityToken(h.Context(t), ref, hangar.IdentityTokenRequest{})
		wantError(t, what, err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	}
	_, err := h.Identity.IssueIdentityToken(h.Context(t), h.stopped(t, app).Ref(), hangar.IdentityTokenRequest{})
	wantError(t, "a stopped machine", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
}

func identityStrangers(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	stranger := h.with(t, hangar.TokenCreate{Kind: hangar.TokenOrg, Org: h.newOrg(t)})
	ctx := stranger.Context(t)
	_, err := stranger.Identity.IssueIdentityToken(ctx, m.Ref(), hangar.IdentityTokenRequest{})
	wantError(t, "issue", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = stranger.SigningKeys.SigningKeys(ctx)
	wantError(t, "list keys", err, hangar.CodeForbidden, "")
	_, err = stranger.SigningKeys.RotateSigningKey(ctx)
	wantError(t, "rotate", err, hangar.CodeForbidden, "")
}

// only returns the one key in a state.
func only(t *testing.T, keys []hangar.SigningKey, s hangar.SigningKeyState) hangar.SigningKey {
	t.Helper()
	var found []hangar.SigningKey
	for _, k := range keys {
		if k.State == s {
			found = append(found, k)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d keys are %s: %+v", len(found), s, keys)
	}
	return found[0]
}

func signingKeys(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	ctx := h.Context(t)
	before, err := h.SigningKeys.SigningKeys(ctx)
	must(t, "list", err)
	if !slices.IsSortedFunc(before, func(a, b hangar.SigningKey) int { return a.NotBefore.Compare(b.NotBefore) }) {
		t.Errorf("keys are not sorted: %+v", before)
	}
	current, next := only(t, before, hangar.SigningKeyCurrent), only(t, before, hangar.SigningKeyNext)
	if current.NotAfter != next.NotBefore || next.NotBefore.Before(time.Now()) {
		t.Errorf("current %+v, next %+v", current, next)
	}
	if _, key := h.issue(t, m.Ref(), hangar.IdentityTokenRequest{}); key != current.ID {
		t.Errorf("key %s signs, and %s is current", key, current.ID)
	}
	after, err := h.SigningKeys.RotateSigningKey(ctx)
	must(t, "rotate", err)
	_, key := h.issue(t, m.Ref(), hangar.IdentityTokenRequest{})
	if now := only(t, after, hangar.SigningKeyCurrent); key != now.ID || now.ID != next.ID {
		t.Errorf("key %s signs, %s is current, and %s was next", key, now.ID, next.ID)
	}
	retired := slices.ContainsFunc(after, func(k hangar.SigningKey) bool {
		return k.ID == current.ID && k.State == hangar.SigningKeyRetired && !k.NotAfter.IsZero()
	})
	if !retired {
		t.Errorf("the key that was current is not retired: %+v", after)
	}
}

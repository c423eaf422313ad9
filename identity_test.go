package hangar_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

func TestIdentityTokenRequest(t *testing.T) {
	for aud, fault := range map[string]string{
		"":                                      "",
		"sts.amazonaws.com":                     "",
		"https://例え.example/ pool":              "",
		strings.Repeat("a", hangar.MaxAudience): "",
		strings.Repeat("a", hangar.MaxAudience+1): "invalid aud: has 1025 bytes",
		"a\x00":   "control characters",
		"a\u0085": "control characters",
		"\xff":    "UTF-8",
	} {
		err := hangar.IdentityTokenRequest{Audience: aud}.Validate()
		if fault == "" && err != nil || fault != "" && (hangar.CodeOf(err) != hangar.CodeInvalid || !strings.Contains(err.Error(), fault)) {
			t.Errorf("%.20q: %v, want %q", aud, err, fault)
		}
	}
}

func TestCallerMachine(t *testing.T) {
	one := hangar.Grant{Org: "personal", Apps: []hangar.AppName{"web"}, Machines: []hangar.MachineID{"d8912340000002"}, Actions: hangar.ActionRead}
	two := one
	two.Machines = []hangar.MachineID{"d8912340000002", "d8912340000003"}
	app, other := one, one
	app.Machines, other.Apps = nil, []hangar.AppName{"api"}
	ref := hangar.MachineRef{App: "web", ID: "d8912340000002"}
	as := func(admin bool, grants ...hangar.Grant) context.Context {
		return hangar.WithPrincipal(t.Context(), hangar.Principal{Admin: admin, Grants: grants})
	}
	for name, want := range map[string]struct {
		ctx  context.Context
		ref  hangar.MachineRef
		code hangar.Code
	}{
		"nobody":                 {t.Context(), hangar.MachineRef{}, hangar.CodeUnauthenticated},
		"a machine, by its word": {hangar.WithSelf(t.Context(), ref), hangar.MachineRef{}, hangar.CodeUnauthenticated},
		"a machine":              {hangar.WithSelf(as(false, app), ref), ref, ""},
		"its token":              {as(false, one), ref, ""},
		"two tokens of it":       {as(false, one, one), ref, ""},
		"a token of two":         {as(false, two), hangar.MachineRef{}, hangar.CodeForbidden},
		"tokens of two":          {as(false, one, other), hangar.MachineRef{}, hangar.CodeForbidden},
		"tokens, one of an app":  {as(false, one, app), hangar.MachineRef{}, hangar.CodeForbidden},
		"a token of the app":     {as(false, app), hangar.MachineRef{}, hangar.CodeForbidden},
		"no token":               {as(false), hangar.MachineRef{}, hangar.CodeForbidden},
		"an administrator":       {as(true), hangar.MachineRef{}, hangar.CodeForbidden},
		"one with a token of it": {as(true, one), hangar.MachineRef{}, hangar.CodeForbidden},
	} {
		got, err := hangar.CallerMachine(want.ctx)
		if got != want.ref || hangar.CodeOf(err) != want.code {
			t.Errorf("%s: %v, %v; want %v, %q", name, got, err, want.ref, want.code)
		}
	}
}

func TestIdentityOf(t *testing.T) {
	app := &hangar.App{Name: "web", NumericID: 7, Org: hangar.Org{Slug: "acme", NumericID: 3, Name: "ACME: the company"}}
	m := &hangar.Machine{
		ID: "d8912340000002", Name: "calm-river-4182", App: "web", Region: "loc", InstanceID: "01KXWWKW9T0000000000000000",
		ImageRef: hangar.ImageRef{Registry: "registry-1.docker.io", Repository: "library/nginx", Tag: "alpine", Digest: "sha256:00"},
	}
	c := hangar.IdentityOf(app, m)
	c.AWSTags = c.Tags()
	got, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"app_id":"7","app_name":"web","aud":"","exp":0,"iat":0,"image":"registry-1.docker.io/library/nginx:alpine","image_digest":"sha256:00",` +
		`"iss":"","jti":"","machine_id":"d8912340000002","machine_name":"calm-river-4182","machine_version":"01KXWWKW9T0000000000000000",` +
		`"nbf":0,"org_id":"3","org_name":"acme","region":"loc","sub":"acme:web:calm-river-4182",` +
		`"https://aws.amazon.com/tags":{"principal_tags":{"app_name":["web"],"machine_id":["d8912340000002"],"machine_name":["calm-river-4182"],"org_name":["acme"],"region":["loc"]}}}`
	if string(got) != want {
		t.Errorf("claims are\n%s, want\n%s", got, want)
	}
}

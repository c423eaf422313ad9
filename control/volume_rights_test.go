package control_test

import (
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// TestCopyOfAVolumeTakesControl forks a volume and restores its snapshot with every kind of
// token beside one that may create in the target: what is on a volume leaves it only for
// callers that may execute a command in its App.
func TestCopyOfAVolumeTakesControl(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	for _, name := range []hangar.AppName{"source", "target"} {
		p.app(t, name)
	}
	if _, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "foreign", Org: "other"}); err != nil {
		t.Fatal(err)
	}
	m := p.machine(t, "source", "")
	v := p.volume(t, "source", hangar.VolumeCreate{})
	s := p.snapshot(t, v.Ref())
	const me = hangar.OrgPersonal
	source := []hangar.AppName{"source"}
	commands := []hangar.CommandRule{{Args: []string{"ls"}}}
	for _, tt := range []struct {
		name  string
		token hangar.TokenCreate
		into  hangar.AppName // "target", unless given
		code  hangar.Code    // "": it is copied
	}{
		{name: "org", token: hangar.TokenCreate{Kind: hangar.TokenOrg, Org: me}},
		{name: "deploy of the source", token: hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: source}},
		{name: "deploy of the target", token: hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{"target"}}, code: hangar.CodeNotFound},
		{name: "readonly of the org", token: hangar.TokenCreate{Kind: hangar.TokenReadOnly, Org: me}, code: hangar.CodeForbidden},
		{name: "readonly of the source", token: hangar.TokenCreate{Kind: hangar.TokenReadOnly, Apps: source}, code: hangar.CodeForbidden},
		{name: "readonly of a machine", token: hangar.TokenCreate{Kind: hangar.TokenReadOnly, Apps: source, Machines: []hangar.MachineID{m.ID}}, code: hangar.CodeForbidden},
		{name: "some commands", token: hangar.TokenCreate{Kind: hangar.TokenMachineExec, Apps: source, Commands: commands}, code: hangar.CodeForbidden},
		{name: "some commands in a machine", token: hangar.TokenCreate{Kind: hangar.TokenMachineExec, Apps: source, Machines: []hangar.MachineID{m.ID}, Commands: commands}, code: hangar.CodeForbidden},
		{name: "metrics", token: hangar.TokenCreate{Kind: hangar.TokenMetrics, Org: me}, code: hangar.CodeForbidden},
		{name: "all but control", token: hangar.TokenCreate{Kind: hangar.TokenCustom, Apps: source, Actions: hangar.ActionAll &^ hangar.ActionControl}, code: hangar.CodeForbidden},
		{name: "control", token: hangar.TokenCreate{Kind: hangar.TokenCustom, Apps: source, Actions: hangar.ActionControl}},
		{name: "control of a machine", token: hangar.TokenCreate{Kind: hangar.TokenCustom, Apps: source, Machines: []hangar.MachineID{m.ID}, Actions: hangar.ActionControl}, code: hangar.CodeForbidden},
		{name: "into another organization", token: hangar.TokenCreate{Kind: hangar.TokenOrg, Org: me}, into: "foreign", code: hangar.CodeNotFound},
		{name: "into the own one with another's token", token: hangar.TokenCreate{Kind: hangar.TokenOrg, Org: "other"}, code: hangar.CodeNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			made, err := p.Tokens().CreateToken(admin(t), tt.token)
			if err != nil {
				t.Fatal(err)
			}
			who, err := p.auth.Authenticate(t.Context(), made.Text)
			if err != nil {
				t.Fatal(err)
			}
			who.Grants = append(who.Grants,
				hangar.Grant{Org: me, Apps: []hangar.AppName{"target"}, Actions: hangar.ActionCreate},
				hangar.Grant{Org: "other", Actions: hangar.ActionAll})
			into := tt.into
			if into == "" {
				into = "target"
			}
			for _, in := range []hangar.VolumeCreate{{Name: "fork", Source: v.ID}, {Name: "restored", Snapshot: s.ID}} {
				_, err := p.Volumes().CreateVolume(as(t, who), into, in)
				if code := hangar.CodeOf(err); code != tt.code {
					t.Errorf("%s: %v (%s), want %q", in.Name, err, code, tt.code)
				}
			}
		})
	}
}

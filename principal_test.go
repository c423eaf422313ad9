package hangar_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

const (
	m1 = hangar.MachineID("00000000000001")
	m2 = hangar.MachineID("00000000000002")
)

// everyGrant returns every combination of scope, actions and commands that matters.
func everyGrant() []hangar.Grant {
	var grants []hangar.Grant
	for _, org := range []hangar.OrgSlug{"", "a", "b"} {
		for _, apps := range [][]hangar.AppName{nil, {"web"}, {"api", "web"}, {"other"}} {
			for _, machines := range [][]hangar.MachineID{nil, {m1}, {m1, m2}} {
				for mask := hangar.Action(0); mask <= hangar.ActionAll; mask++ {
					for _, commands := range [][]hangar.CommandRule{nil, {{Args: []string{"ls"}, Exact: true}}, {{Args: []string{"rails", "runner"}}}} {
						grants = append(grants, hangar.Grant{Org: org, Apps: apps, Machines: machines, Actions: mask, Commands: commands})
					}
				}
			}
		}
	}
	return grants
}

func everyTarget() []hangar.Target {
	var targets []hangar.Target
	for _, org := range []hangar.OrgSlug{"", "a", "b"} {
		for _, app := range []hangar.AppName{"", "web", "api", "other", "nobody"} {
			for _, machine := range []hangar.MachineID{"", m1, m2} {
				if app != "" || machine == "" {
					targets = append(targets, hangar.Target{Org: org, App: app, Machine: machine})
				}
			}
		}
	}
	return targets
}

// TestGrants compares every grant, action and target with the rules, one by one.
func TestGrants(t *testing.T) {
	actions := []hangar.Action{
		hangar.ActionRead, hangar.ActionWrite, hangar.ActionCreate, hangar.ActionDelete, hangar.ActionControl, hangar.ActionMetrics,
	}
	for _, g := range everyGrant() {
		p := hangar.Principal{Subject: "x", Grants: []hangar.Grant{g}}
		for _, target := range everyTarget() {
			inScope := g.Org != "" && g.Org == target.Org
			if len(g.Apps) > 0 {
				inScope = inScope && slices.Contains(g.Apps, target.App) // and so not the organization
			}
			if len(g.Machines) > 0 {
				inScope = inScope && slices.Contains(g.Machines, target.Machine) // and so not their App
			}
			for _, action := range actions {
				want := inScope && g.Actions&action != 0
				if action == hangar.ActionControl && len(g.Commands) > 0 {
					want = false // commands, and nothing but commands
				}
				if got := p.May(action, target); got != want {
					t.Fatalf("%+v may %s %+v: %t, want %t", g, action, target, got, want)
				}
				if want && !p.Sees(target) {
					t.Fatalf("%+v may %s %+v and does not see it", g, action, target)
				}
			}
			if p.May(0, target) {
				t.Fatalf("%+v may do nothing in particular to %+v", g, target)
			}
			if g.Actions == 0 && p.Sees(target) || target.Org != g.Org && p.Sees(target) {
				t.Fatalf("%+v sees %+v", g, target)
			}
			for _, command := range [][]string{nil, {"ls"}, {"ls", "-l"}, {"rails"}, {"rails", "runner", "x"}, {"sh"}} {
				want := inScope && g.Actions&hangar.ActionControl != 0
				if len(g.Commands) > 0 {
					line := strings.Join(command, " ")
					want = want && (g.Commands[0].Exact && line == "ls" || !g.Commands[0].Exact && line == "rails runner x")
				}
				if got := p.MayExec(command, target); got != want {
					t.Fatalf("%+v may execute %q in %+v: %t, want %t", g, command, target, got, want)
				}
			}
			admin := hangar.Principal{Admin: true}
			if !admin.May(hangar.ActionDelete, target) || !admin.MayExec([]string{"sh"}, target) || !admin.Sees(target) {
				t.Fatalf("an administrator may not: %+v", target)
			}
		}
	}
}

// TestCovers: a principal that covers a grant may do everything that the grant allows.
func TestCovers(t *testing.T) {
	grants := slices.DeleteFunc(everyGrant(), func(g hangar.Grant) bool {
		return g.Org == "b" || g.Actions&(hangar.ActionWrite|hangar.ActionMetrics|hangar.ActionCreate) != 0
	})
	targets := everyTarget()
	commands := [][]string{{"ls"}, {"rails", "runner", "x"}, {"sh"}}
	covering := 0
	for _, own := range grants {
		p := hangar.Principal{Grants: []hangar.Grant{own}}
		for _, other := range grants {
			if !p.Covers(other) {
				continue
			}
			covering++
			for _, target := range targets {
				for _, action := range []hangar.Action{hangar.ActionRead, hangar.ActionDelete, hangar.ActionControl} {
					if other.May(action, target) && !p.May(action, target) {
						t.Fatalf("%+v covers %+v, which may %s %+v", own, other, action, target)
					}
				}
				for _, command := range commands {
					if other.MayExec(command, target) && !p.MayExec(command, target) {
						t.Fatalf("%+v covers %+v, which may execute %q in %+v", own, other, command, target)
					}
				}
			}
		}
		if own.Org != "" && !p.Covers(own) {
			t.Fatalf("%+v does not cover itself", own)
		}
	}
	if covering < 100 {
		t.Errorf("only %d pairs cover", covering)
	}
	now := time.Unix(1000, 0)
	bounded := hangar.Principal{Grants: []hangar.Grant{{Org: "a", Actions: hangar.ActionAll, Until: now}}}
	for until, want := range map[time.Time]bool{{}: false, now: true, now.Add(-1): true, now.Add(1): false} {
		if got := bounded.Covers(hangar.Grant{Org: "a", Actions: hangar.ActionRead, Until: until}); got != want {
			t.Errorf("until %s: %t, want %t", until, got, want)
		}
	}
	both := bounded.Join(hangar.Principal{Grants: []hangar.Grant{{Org: "a", Actions: hangar.ActionRead, Until: now.Add(time.Hour)}}})
	for mask, want := range map[hangar.Action]time.Time{
		hangar.ActionRead: now.Add(time.Hour), hangar.ActionWrite: now, hangar.ActionRead | hangar.ActionWrite: now,
	} {
		for until, shorter := range map[time.Time]time.Time{{}: want, now.Add(2 * time.Hour): want, now.Add(-1): now.Add(-1)} {
			if got := both.Shorten(hangar.Grant{Org: "a", Actions: mask, Until: until}); !got.Until.Equal(shorter) {
				t.Errorf("%s until %s is shortened to %s, want %s", mask, until, got.Until, shorter)
			}
		}
	}
	if strange := (hangar.Grant{Org: "b", Actions: hangar.ActionRead}); both.Shorten(strange).Until != strange.Until {
		t.Error("what is not covered at all is shortened")
	}
	exact := hangar.Principal{Grants: []hangar.Grant{{Org: "a", Actions: hangar.ActionControl, Commands: []hangar.CommandRule{{Args: []string{"ls"}, Exact: true}}}}}
	for _, longer := range []hangar.CommandRule{{Args: []string{"ls"}}, {Args: []string{"ls", "-l"}, Exact: true}, {Args: []string{"sh"}, Exact: true}} {
		if exact.Covers(hangar.Grant{Org: "a", Actions: hangar.ActionControl, Commands: []hangar.CommandRule{longer}}) {
			t.Errorf("exactly ls covers %+v", longer)
		}
	}
}

func TestJoinedPrincipals(t *testing.T) {
	a := hangar.Principal{Subject: "a", Grants: []hangar.Grant{{Org: "a", Actions: hangar.ActionRead}}, Tokens: []hangar.TokenID{"1"}}
	b := hangar.Principal{Subject: "b", Grants: []hangar.Grant{{Org: "b", Actions: hangar.ActionDelete}}, Tokens: []hangar.TokenID{"2"}}
	both := a.Join(b)
	if both.Subject != "a" || both.Admin || len(both.Tokens) != 2 || !slices.Equal(both.Orgs(), []hangar.OrgSlug{"a", "b"}) {
		t.Errorf("joined to %+v", both)
	}
	for _, test := range []struct {
		org    hangar.OrgSlug
		action hangar.Action
		want   bool
	}{
		{"a", hangar.ActionRead, true},
		{"b", hangar.ActionDelete, true},
		{"a", hangar.ActionDelete, false},
		{"b", hangar.ActionRead, false},
	} {
		if got := both.May(test.action, hangar.Target{Org: test.org}); got != test.want {
			t.Errorf("both may %s %s: %t, want %t", test.action, test.org, got, test.want)
		}
	}
	if p := a.Join(hangar.Principal{Subject: "root", Admin: true}); !p.May(hangar.ActionDelete, hangar.Target{Org: "c"}) {
		t.Error("an administrator's token in a list counts for nothing")
	}
}

func TestCredential(t *testing.T) {
	for header, want := range map[string]string{
		"Bearer x": "x", "bearer x": "x", "FlyV1 x": "x", "flyv1 x": "x", "PlatformV1 x,y": "x,y", "  Bearer   x ": "x",
		"FlyV1 FlyV1 x": "x", "Bearer FlyV1 x , y": "x , y", "": "-", "x": "-", "Bearer": "-", "Bearer ": "-", "Basic x": "-", "Bearer Bearer": "-",
	} {
		got, ok := hangar.Credential(header)
		if !ok {
			got = "-"
		}
		if got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}

func TestParseExpiry(t *testing.T) {
	now := time.Date(2026, 8, 14, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": now.Add(90 * 24 * time.Hour), "never": {}, "1h": now.Add(time.Hour), "175200h0m0s": now.Add(175200 * time.Hour),
		"2027-01-01T00:00:00Z": time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		if got, err := hangar.ParseExpiry(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
	}
	for _, bad := range []string{"soon", "0s", "-1h", "2020-01-01T00:00:00Z", "90", "Never"} {
		if at, err := hangar.ParseExpiry(bad, now); hangar.CodeOf(err) != hangar.CodeInvalid || !strings.Contains(err.Error(), "invalid expiry: ") {
			t.Errorf("%q: %s, %v", bad, at, err)
		}
	}
}

func TestKindsOfTokens(t *testing.T) {
	now := time.Date(2026, 8, 14, 0, 0, 0, 0, time.UTC)
	ls := []hangar.CommandRule{{Args: []string{"ls"}, Exact: true}}
	web := []hangar.AppName{"web"}
	for _, test := range []struct {
		in   hangar.TokenCreate
		want string // actions, or "field: …" of the refusal
	}{
		{hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: web}, "read,write,create,delete,control,metrics"},
		{hangar.TokenCreate{Kind: hangar.TokenDeploy}, "apps: "},
		{hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: web, Machines: []hangar.MachineID{m1}}, "apps: "},
		{hangar.TokenCreate{Kind: hangar.TokenOrg}, "read,write,create,delete,control,metrics"},
		{hangar.TokenCreate{Kind: hangar.TokenOrg, Apps: web}, "apps: "},
		{hangar.TokenCreate{Kind: hangar.TokenReadOnly}, "read,metrics"},
		{hangar.TokenCreate{Kind: hangar.TokenReadOnly, Apps: web, Machines: []hangar.MachineID{m1}}, "read,metrics"},
		{hangar.TokenCreate{Kind: hangar.TokenReadOnly, Machines: []hangar.MachineID{m1}}, "apps: "},
		{hangar.TokenCreate{Kind: hangar.TokenReadOnly, Apps: web, Machines: []hangar.MachineID{"no"}}, "machines[0]: "},
		{hangar.TokenCreate{Kind: hangar.TokenReadOnly, Commands: ls}, "commands: "},
		{hangar.TokenCreate{Kind: hangar.TokenReadOnly, Actions: hangar.ActionWrite}, "actions: "},
		{hangar.TokenCreate{Kind: hangar.TokenMachineExec, Commands: ls}, "read,control"},
		{hangar.TokenCreate{Kind: hangar.TokenMachineExec}, "commands: "},
		{hangar.TokenCreate{Kind: hangar.TokenMachineExec, Commands: []hangar.CommandRule{{}}}, "commands[0].args: "},
		{hangar.TokenCreate{Kind: hangar.TokenMetrics, Apps: web}, "metrics"},
		{hangar.TokenCreate{Kind: hangar.TokenCustom, Actions: hangar.ActionWrite}, "write"},
		{hangar.TokenCreate{Kind: hangar.TokenCustom}, "actions: "},
		{hangar.TokenCreate{Kind: hangar.TokenCustom, Actions: hangar.ActionRead, Commands: ls}, "commands: "},
		{hangar.TokenCreate{Kind: hangar.TokenOrg, Expiry: "soon"}, "expiry: "},
		{hangar.TokenCreate{Kind: "royal"}, "kind: "},
	} {
		test.in.Org = "a"
		g, err := test.in.GrantOf(now)
		if field, refused := strings.CutSuffix(test.want, ": "); refused {
			if hangar.CodeOf(err) != hangar.CodeInvalid || !strings.HasPrefix(err.Error(), "invalid "+field+": ") {
				t.Errorf("%+v: %v, want a refusal that names %s", test.in, err, field)
			}
			continue
		}
		if err != nil || g.Actions.String() != test.want || !g.Until.Equal(now.Add(hangar.DefaultTokenLifetime)) {
			t.Errorf("%+v: %+v, %v; want %s", test.in, g, err, test.want)
		}
	}
}

func TestActionsInJSON(t *testing.T) {
	for mask := hangar.Action(0); mask <= hangar.ActionAll; mask++ {
		raw, err := json.Marshal(mask)
		var again hangar.Action
		if err != nil || json.Unmarshal(raw, &again) != nil || again != mask {
			t.Errorf("%d is written as %s, %v, and read as %d", mask, raw, err, again)
		}
	}
	for _, bad := range []string{`["fly"]`, `"read"`, `7`, `{}`} {
		var a hangar.Action
		if err := json.Unmarshal([]byte(bad), &a); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%s is read as %s, %v", bad, a, err)
		}
	}
}

func TestRepositoryTarget(t *testing.T) {
	for repository, want := range map[hangar.RepositoryName]hangar.Target{
		"personal/web": {Org: "personal", App: "web"}, "personal/web/part": {Org: "personal", App: "web"}, "shared": {}, "": {},
	} {
		if got := repository.Target(); got != want {
			t.Errorf("%q: %+v, want %+v", repository, got, want)
		}
	}
}

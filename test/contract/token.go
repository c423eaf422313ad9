package contract

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// TokenService checks an implementation of hangar.TokenService, and that all services
// keep to what tokens allow.
func TokenService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"create and list":     tokenCreate,
		"bad wishes":          tokenBadWishes,
		"revoke":              tokenRevoke,
		"current":             tokenCurrent,
		"no more than one's":  tokenEscalation,
		"deploy":              tokenDeploy,
		"org":                 tokenOrg,
		"read only":           tokenReadOnly,
		"machine exec":        tokenMachineExec,
		"metrics":             tokenMetrics,
		"one machine":         tokenOneMachine,
		"several tokens":      tokenSeveral,
		"other organizations": tokenStranger,
		"authenticate":        accessAuthenticate,
		"authorize":           accessAuthorize,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

// with makes a token, which goes with the test, and returns its holder's harness.
func (h Harness) with(t *testing.T, in hangar.TokenCreate) Harness {
	t.Helper()
	return h.As(t, h.newToken(t, in).Text)
}

func (h Harness) newToken(t *testing.T, in hangar.TokenCreate) *hangar.NewToken {
	t.Helper()
	if in.Org == "" {
		in.Org = hangar.OrgPersonal
	}
	made, err := h.Tokens.CreateToken(h.Context(t), in)
	must(t, "create token", err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.Context(t)), patience)
		defer cancel()
		if err := h.Tokens.RevokeToken(ctx, string(made.ID)); err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
			t.Errorf("revoke: %v", err)
		}
	})
	return made
}

// void checks that a token opens nothing.
func (h Harness) void(t *testing.T, text string) {
	t.Helper()
	holder := h.As(t, text)
	_, err := holder.Apps.Apps(holder.Context(t), hangar.AppFilter{})
	wantError(t, "use a void token", err, hangar.CodeUnauthenticated, "")
}

func tokenCreate(t *testing.T, h Harness) {
	app := h.newApp(t)
	name := string(uniqueName())
	made := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, Name: name, User: "ci@example.com", Apps: []hangar.AppName{app}, Expiry: "720h"})
	left := made.Grant.Until.Sub(made.CreatedAt)
	switch {
	case made.ID == "" || made.Name != name || made.Kind != hangar.TokenDeploy || made.User != "ci@example.com" || made.CreatedAt.IsZero() || made.CreatedBy == "":
		t.Errorf("created token is incomplete: %+v", made)
	case made.Grant.Org != hangar.OrgPersonal || !slices.Equal(made.Grant.Apps, []hangar.AppName{app}) || made.Grant.Actions != hangar.ActionAll:
		t.Errorf("created token allows %+v", made.Grant)
	case left < 719*time.Hour || left > 721*time.Hour:
		t.Errorf("expires in %s, want 720h", left)
	case !strings.Contains(made.Text, string(made.ID)) || len(made.Text) < 40:
		t.Errorf("text %q of token %s", made.Text, made.ID)
	}
	for _, filter := range []hangar.TokenFilter{{}, {Org: hangar.OrgPersonal}, {App: app}, {Org: hangar.OrgPersonal, App: app}} {
		list, err := h.Tokens.Tokens(h.Context(t), filter)
		must(t, "list", err)
		i := slices.IndexFunc(list, func(o *hangar.Token) bool { return o.ID == made.ID })
		if i < 0 {
			t.Errorf("%+v lists %d tokens, not the one that was made", filter, len(list))
			continue
		}
		got := *list[i]
		got.LastUsed = time.Time{}
		if got.Name != made.Name || got.User != made.User || !got.Grant.Until.Equal(made.Grant.Until) || got.Grant.Actions != made.Grant.Actions {
			t.Errorf("listed %+v, want %+v", got, made.Token)
		}
	}
	empty, err := h.Tokens.Tokens(h.Context(t), hangar.TokenFilter{Org: h.newOrg(t)})
	must(t, "list of another organization", err)
	if len(empty) != 0 {
		t.Errorf("an organization without tokens has %d", len(empty))
	}
	unowned, err := h.Tokens.CreateToken(h.Context(t), hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{app}})
	must(t, "create for an app alone", err)
	if unowned.Grant.Org != hangar.OrgPersonal {
		t.Errorf("a token for an app is of organization %q", unowned.Grant.Org)
	}
	must(t, "revoke", h.Tokens.RevokeToken(h.Context(t), string(unowned.ID)))
	never := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{app}, Expiry: hangar.ExpiryNever})
	if !never.Grant.Until.IsZero() {
		t.Errorf("a token that never expires does so at %s", never.Grant.Until)
	}
	unsaid := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{app}})
	if left := unsaid.Grant.Until.Sub(unsaid.CreatedAt); left < 89*24*time.Hour || left > 91*24*time.Hour {
		t.Errorf("a token expires in %s unless something is said, want 90 days", left)
	}
}

func tokenBadWishes(t *testing.T, h Harness) {
	app := h.newApp(t)
	apps := []hangar.AppName{app}
	for what, test := range map[string]struct {
		in     hangar.TokenCreate
		code   hangar.Code
		reason string
	}{
		"unknown kind":          {hangar.TokenCreate{Kind: "royal"}, hangar.CodeInvalid, ""},
		"deploy without app":    {hangar.TokenCreate{Kind: hangar.TokenDeploy}, hangar.CodeInvalid, ""},
		"org with app":          {hangar.TokenCreate{Kind: hangar.TokenOrg, Apps: apps}, hangar.CodeInvalid, ""},
		"no commands":           {hangar.TokenCreate{Kind: hangar.TokenMachineExec}, hangar.CodeInvalid, ""},
		"no actions":            {hangar.TokenCreate{Kind: hangar.TokenCustom}, hangar.CodeInvalid, ""},
		"bad expiry":            {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: apps, Expiry: "soon"}, hangar.CodeInvalid, ""},
		"expired":               {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: apps, Expiry: "-1h"}, hangar.CodeInvalid, ""},
		"long name":             {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: apps, Name: strings.Repeat("n", 101)}, hangar.CodeInvalid, ""},
		"unknown app":           {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{uniqueName()}}, hangar.CodeNotFound, hangar.ReasonAppNotFound},
		"unknown org":           {hangar.TokenCreate{Kind: hangar.TokenOrg, Org: hangar.OrgSlug(uniqueName())}, hangar.CodeNotFound, hangar.ReasonOrgNotFound},
		"app of another org":    {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: apps, Org: h.newOrg(t)}, hangar.CodeNotFound, hangar.ReasonAppNotFound},
		"unknown machine":       {hangar.TokenCreate{Kind: hangar.TokenReadOnly, Apps: apps, Machines: []hangar.MachineID{"00000000000000"}}, hangar.CodeNotFound, hangar.ReasonMachineNotFound},
		"machine without app":   {hangar.TokenCreate{Kind: hangar.TokenReadOnly, Machines: []hangar.MachineID{"00000000000000"}}, hangar.CodeInvalid, ""},
		"impossible machine id": {hangar.TokenCreate{Kind: hangar.TokenReadOnly, Apps: apps, Machines: []hangar.MachineID{"x"}}, hangar.CodeInvalid, ""},
	} {
		if test.in.Org == "" {
			test.in.Org = hangar.OrgPersonal
		}
		_, err := h.Tokens.CreateToken(h.Context(t), test.in)
		wantError(t, what, err, test.code, test.reason)
	}
}

func tokenRevoke(t *testing.T, h Harness) {
	app := h.newApp(t)
	name := string(uniqueName())
	in := hangar.TokenCreate{Kind: hangar.TokenDeploy, Name: name, Apps: []hangar.AppName{app}}
	a, b := h.newToken(t, in), h.newToken(t, in)
	wantError(t, "revoke by a name of two", h.Tokens.RevokeToken(h.Context(t), name), hangar.CodeConflict, "")
	for _, made := range []*hangar.NewToken{a, b} {
		holder := h.As(t, made.Text)
		_, err := holder.Apps.App(holder.Context(t), app)
		must(t, "use", err)
	}
	must(t, "revoke by id", h.Tokens.RevokeToken(h.Context(t), string(a.ID)))
	h.void(t, a.Text)
	must(t, "revoke by name", h.Tokens.RevokeToken(h.Context(t), name))
	h.void(t, b.Text)
	for _, gone := range []string{string(a.ID), name, "nothing", "../apps", "admin token"} {
		wantError(t, "revoke "+gone, h.Tokens.RevokeToken(h.Context(t), gone), hangar.CodeNotFound, hangar.ReasonTokenNotFound)
	}
}

func tokenCurrent(t *testing.T, h Harness) {
	app := h.newApp(t)
	a := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, User: "ci@example.com", Apps: []hangar.AppName{app}})
	b := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenReadOnly})
	holder := h.As(t, a.Text+","+b.Text)
	list, err := holder.Tokens.CurrentTokens(holder.Context(t))
	must(t, "current", err)
	if len(list) != 2 || list[0].ID != a.ID || list[0].User != "ci@example.com" || list[1].ID != b.ID {
		t.Errorf("presented %s and %s, got %+v", a.ID, b.ID, list)
	}
}

// tokenEscalation: no token makes, shows or revokes one that allows more.
func tokenEscalation(t *testing.T, h Harness) {
	app, other := h.newApp(t), h.newApp(t)
	apps := []hangar.AppName{app}
	ls := []hangar.CommandRule{{Args: []string{"ls"}, Exact: true}}
	org := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenOrg})
	own := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: apps, Expiry: "24h"})
	deploy := h.As(t, own.Text)
	ctx := deploy.Context(t)
	for what, test := range map[string]struct {
		in   hangar.TokenCreate
		code hangar.Code
	}{
		"org":         {hangar.TokenCreate{Kind: hangar.TokenOrg, Expiry: "1h"}, hangar.CodeForbidden},
		"another app": {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{other}, Expiry: "1h"}, hangar.CodeNotFound},
		"both apps":   {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{app, other}, Expiry: "1h"}, hangar.CodeNotFound},
		"for longer":  {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: apps, Expiry: "48h"}, hangar.CodeForbidden},
		"endless":     {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: apps, Expiry: hangar.ExpiryNever}, hangar.CodeForbidden},
		"for a user":  {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: apps, Expiry: "1h", User: "root"}, hangar.CodeForbidden},
	} {
		_, err := deploy.Tokens.CreateToken(ctx, test.in)
		wantError(t, what, err, test.code, "")
	}
	less, err := deploy.Tokens.CreateToken(ctx, hangar.TokenCreate{Kind: hangar.TokenMachineExec, Apps: apps, Commands: ls, Expiry: "1h"})
	must(t, "create one that allows less", err)
	unsaid, err := deploy.Tokens.CreateToken(ctx, hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: apps})
	must(t, "create one without saying for how long", err)
	if !unsaid.Grant.Until.Equal(own.Grant.Until) {
		t.Errorf("made until %s by a token that is valid until %s", unsaid.Grant.Until, own.Grant.Until)
	}
	must(t, "revoke it", deploy.Tokens.RevokeToken(ctx, string(unsaid.ID)))
	list, err := deploy.Tokens.Tokens(ctx, hangar.TokenFilter{})
	must(t, "list", err)
	for _, token := range list {
		if !slices.Equal(token.Grant.Apps, apps) {
			t.Errorf("a deploy token sees token %s for %+v", token.ID, token.Grant)
		}
	}
	wantError(t, "revoke a greater one", deploy.Tokens.RevokeToken(ctx, string(org.ID)), hangar.CodeNotFound, hangar.ReasonTokenNotFound)
	must(t, "revoke a lesser one", deploy.Tokens.RevokeToken(ctx, string(less.ID)))
	h.void(t, less.Text)

	reader := h.with(t, hangar.TokenCreate{Kind: hangar.TokenReadOnly})
	_, err = reader.Tokens.CreateToken(reader.Context(t), hangar.TokenCreate{Kind: hangar.TokenReadOnly, Expiry: "1h"})
	wantError(t, "a reader makes a reader", err, hangar.CodeForbidden, "")
	_, err = reader.Tokens.Tokens(reader.Context(t), hangar.TokenFilter{})
	wantError(t, "a reader lists tokens", err, hangar.CodeForbidden, "")
	_, err = reader.Tokens.Tokens(reader.Context(t), hangar.TokenFilter{Org: hangar.OrgPersonal})
	wantError(t, "a reader lists tokens of the organization", err, hangar.CodeForbidden, "")
}

func tokenDeploy(t *testing.T, h Harness) {
	app, other := h.newApp(t), h.newApp(t)
	foreign := h.stopped(t, other)
	holder := h.with(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{app}})
	ctx := holder.Context(t)
	m := holder.started(t, app)
	must(t, "stop", holder.Machines.StopMachine(ctx, m.Ref(), hangar.MachineStop{Signal: 9}))
	holder.wait(t, m.Ref(), hangar.MachineStopped)
	must(t, "destroy", holder.Machines.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{}))
	apps, err := holder.Apps.Apps(ctx, hangar.AppFilter{})
	must(t, "list apps", err)
	if len(apps) != 1 || apps[0].Name != app {
		t.Errorf("a deploy token lists %d apps", len(apps))
	}
	_, err = holder.Apps.CreateApp(ctx, hangar.AppCreate{Name: uniqueName()})
	wantError(t, "create an app", err, hangar.CodeForbidden, "")
	_, err = holder.Machines.Machines(ctx, other, hangar.MachineFilter{})
	wantError(t, "list machines of another app", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = holder.Machines.Machine(ctx, foreign.Ref())
	wantError(t, "get a machine of another app", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	wantError(t, "destroy another app", holder.Apps.DestroyApp(ctx, other, true), hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = holder.Orgs.CreateOrg(ctx, hangar.OrgCreate{Slug: "mine"})
	wantError(t, "create an organization", err, hangar.CodeForbidden, "")
	wantError(t, "delete its organization", holder.Orgs.DeleteOrg(ctx, hangar.OrgPersonal), hangar.CodeForbidden, "")
}

func tokenOrg(t *testing.T, h Harness) {
	slug := h.newOrg(t)
	holder := h.with(t, hangar.TokenCreate{Kind: hangar.TokenOrg, Org: slug})
	ctx := holder.Context(t)
	name := uniqueName()
	made, err := holder.Apps.CreateApp(ctx, hangar.AppCreate{Name: name})
	must(t, "create an app", err)
	t.Cleanup(func() { h.dropApp(t, name) })
	if made.Org.Slug != slug {
		t.Errorf("an app that names no organization is of %q, want %q", made.Org.Slug, slug)
	}
	orgs, err := holder.Orgs.Orgs(ctx)
	must(t, "list organizations", err)
	if len(orgs) != 1 || orgs[0].Slug != slug {
		t.Errorf("an org token lists %d organizations", len(orgs))
	}
	must(t, "destroy the app", holder.Apps.DestroyApp(ctx, name, true))
}

func tokenReadOnly(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.stopped(t, app)
	holder := h.with(t, hangar.TokenCreate{Kind: hangar.TokenReadOnly})
	ctx := holder.Context(t)
	_, err := holder.Machines.Machine(ctx, m.Ref())
	must(t, "get", err)
	_, err = holder.Machines.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}})
	must(t, "wait", err)
	_, err = holder.Machines.StartMachine(ctx, m.Ref())
	wantError(t, "start", err, hangar.CodeForbidden, "")
	_, err = holder.Machines.UpdateMachine(ctx, m.Ref(), hangar.MachineUpdate{Config: h.config()})
	wantError(t, "update", err, hangar.CodeForbidden, "")
	err = holder.Machines.SetMachineMetadata(ctx, m.Ref(), hangar.MetadataPair{Key: "role", Value: "db"})
	wantError(t, "annotate", err, hangar.CodeForbidden, "")
	_, err = holder.Machines.AcquireLease(ctx, m.Ref(), hangar.LeaseAcquire{})
	wantError(t, "lease", err, hangar.CodeForbidden, "")
	wantError(t, "cordon", holder.Machines.CordonMachine(ctx, m.Ref()), hangar.CodeForbidden, "")
	_, err = holder.Machines.CreateMachine(ctx, app, hangar.MachineCreate{Config: h.config()})
	wantError(t, "create", err, hangar.CodeForbidden, "")
	wantError(t, "destroy", holder.Machines.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}), hangar.CodeForbidden, "")
	wantError(t, "destroy the app", holder.Apps.DestroyApp(ctx, app, true), hangar.CodeForbidden, "")
	_, err = holder.Apps.CreateApp(ctx, hangar.AppCreate{Name: uniqueName(), Org: hangar.OrgPersonal})
	wantError(t, "create an app", err, hangar.CodeForbidden, "")
	_, err = holder.Machines.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: h.Exit(0)}, hangar.ExecStreams{})
	wantError(t, "exec", err, hangar.CodeForbidden, "")
}

func tokenMachineExec(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.started(t, app)
	exact, prefix := h.Exit(3), h.Exit(4)
	holder := h.with(t, hangar.TokenCreate{Kind: hangar.TokenMachineExec, Apps: []hangar.AppName{app}, Commands: []hangar.CommandRule{
		{Args: exact, Exact: true}, {Args: prefix[:1], Exact: false},
	}})
	ctx := holder.Context(t)
	for code, command := range map[int][]string{3: exact, 4: prefix} {
		result, err := holder.Machines.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: command}, hangar.ExecStreams{})
		must(t, "exec", err)
		if result.ExitCode != code {
			t.Errorf("%v ends with %d", command, result.ExitCode)
		}
	}
	for _, command := range [][]string{h.Sleep, {"/bin" + prefix[0]}, {prefix[0] + "x"}} {
		_, err := holder.Machines.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: command}, hangar.ExecStreams{})
		wantError(t, "exec "+strings.Join(command, " "), err, hangar.CodeForbidden, "")
	}
	narrow := h.with(t, hangar.TokenCreate{Kind: hangar.TokenMachineExec, Apps: []hangar.AppName{app}, Commands: []hangar.CommandRule{{Args: exact, Exact: true}}})
	_, err := narrow.Machines.ExecMachine(narrow.Context(t), m.Ref(), hangar.ExecRequest{Command: append(slices.Clone(exact), "more")}, hangar.ExecStreams{})
	wantError(t, "exec with one more argument", err, hangar.CodeForbidden, "")
	wantError(t, "stop", holder.Machines.StopMachine(ctx, m.Ref(), hangar.MachineStop{}), hangar.CodeForbidden, "")
	wantError(t, "signal", holder.Machines.SignalMachine(ctx, m.Ref(), 9), hangar.CodeForbidden, "")
	_, err = holder.Machines.Machine(ctx, m.Ref())
	must(t, "get", err)
}

func tokenMetrics(t *testing.T, h Harness) {
	app := h.newApp(t)
	holder := h.with(t, hangar.TokenCreate{Kind: hangar.TokenMetrics})
	_, err := holder.Apps.App(holder.Context(t), app)
	wantError(t, "get", err, hangar.CodeForbidden, "")
	_, err = holder.Machines.Machines(holder.Context(t), app, hangar.MachineFilter{})
	wantError(t, "list machines", err, hangar.CodeForbidden, "")
}

func tokenOneMachine(t *testing.T, h Harness) {
	app := h.newApp(t)
	m, other := h.stopped(t, app), h.stopped(t, app)
	holder := h.with(t, hangar.TokenCreate{
		Kind: hangar.TokenCustom, Apps: []hangar.AppName{app}, Machines: []hangar.MachineID{m.ID}, Actions: hangar.ActionRead | hangar.ActionControl,
	})
	ctx := holder.Context(t)
	list, err := holder.Machines.Machines(ctx, app, hangar.MachineFilter{})
	must(t, "list", err)
	if len(list) != 1 || list[0].ID != m.ID {
		t.Errorf("lists %d machines", len(list))
	}
	_, err = holder.Machines.StartMachine(ctx, m.Ref())
	must(t, "start", err)
	holder.wait(t, m.Ref(), hangar.MachineStarted)
	_, err = holder.Machines.Machine(ctx, other.Ref())
	wantError(t, "get another", err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	_, err = holder.Machines.StartMachine(ctx, other.Ref())
	wantError(t, "start another", err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	wantError(t, "destroy", holder.Machines.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}), hangar.CodeForbidden, "")
}

func tokenSeveral(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.stopped(t, app)
	reader := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenReadOnly})
	stranger := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenOrg, Org: h.newOrg(t)})
	deploy := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{app}})
	both := h.As(t, stranger.Text+", void,"+reader.Text)
	_, err := both.Machines.Machine(both.Context(t), m.Ref())
	must(t, "read with any of several tokens", err)
	_, err = both.Machines.StartMachine(both.Context(t), m.Ref())
	wantError(t, "start with none that allows it", err, hangar.CodeForbidden, "")
	all := h.As(t, stranger.Text+","+reader.Text+","+deploy.Text)
	_, err = all.Machines.StartMachine(all.Context(t), m.Ref())
	must(t, "start with the last of several tokens", err)
}

// tokenStranger: an organization cannot be told from a missing one, except by whether the name of
// an App is taken.
func tokenStranger(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.stopped(t, app)
	none := hangar.MachineRef{App: uniqueName(), ID: "00000000000000"}
	holder := h.with(t, hangar.TokenCreate{Kind: hangar.TokenOrg, Org: h.newOrg(t)})
	ctx := holder.Context(t)
	for what, call := range map[string]func(ref hangar.MachineRef) error{
		"get":   func(ref hangar.MachineRef) error { _, err := holder.Machines.Machine(ctx, ref); return err },
		"start": func(ref hangar.MachineRef) error { _, err := holder.Machines.StartMachine(ctx, ref); return err },
		"destroy": func(ref hangar.MachineRef) error {
			return holder.Machines.DestroyMachine(ctx, ref, hangar.MachineDestroy{})
		},
		"destroy app": func(ref hangar.MachineRef) error {
			return holder.Apps.DestroyApp(ctx, ref.App, true)
		},
		"list": func(ref hangar.MachineRef) error {
			_, err := holder.Machines.Machines(ctx, ref.App, hangar.MachineFilter{})
			return err
		},
		"create": func(ref hangar.MachineRef) error {
			_, err := holder.Machines.CreateMachine(ctx, ref.App, hangar.MachineCreate{Config: h.config()})
			return err
		},
		"create token": func(ref hangar.MachineRef) error {
			_, err := holder.Tokens.CreateToken(ctx, hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{ref.App}})
			return err
		},
		"list tokens": func(ref hangar.MachineRef) error {
			_, err := holder.Tokens.Tokens(ctx, hangar.TokenFilter{App: ref.App})
			return err
		},
		"exec": func(ref hangar.MachineRef) error {
			_, err := holder.Machines.ExecMachine(ctx, ref, hangar.ExecRequest{Command: h.Sleep}, hangar.ExecStreams{})
			return err
		},
	} {
		found, lost := call(m.Ref()), call(none)
		wantError(t, what, found, hangar.CodeNotFound, hangar.ReasonAppNotFound)
		wantError(t, what+" nothing", lost, hangar.CodeNotFound, hangar.ReasonAppNotFound)
		if strings.ReplaceAll(found.Error(), string(app), "X") != strings.ReplaceAll(lost.Error(), string(none.App), "X") {
			t.Errorf("%s: %q for what is there, %q for what is not", what, found, lost)
		}
	}
	_, err := holder.Orgs.Org(ctx, hangar.OrgPersonal)
	wantError(t, "get the organization", err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	_, err = holder.Apps.Apps(ctx, hangar.AppFilter{Org: hangar.OrgPersonal})
	wantError(t, "list its apps", err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	_, err = holder.Apps.App(ctx, app)
	wantError(t, "get the app", err, hangar.CodeForbidden, "")
	_, err = holder.Apps.CreateApp(ctx, hangar.AppCreate{Name: app})
	wantError(t, "create an app of that name", err, hangar.CodeInvalid, hangar.ReasonNameTaken)
}

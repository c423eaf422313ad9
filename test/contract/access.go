package contract

import (
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
)

// header presents tokens as a client would to a service that asks about them.
func header(text string) hangar.Authorization { return hangar.Authorization("Bearer " + text) }

func accessAuthenticate(t *testing.T, h Harness) {
	app := h.newApp(t)
	a := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, User: "ci@example.com", Apps: []hangar.AppName{app}})
	b := h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenReadOnly, Org: h.newOrg(t)})
	asker := h.with(t, hangar.TokenCreate{Kind: hangar.TokenReadOnly, Org: h.newOrg(t)})
	ctx := asker.Context(t)
	list, err := asker.Tokens.AuthenticateTokens(ctx, header(a.Text+",void,"+b.Text))
	must(t, "authenticate", err)
	if len(list) != 2 || list[0].ID != a.ID || list[0].User != "ci@example.com" || list[1].ID != b.ID {
		t.Errorf("presented %s and %s, got %+v", a.ID, b.ID, list)
	}
	must(t, "revoke", h.Tokens.RevokeToken(h.Context(t), string(a.ID)))
	for what, bad := range map[string]hangar.Authorization{
		"a void token": header(a.Text), "no token": header("void"), "no scheme": hangar.Authorization(b.Text), "another scheme": "Basic " + hangar.Authorization(b.Text),
	} {
		_, err := asker.Tokens.AuthenticateTokens(ctx, bad)
		wantError(t, "authenticate "+what, err, hangar.CodeInvalid, hangar.ReasonTokenInvalid)
		_, err = asker.Tokens.Authorize(ctx, bad, hangar.Access{Actions: hangar.ActionRead, App: app})
		wantError(t, "authorize "+what, err, hangar.CodeInvalid, hangar.ReasonTokenInvalid)
	}
	_, err = h.As(t, a.Text).Tokens.AuthenticateTokens(h.As(t, a.Text).Context(t), header(b.Text))
	wantError(t, "authenticate without a token", err, hangar.CodeUnauthenticated, "")
}

// accessAuthorize asks for a caller that may not do the same itself.
func accessAuthorize(t *testing.T, h Harness) {
	app, other := h.newApp(t), h.newApp(t)
	own, foreign := h.stopped(t, app), h.stopped(t, other)
	ls := []string{"ls", "-l"}
	data, elsewhere := h.newVolume(t, app, hangar.VolumeCreate{}), h.newVolume(t, other, hangar.VolumeCreate{})
	slug := h.newOrg(t)
	asker := h.with(t, hangar.TokenCreate{Kind: hangar.TokenReadOnly, Org: slug})
	ctx := asker.Context(t)
	deploy := header(h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{app}}).Text)
	reader := header(h.newToken(t, hangar.TokenCreate{Kind: hangar.TokenReadOnly}).Text)
	execs := header(h.newToken(t, hangar.TokenCreate{
		Kind: hangar.TokenMachineExec, Apps: []hangar.AppName{app}, Commands: []hangar.CommandRule{{Args: ls[:1]}},
	}).Text)
	const read, control = hangar.ActionRead, hangar.ActionControl
	nothing := hangar.MachineID("00000000000000")
	for what, test := range map[string]struct {
		header  hangar.Authorization
		in      hangar.Access
		allowed bool
	}{
		"all of its app":           {deploy, hangar.Access{Actions: hangar.ActionAll, App: app}, true},
		"a machine of its app":     {deploy, hangar.Access{Actions: control | read, App: app, Machine: own.ID}, true},
		"with the organization":    {deploy, hangar.Access{Actions: read, Org: hangar.OrgPersonal, App: app}, true},
		"another organization":     {deploy, hangar.Access{Actions: read, Org: slug, App: app}, false},
		"a machine of another":     {deploy, hangar.Access{Actions: read, App: app, Machine: foreign.ID}, false},
		"no machine":               {deploy, hangar.Access{Actions: read, App: app, Machine: nothing}, false},
		"a volume of its app":      {deploy, hangar.Access{Actions: hangar.ActionAll, App: app, Volume: data.ID}, true},
		"a volume to read":         {reader, hangar.Access{Actions: read, App: app, Volume: data.ID}, true},
		"a volume of another":      {deploy, hangar.Access{Actions: read, App: app, Volume: elsewhere.ID}, false},
		"no volume":                {deploy, hangar.Access{Actions: read, App: app, Volume: hangar.NewVolumeID()}, false},
		"a reader writes a volume": {reader, hangar.Access{Actions: hangar.ActionWrite, App: app, Volume: data.ID}, false},
		"another app":              {deploy, hangar.Access{Actions: read, App: other}, false},
		"no app":                   {deploy, hangar.Access{Actions: read, App: uniqueName()}, false},
		"the organization itself":  {deploy, hangar.Access{Actions: read, Org: hangar.OrgPersonal}, false},
		"a reader reads":           {reader, hangar.Access{Actions: read, Org: hangar.OrgPersonal}, true},
		"a reader writes, too":     {reader, hangar.Access{Actions: read | hangar.ActionWrite, App: app}, false},
		"no organization":          {reader, hangar.Access{Actions: read, Org: hangar.OrgSlug(uniqueName())}, false},
		"a command":                {execs, hangar.Access{Actions: control, App: app, Machine: own.ID, Command: ls}, true},
		"another command":          {execs, hangar.Access{Actions: control, App: app, Machine: own.ID, Command: []string{"sh"}}, false},
		"more than commands":       {execs, hangar.Access{Actions: control, App: app, Machine: own.ID}, false},
		"a command for the reader": {reader, hangar.Access{Actions: control, App: app, Machine: own.ID, Command: ls}, false},
	} {
		got, err := asker.Tokens.Authorize(ctx, test.header, test.in)
		if !test.allowed {
			wantError(t, what, err, hangar.CodeForbidden, "")
			if err != nil && err.Error() != hangar.NoAccess().Error() {
				t.Errorf("%s: refused with %q, not in the words for all that is refused", what, err)
			}
			continue
		}
		must(t, what, err)
		test.in.Org = hangar.OrgPersonal
		if got.Actions != test.in.Actions || got.Org != test.in.Org || got.App != test.in.App || got.Machine != test.in.Machine || got.Volume != test.in.Volume ||
			!slices.Equal(got.Command, test.in.Command) {
			t.Errorf("%s: allowed %+v, want %+v", what, got, test.in)
		}
	}
	for what, in := range map[string]hangar.Access{
		"nothing":             {App: app},
		"to nothing":          {Actions: read},
		"a machine of no app": {Actions: read, Org: hangar.OrgPersonal, Machine: own.ID},
		"no id":               {Actions: read, App: app, Machine: "x"},
		"a volume of no app":  {Actions: read, Org: hangar.OrgPersonal, Volume: data.ID},
		"no id of a volume":   {Actions: read, App: app, Volume: "vol_1"},
		"a volume, a machine": {Actions: read, App: app, Machine: own.ID, Volume: data.ID},
		"a command to read":   {Actions: read, App: app, Command: ls},
	} {
		_, err := asker.Tokens.Authorize(ctx, reader, in)
		wantError(t, what, err, hangar.CodeInvalid, "")
	}
}

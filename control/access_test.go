package control_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
)

// names are the things that a call is about.
type names struct {
	org     hangar.OrgSlug
	app     hangar.AppName
	machine hangar.MachineID
	volume  hangar.VolumeID
	token   string // its name, and that of a secret, of a secret key, of a registry and of a peer
	header  hangar.Authorization
	address netip.Addr
	user    hangar.UserRef
	invited hangar.InvitationID
	release hangar.ReleaseID
	session hangar.ElectionSessionID // of the election that is called like the token
}

// missing are names as long as those, of nothing.
var missing = names{
	org: "personax", app: "wex", machine: "ffffffffffffff", volume: "vol_ffffffffffffffff", token: "thinx", address: netip.MustParseAddr("127.7.7.9"),
	user: "thinx@example.com", invited: "0000000000000000-0000000000000000", release: "0000000000000000-1",
	session: "0000000000000000",
}

func (n names) ref() hangar.MachineRef { return hangar.MachineRef{App: n.app, ID: n.machine} }

// argument makes up a value that a caller would pass: of a kind that is about
// something, that thing; of structs, with all such fields set.
func (n names) argument(t reflect.Type) reflect.Value {
	for _, v := range []any{
		n.org,
		n.app,
		n.machine,
		n.token,
		n.header,
		n.ref(),
		n.volume,
		n.address,
		n.user,
		n.invited,
		n.release,
		n.session,
		hangar.ElectionName(n.token),
		hangar.ElectionChange{Put: []hangar.ElectionPut{{Key: "primary", Value: "me", Session: n.session}}},
		hangar.ElectionSessionOpen{TTL: hangar.Duration(hangar.MaxElectionTTL)},
		hangar.UserInvite{Email: "new@example.com", Org: n.org, Role: hangar.RoleAdmin},
		hangar.UserFilter{Org: n.org},
		hangar.RoleMember,
		hangar.AddressCreate{Kind: hangar.AddressV4},
		hangar.VolumeRef{App: n.app, ID: n.volume},
		hangar.SecretKeyRef{App: n.app, Name: n.token},
		hangar.SecretKeySet{Type: hangar.SecretKeyNaClAuth, Value: hangar.NewSensitive(strings.Repeat("k", 32))},
		hangar.SecretKeyHS256,
		hangar.VolumeCreate{Name: "data"},
		hangar.Access{Actions: hangar.ActionRead, App: n.app, Machine: n.machine},
		wish("").Config,
		hangar.TokenCreate{Kind: hangar.TokenDeploy, Org: n.org, Apps: []hangar.AppName{n.app}},
		hangar.LogQuery{},
		hangar.ExecRequest{Command: []string{"ls"}},
		hangar.MachineDestroy{Force: true},
		hangar.PeerCreate{PublicKey: testKey(2)},
		hangar.Hostname(n.token + ".example.com"),
		hangar.CertificateCustom,
		hangar.RepositoryName(string(n.org) + "/" + string(n.app)),
		hangar.ActionRead,
		hangar.ProviderName(n.token),
		hangar.ProviderCreate{Name: "another", ProviderSettings: hangar.ProviderSettings{BaseURL: "https://another.example.com"}},
		hangar.ExtensionCreate{Provider: "thing", Name: "another"},
	} {
		if reflect.TypeOf(v) == t {
			return reflect.ValueOf(v)
		}
	}
	value := reflect.New(t).Elem()
	if t.Kind() == reflect.Struct {
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && f.Type.Kind() != reflect.String || f.Type == reflect.TypeFor[hangar.OrgSlug]() || f.Type == reflect.TypeFor[hangar.AppName]() {
				value.Field(i).Set(n.argument(f.Type))
			}
		}
	}
	return value
}

// method is one method of a service of the control plane.
type method struct {
	name string
	f    reflect.Value
}

// everyMethod finds the methods of all services that a control plane offers: what
// takes a context, on whatever its methods without arguments return.
func everyMethod(c *control.Control) []method {
	var found []method
	own := reflect.TypeOf(c)
	for accessor := range own.Methods() {
		if accessor.Type.NumIn() != 1 || accessor.Type.NumOut() != 1 || accessor.Type.Out(0).Kind() != reflect.Pointer {
			continue
		}
		service := accessor.Func.Call([]reflect.Value{reflect.ValueOf(c)})[0]
		for m := range service.Type().Methods() {
			f := service.MethodByName(m.Name)
			if f.Type().NumIn() > 0 && f.Type().In(0) == reflect.TypeFor[context.Context]() {
				found = append(found, method{service.Type().Elem().Name() + "." + m.Name, f})
			}
		}
	}
	return found
}

func (m method) call(ctx context.Context, n names) []reflect.Value {
	args := []reflect.Value{reflect.ValueOf(ctx)}
	for i := 1; i < m.f.Type().NumIn(); i++ {
		if m.f.Type().IsVariadic() && i == m.f.Type().NumIn()-1 {
			break
		}
		args = append(args, n.argument(m.f.Type().In(i)))
	}
	return m.f.Call(args)
}

// errorOf is the error among results, or the first one that a result yields.
func errorOf(t *testing.T, results []reflect.Value) error {
	t.Helper()
	last := results[len(results)-1]
	if last.Type().CanSeq2() {
		for _, v := range last.Seq2() {
			err, _ := reflect.TypeAssert[error](v)
			return err
		}
		t.Fatal("yields nothing")
	}
	err, _ := reflect.TypeAssert[error](last)
	return err
}

// world is a plane with something to find.
func world(t *testing.T) (*plane, names) {
	t.Helper()
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	m := p.machine(t, "web", "")
	const thing = "thing"
	_, err := p.Tokens().CreateToken(admin(t), hangar.TokenCreate{Name: thing, Kind: hangar.TokenDeploy, Org: hangar.OrgPersonal, Apps: []hangar.AppName{"web"}})
	if err != nil {
		t.Fatal(err)
	}
	p.setSecrets(t, "web", secret(thing, "plaintext"))
	p.generateKey(t, "web", thing, hangar.SecretKeyNaClAuth)
	p.login(t, thing, "me", "pass")
	p.peer(t, hangar.OrgPersonal, thing, 1)
	v := p.volume(t, "web", hangar.VolumeCreate{})
	p.snapshot(t, v.Ref())
	if _, err := p.Volumes().DrillVolumes(admin(t), "web"); err != nil {
		t.Fatal(err)
	}
	p.upload(t, "web", thing+".example.com")
	at := p.address(t, "web", hangar.AddressCreate{Kind: hangar.AddressV4})
	p.plantMember(t, thing)
	p.plantExtension(t, thing, m.AppID)
	invited := p.invite(t, hangar.UserInvite{Email: "pending@example.com", Org: hangar.OrgPersonal})
	released, err := p.Releases().CreateRelease(admin(t), "web", hangar.ReleaseCreate{})
	if err != nil {
		t.Fatal(err)
	}
	session, err := p.Elections().OpenElectionSession(admin(t), "web", thing, hangar.ElectionSessionOpen{TTL: hangar.Duration(hangar.MaxElectionTTL)})
	if err != nil {
		t.Fatal(err)
	}
	return p, names{session: session.ID, release: released.ID, user: thing + "@example.com", invited: invited.ID, org: hangar.OrgPersonal, app: "web", machine: m.ID, volume: v.ID, token: thing, header: p.header(t, "other"), address: at.IP}
}

// plantExtension makes a provider NAME, and writes the records of an extension NAME of the App web
// that is live.
func (p *plane) plantExtension(t *testing.T, name string, app hangar.AppID) {
	t.Helper()
	_, err := p.Providers().CreateProvider(admin(t), hangar.ProviderCreate{
		Name: hangar.ProviderName(name), ProviderSettings: hangar.ProviderSettings{BaseURL: "https://" + name + ".example.com"},
	})
	if err != nil {
		t.Fatal(err)
	}
	org, err := p.Orgs().Org(admin(t), hangar.OrgPersonal)
	if err != nil {
		t.Fatal(err)
	}
	var txn state.Txn
	for key, record := range map[string]any{
		state.ExtensionNamesPrefix + name: map[string]any{"org": org.ID, "id": name},
		state.ExtensionsPrefix + string(org.ID) + "/" + name: map[string]any{
			"id": name, "provider": name, "org_id": org.ID, "org_slug": org.Slug, "app_id": app, "app_name": "web", "phase": "live", "remote": "7",
			"body": map[string]any{"name": name, "id": name},
		},
	} {
		put, err := state.Write(key, record)
		if err != nil {
			t.Fatal(err)
		}
		txn.Then = append(txn.Then, put)
	}
	if _, err := p.store.Txn(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
}

// plantMember writes the records of a user NAME@example.com, a member of hangar.OrgPersonal who has
// signed in: to make one takes as long as it takes to compute a password's digest.
func (p *plane) plantMember(t *testing.T, name string) {
	t.Helper()
	org, err := p.Orgs().Org(admin(t), hangar.OrgPersonal)
	if err != nil {
		t.Fatal(err)
	}
	account := auth.Account{ID: "plantedplantedpl", SignIns: "tie1", Memberships: []auth.Membership{
		{Membership: hangar.Membership{OrgID: org.ID, Org: org.Slug, Role: hangar.RoleMember}, Tie: "tie2"},
	}}
	var txn state.Txn
	for key, record := range map[string]any{
		state.UserKey(account.ID): struct {
			auth.Account
			Name     string `json:"name"`
			Email    string `json:"email"`
			Customer string `json:"customer"`
		}{account, name, name + "@example.com", "planted"},
		state.EmailsPrefix + name + "@example.com": map[string]any{"user": account.ID},
		state.MemberKey(org.ID, account.ID):        map[string]any{"user": account.ID},
	} {
		put, err := state.Write(key, record)
		if err != nil {
			t.Fatal(err)
		}
		txn.Then = append(txn.Then, put)
	}
	revision, err := p.store.Txn(t.Context(), txn)
	if err != nil {
		t.Fatal(err)
	}
	p.auth.Learn(account.ID, &account, revision)
	if _, err := p.auth.IssueTied(t.Context(), hangar.Token{Name: "sign-in", Kind: hangar.TokenLogin, UserID: account.ID}, account.SignIns); err != nil {
		t.Fatal(err)
	}
}

// header is the credential of a caller that may do everything in an organization.
func (p *plane) header(t *testing.T, org hangar.OrgSlug) hangar.Authorization {
	t.Helper()
	orgID := hangar.OrgID("none") // there may be no such organization
	if found, err := p.Orgs().Org(admin(t), org); err == nil {
		orgID = found.ID
	}
	made, err := p.auth.Issue(t.Context(), hangar.Token{Name: "o", User: "you", Grant: hangar.Grant{Org: org, OrgID: orgID, Actions: hangar.ActionAll}})
	if err != nil {
		t.Fatal(err)
	}
	return hangar.Authorization("Bearer " + made.Text)
}

// TestEveryMethodIsGuarded calls every method of every service without a principal, as
// a member of another organization and with a token that allows nothing. A list may
// succeed as long as nothing of the organization is on it.
func TestEveryMethodIsGuarded(t *testing.T) {
	p, there := world(t)
	stranger := hangar.Principal{Subject: "you", Grants: []hangar.Grant{{Org: "other", Actions: hangar.ActionAll}}}
	powerless := hangar.Principal{Subject: "me", Grants: []hangar.Grant{{Org: hangar.OrgPersonal}}}
	before := p.records(t, "/")
	methods := everyMethod(p.Control)
	for _, m := range methods {
		t.Run(m.name, func(t *testing.T) {
			if code := hangar.CodeOf(errorOf(t, m.call(t.Context(), there))); code != hangar.CodeUnauthenticated {
				t.Errorf("without a principal: %q, want unauthenticated", code)
			}
			for who, principal := range map[string]hangar.Principal{"a stranger": stranger, "nobody": {}, "the powerless": powerless} {
				results := m.call(as(t, principal), there)
				err := errorOf(t, results)
				switch code := hangar.CodeOf(err); code {
				case hangar.CodeNotFound, hangar.CodeForbidden:
				case "":
					if results[0].Kind() != reflect.Slice {
						t.Errorf("%s succeeds", who)
					}
					raw, err := json.Marshal(results[0].Interface())
					if err != nil {
						t.Fatal(err)
					}
					for _, secret := range []string{string(there.org), string(there.app), string(there.machine), string(there.volume), there.token, there.address.String()} {
						if strings.Contains(string(raw), secret) {
							t.Errorf("%s learns of %s: %s", who, secret, raw)
						}
					}
				default:
					t.Errorf("%s: %v (%s), want forbidden or not found", who, err, code)
				}
			}
		})
	}
	if len(methods) < 25 {
		t.Errorf("only %d methods were called", len(methods))
	}
	if after := p.records(t, "/"); !reflect.DeepEqual(before, after) {
		t.Errorf("records %v became %v", before, after)
	}
}

// TestStrangersLearnNothing: what exists in another organization is answered as what
// does not exist, but for the two calls that say whether a name is taken.
func TestStrangersLearnNothing(t *testing.T) {
	p, there := world(t)
	stranger := hangar.Principal{Subject: "you", Grants: []hangar.Grant{{Org: "other", Actions: hangar.ActionAll}}}
	spoken := strings.NewReplacer(string(missing.org), string(there.org), string(missing.app), string(there.app),
		string(missing.machine), string(there.machine), string(missing.volume), string(there.volume), string(missing.invited), string(there.invited), missing.token, there.token, missing.address.String(), there.address.String())
	for _, m := range everyMethod(p.Control) {
		if m.name == "Apps.App" {
			continue
		}
		nowhere := missing
		nowhere.header = there.header
		found, lost := errorOf(t, m.call(as(t, stranger), there)), errorOf(t, m.call(as(t, stranger), nowhere))
		if hangar.CodeOf(found) != hangar.CodeOf(lost) || hangar.ReasonOf(found) != hangar.ReasonOf(lost) {
			t.Errorf("%s: %v for what is there, %v for what is not", m.name, found, lost)
		}
		if found != nil && found.Error() != spoken.Replace(lost.Error()) {
			t.Errorf("%s: %q for what is there, %q for what is not", m.name, found, lost)
		}
	}
	_, err := p.Apps().App(as(t, stranger), "web")
	wantError(t, err, hangar.CodeForbidden, "")
	_, err = p.Apps().App(as(t, stranger), "wex")
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	if _, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "other"}); err != nil {
		t.Fatal(err)
	}
	_, err = p.Apps().CreateApp(as(t, stranger), hangar.AppCreate{Name: "web"})
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonNameTaken)
}

// TestArgumentsAreGood: the calls above are refused because of their caller; made by an
// administrator, they find their targets.
func TestArgumentsAreGood(t *testing.T) {
	for _, m := range everyMethod(control.New(control.Config{})) {
		if m.f.Type().Out(m.f.Type().NumOut() - 1).CanSeq2() {
			continue // lasts as long as the Machine
		}
		t.Run(m.name, func(t *testing.T) {
			p, there := world(t)
			there.header = p.header(t, there.org)
			if _, err := p.Machines().AcquireLease(admin(t), there.ref(), hangar.LeaseAcquire{}); err != nil {
				t.Fatal(err)
			}
			for _, same := range everyMethod(p.Control) {
				if same.name != m.name {
					continue
				}
				switch err := errorOf(t, same.call(admin(t), there)); hangar.CodeOf(err) {
				case hangar.CodeUnauthenticated, hangar.CodeForbidden, hangar.CodeNotFound:
					if m.name != "Images.RemoveImage" && m.name != "Users.SignOut" { // no host has an image; there is no sign-in
						t.Errorf("an administrator: %v", err)
					}
				default:
				}
			}
		})
	}
}

// TestScopes: what tokens that are limited to Apps or Machines see.
func TestScopes(t *testing.T) {
	p, _ := world(t)
	web := p.machine(t, "web", "one")
	p.app(t, "api")
	other := p.machine(t, "api", "two")
	deploy := as(t, hangar.Principal{Subject: "d", Grants: []hangar.Grant{{Org: hangar.OrgPersonal, Apps: []hangar.AppName{"web"}, Actions: hangar.ActionAll}}})
	single := as(t, hangar.Principal{Subject: "m", Grants: []hangar.Grant{{
		Org: hangar.OrgPersonal, Apps: []hangar.AppName{"web"}, Machines: []hangar.MachineID{web.ID}, Actions: hangar.ActionRead | hangar.ActionControl,
		Commands: []hangar.CommandRule{{Args: []string{"ls"}}},
	}}})

	apps, err := p.Apps().Apps(deploy, hangar.AppFilter{Org: hangar.OrgPersonal})
	if err != nil || len(apps) != 1 || apps[0].Name != "web" {
		t.Errorf("a deploy token lists %v, %v", apps, err)
	}
	if _, err := p.Orgs().Org(deploy, hangar.OrgPersonal); err != nil {
		t.Errorf("a deploy token does not see its organization: %v", err)
	}
	_, err = p.Apps().CreateApp(deploy, hangar.AppCreate{Name: "new"})
	wantError(t, err, hangar.CodeForbidden, "")
	_, err = p.Machines().Machine(deploy, other.Ref())
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	if _, err = p.Machines().CreateMachine(deploy, "web", wish("")); err != nil {
		t.Error(err)
	}

	list, err := p.Machines().Machines(single, "web", hangar.MachineFilter{})
	if err != nil || len(list) != 1 || list[0].ID != web.ID {
		t.Errorf("a token of one machine lists %v, %v", list, err)
	}
	_, err = p.Apps().App(single, "web")
	wantError(t, err, hangar.CodeForbidden, "")
	_, err = p.Logs().Logs(single, "web", hangar.LogQuery{})
	wantError(t, err, hangar.CodeForbidden, "")
	if _, err = p.Logs().Logs(single, "web", hangar.LogQuery{Instance: web.ID}); err != nil {
		t.Error(err)
	}
	for _, m := range list {
		_, err = p.Machines().StartMachine(single, m.Ref())
		wantError(t, err, hangar.CodeForbidden, "")
		_, err = p.Machines().ExecMachine(single, m.Ref(), hangar.ExecRequest{Command: []string{"sh"}}, hangar.ExecStreams{})
		wantError(t, err, hangar.CodeForbidden, "")
		if _, err = p.Machines().ExecMachine(single, m.Ref(), hangar.ExecRequest{Command: []string{"ls", "/"}}, hangar.ExecStreams{}); err != nil {
			t.Error(err)
		}
	}
	all, err := p.Machines().Machines(deploy, "web", hangar.MachineFilter{})
	if err != nil || len(all) != 3 {
		t.Fatalf("machines of web: %v, %v", all, err)
	}
	for _, m := range all {
		if m.ID != web.ID {
			_, err = p.Machines().Machine(single, m.Ref())
			wantError(t, err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
		}
	}
}

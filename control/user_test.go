package control_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

const goodPassword = "correct horse battery staple"

func (p *plane) invite(t *testing.T, in hangar.UserInvite) *hangar.NewInvitation {
	t.Helper()
	made, err := p.Users().InviteUser(admin(t), in)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// join makes a user of an invitation.
func (p *plane) join(t *testing.T, in hangar.UserInvite) *hangar.User {
	t.Helper()
	user, err := p.SignIns().UseCode(t.Context(), hangar.CodeUse{Code: hangar.NewSensitive(p.invite(t, in).Code), Password: hangar.NewSensitive(goodPassword)})
	if err != nil {
		t.Fatal(err)
	}
	return user
}

// member makes a user NAME@example.com with one membership, who has signed in.
func (p *plane) member(t *testing.T, name string, org hangar.OrgSlug, role hangar.Role) (id hangar.UserID, credential string) {
	t.Helper()
	user := p.join(t, hangar.UserInvite{Email: name + "@example.com", Org: org, Role: role})
	return user.ID, p.signIn(t, name+"@example.com", goodPassword).Text
}

func (p *plane) signIn(t *testing.T, email, password string) *hangar.NewToken {
	t.Helper()
	made, err := p.SignIns().SignIn(t.Context(), hangar.SignIn{Email: email, Password: hangar.NewSensitive(password), Source: "here"})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// with is the context of a caller with a credential, which must be valid.
func (p *plane) with(t *testing.T, credential string) context.Context {
	t.Helper()
	who, err := p.auth.Authenticate(t.Context(), credential)
	if err != nil {
		t.Fatal(err)
	}
	return as(t, who)
}

func (p *plane) valid(t *testing.T, credential string) bool {
	t.Helper()
	_, err := p.auth.Authenticate(t.Context(), credential)
	return err == nil
}

func (p *plane) user(t *testing.T, ref hangar.UserRef) *hangar.User {
	t.Helper()
	user, err := p.Users().User(admin(t), ref)
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func TestInvitedUserSignsIn(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		acme := p.org(t, "acme")
		made := p.invite(t, hangar.UserInvite{Email: "Ann@Example.com", Org: "acme"})
		code := hangar.CodeUse{Code: hangar.NewSensitive(made.Code), Name: "Ann", Password: hangar.NewSensitive(goodPassword)}
		if got := p.used(t, "acme", hangar.QuotaMembers); got != 1 {
			t.Errorf("an invitation counts %d", got)
		}
		user, err := p.SignIns().UseCode(t.Context(), code)
		if err != nil {
			t.Fatal(err)
		}
		want := []hangar.Membership{{OrgID: acme.ID, Org: "acme", Role: hangar.RoleMember}}
		if user.Name != "Ann" || user.Email != "Ann@Example.com" || user.Admin || !slices.Equal(user.Memberships, want) || len(user.ID) != 16 || !user.LastSignIn.IsZero() {
			t.Errorf("made %+v", user)
		}
		if strings.HasPrefix(user.CustomerAddress, "ann@") || strings.Contains(user.CustomerAddress, "example") || !strings.HasSuffix(user.CustomerAddress, "@customer.localhost") || strings.Contains(user.CustomerAddress, string(user.ID)) {
			t.Errorf("customer address %s", user.CustomerAddress)
		}
		_, err = p.SignIns().UseCode(t.Context(), code) // once
		wantError(t, err, hangar.CodeInvalid, hangar.ReasonCodeInvalid)
		token := p.signIn(t, "ann@example.COM", goodPassword)
		if token.Kind != hangar.TokenLogin || token.UserID != user.ID || !token.Grant.Until.Equal(p.clock.Now().Add(hangar.SignInLifetime)) {
			t.Errorf("signed in with %+v", token.Token)
		}
		ctx := p.with(t, token.Text)
		me, err := p.Users().CurrentUser(ctx)
		if err != nil || me.ID != user.ID || me.CustomerAddress != user.CustomerAddress || !me.LastSignIn.Equal(p.clock.Now()) {
			t.Errorf("current user %+v, %v", me, err)
		}
		found, err := p.Users().Users(admin(t), hangar.UserFilter{CustomerAddress: strings.ToUpper(me.CustomerAddress)})
		if err != nil || len(found) != 1 || found[0].ID != me.ID {
			t.Errorf("of the customer address: %v, %v", found, err)
		}
		if _, err := p.Apps().CreateApp(ctx, hangar.AppCreate{Name: "web"}); err != nil {
			t.Errorf("a member creates an app in the only organization: %v", err)
		}
		if got := p.used(t, "acme", hangar.QuotaMembers); got != 1 {
			t.Errorf("a member counts %d", got)
		}
		p.restart(t)
		if !p.valid(t, token.Text) {
			t.Error("the token is not valid after a restart")
		}
		if err := p.Users().SignOut(p.with(t, token.Text)); err != nil || p.valid(t, token.Text) {
			t.Errorf("signed out, %v", err)
		}
		for _, item := range p.everything(t) {
			if strings.Contains(item, goodPassword) || strings.Contains(item, made.Code) {
				t.Errorf("the state holds a secret: %s", item)
			}
		}
	})
}

// TestSignInTellsNothing: the answer is the same for every cause.
func TestSignInTellsNothing(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.join(t, hangar.UserInvite{Email: "ann@example.com"})
	for _, in := range []hangar.SignIn{
		{Email: "ann@example.com", Password: hangar.NewSensitive(goodPassword + "r")},
		{Email: "ann@example.com"},
		{Email: "ann@example.com", Password: hangar.NewSensitive(strings.Repeat("x", 1<<16))},
		{Email: "bob@example.com", Password: hangar.NewSensitive(goodPassword)},
		{Email: "admin", Password: hangar.NewSensitive(goodPassword)},
		{Email: "", Password: hangar.NewSensitive(goodPassword)},
		{Email: "../users/admin", Password: hangar.NewSensitive(goodPassword)},
	} {
		_, err := p.SignIns().SignIn(t.Context(), in)
		wantError(t, err, hangar.CodeUnauthenticated, hangar.ReasonWrongPassword)
		if err.Error() != "The e-mail address or the password is wrong" {
			t.Errorf("%s: %v", in.Email, err)
		}
	}
	// A record that cannot be read opens nothing.
	for _, key := range []string{state.PasswordsPrefix, state.UsersPrefix} {
		for _, item := range p.records(t, key) {
			if strings.HasSuffix(item, "/admin") {
				continue
			}
			if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(item, []byte("{"))}}); err != nil {
				t.Fatal(err)
			}
		}
		_, err := p.SignIns().SignIn(t.Context(), hangar.SignIn{Email: "ann@example.com", Password: hangar.NewSensitive(goodPassword)})
		wantError(t, err, hangar.CodeUnauthenticated, hangar.ReasonWrongPassword)
	}
}

func TestInvitations(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.org(t, "acme")
		first := p.invite(t, hangar.UserInvite{Email: "ann@example.com", Org: "acme"})
		second := p.invite(t, hangar.UserInvite{Email: "ANN@example.com", Org: "acme", Role: hangar.RoleAdmin})
		if first.ID != second.ID || first.Code == second.Code {
			t.Errorf("invited as %s and %s", first.ID, second.ID)
		}
		list, err := p.Users().Invitations(admin(t), "acme")
		if err != nil || len(list) != 1 || list[0].Role != hangar.RoleAdmin || list[0].InvitedBy != "admin" || !list[0].ExpiresAt.Equal(p.clock.Now().Add(7*24*time.Hour)) {
			t.Errorf("invitations %+v, %v", list, err)
		}
		use := func(code string) error {
			_, err := p.SignIns().UseCode(t.Context(), hangar.CodeUse{Code: hangar.NewSensitive(code), Password: hangar.NewSensitive(goodPassword)})
			return err
		}
		for _, code := range []string{"", "hgi_", first.Code, second.Code[:len(second.Code)-1], second.Code + "x", "hgi_../users_x", "hgp_admin_x", strings.Repeat("x", 1000)} {
			wantError(t, use(code), hangar.CodeInvalid, hangar.ReasonCodeInvalid)
		}
		p.clock.advance(hangar.InvitationLifetime)
		wantError(t, use(second.Code), hangar.CodeInvalid, hangar.ReasonCodeInvalid)
		if list, err := p.Users().Invitations(admin(t), "acme"); err != nil || len(list) != 0 {
			t.Errorf("expired: %v, %v", list, err)
		}
		third := p.invite(t, hangar.UserInvite{Email: "bob@example.com", Org: "acme"})
		if got := p.used(t, "acme", hangar.QuotaMembers); got != 1 {
			t.Errorf("%d places are used: expired invitations count", got)
		}
		if err := p.Users().CancelInvitation(admin(t), third.ID); err != nil {
			t.Fatal(err)
		}
		wantError(t, p.Users().CancelInvitation(admin(t), third.ID), hangar.CodeNotFound, hangar.ReasonInvitationNotFound)
		wantError(t, use(third.Code), hangar.CodeInvalid, hangar.ReasonCodeInvalid)
		if got := p.used(t, "acme", hangar.QuotaMembers); got != 0 {
			t.Errorf("%d places are used", got)
		}
		// A deleted organization takes its invitations along, even if another gets its name.
		fourth := p.invite(t, hangar.UserInvite{Email: "bob@example.com", Org: "acme"})
		if err := p.Orgs().DeleteOrg(admin(t), "acme"); err != nil {
			t.Fatal(err)
		}
		p.org(t, "acme")
		wantError(t, use(fourth.Code), hangar.CodeInvalid, hangar.ReasonCodeInvalid)
	})
}

// TestOneAddressOneUser: of many who use codes of one address at once, one becomes the user.
func TestOneAddressOneUser(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		var all sync.WaitGroup
		var made atomic.Int32
		for i := range 4 {
			org := p.org(t, hangar.OrgSlug(fmt.Sprint("org", i)))
			email := []string{"ann@example.com", "Ann@example.com"}[i%2]
			code := p.invite(t, hangar.UserInvite{Email: email, Org: org.Slug}).Code
			all.Go(func() {
				_, err := p.SignIns().UseCode(t.Context(), hangar.CodeUse{Code: hangar.NewSensitive(code), Password: hangar.NewSensitive(goodPassword)})
				if err == nil {
					made.Add(1)
				} else if hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if users := p.records(t, state.UsersPrefix); made.Load() != 1 || len(users) != 2 {
			t.Errorf("%d made, users %v", made.Load(), users)
		}
	})
}

// TestAddressOfAnother: a user with another person's address does not become a member in that
// person's place: that needs the code, and the code needs the user.
func TestAddressOfAnother(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.org(t, "evil")
	p.org(t, "acme")
	_, squatter := p.member(t, "victim", "evil", hangar.RoleMember)
	code := hangar.NewSensitive(p.invite(t, hangar.UserInvite{Email: "victim@example.com", Org: "acme"}).Code)
	_, err := p.SignIns().UseCode(t.Context(), hangar.CodeUse{Code: code, Password: hangar.NewSensitive("another password")})
	wantError(t, err, hangar.CodeFailedPrecondition, "")
	_, err = p.Orgs().Org(p.with(t, squatter), "acme")
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	// Nor does a code that was meant for another.
	_, other := p.member(t, "other", "evil", hangar.RoleMember)
	_, err = p.Users().AcceptInvitation(p.with(t, other), code)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonCodeInvalid)
	// A second membership is accepted by who has signed in.
	user, err := p.Users().AcceptInvitation(p.with(t, squatter), code)
	if err != nil || len(user.Memberships) != 2 {
		t.Fatalf("%+v, %v", user, err)
	}
	if _, err := p.Orgs().Org(p.with(t, squatter), "acme"); err != nil {
		t.Error(err)
	}
	_, err = p.Users().AcceptInvitation(p.with(t, squatter), code)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonCodeInvalid)
}

// TestWhoManagesMembers walks who may do what to whom.
func TestWhoManagesMembers(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.org(t, "acme")
	p.org(t, "other")
	_, chief := p.member(t, "chief", "acme", hangar.RoleAdmin)
	ann, member := p.member(t, "ann", "acme", hangar.RoleMember)
	_, stranger := p.member(t, "eve", "other", hangar.RoleAdmin)
	users := p.Users()
	for who, test := range map[string]struct {
		credential string
		sees, may  bool
	}{"an admin": {chief, true, true}, "a member": {member, true, false}, "a stranger": {stranger, false, false}} {
		ctx := p.with(t, test.credential)
		list, err := users.Users(ctx, hangar.UserFilter{Org: "acme"})
		if test.sees != (err == nil) || test.sees && len(list) != 2 {
			t.Errorf("%s sees %v, %v", who, list, err)
		}
		for _, u := range list {
			if u.ID != ann && test.credential == member && (u.CustomerAddress != "" || !u.LastSignIn.IsZero()) {
				t.Errorf("%s sees %+v", who, u)
			}
		}
		_, err = users.User(ctx, "ann@example.com")
		if test.sees != (err == nil) {
			t.Errorf("%s sees ann: %v", who, err)
		}
		refused := hangar.CodeForbidden
		if !test.sees {
			refused = hangar.CodeNotFound
		}
		_, invited := users.InviteUser(ctx, hangar.UserInvite{Email: "new@example.com", Org: "acme"})
		_, shown := users.Invitations(ctx, "acme")
		_, set := users.SetMember(ctx, "acme", hangar.UserRef(ann), hangar.RoleMember)
		for what, err := range map[string]error{"invite": invited, "see invitations": shown, "set": set} {
			if test.may && err != nil || !test.may && hangar.CodeOf(err) != refused {
				t.Errorf("%s may %s: %v", who, what, err)
			}
		}
		for _, err := range map[string]error{
			"list all":         func() error { _, err := users.Users(ctx, hangar.UserFilter{}); return err }(),
			"invite to none":   func() error { _, err := users.InviteUser(ctx, hangar.UserInvite{Email: "x@example.com"}); return err }(),
			"remove a user":    users.RemoveUser(ctx, hangar.UserRef(ann)),
			"reset a password": func() error { _, err := users.ResetPassword(ctx, hangar.UserRef(ann)); return err }(),
			"become an administrator": func() error {
				me, err := users.CurrentUser(ctx)
				if err == nil {
					yes := true
					_, err = users.UpdateUser(ctx, hangar.UserRef(me.ID), hangar.UserUpdate{Admin: &yes})
				}
				return err
			}(),
		} {
			wantError(t, err, hangar.CodeForbidden, "")
		}
	}
	// Managing the members of one organization does not include adding them to another.
	_, err := users.SetMember(p.with(t, chief), "acme", "eve@example.com", hangar.RoleMember)
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonUserNotFound)
	name := "Ann Other"
	_, err = users.UpdateUser(p.with(t, chief), hangar.UserRef(ann), hangar.UserUpdate{Name: &name})
	wantError(t, err, hangar.CodeForbidden, "")
	if u, err := users.UpdateUser(p.with(t, member), hangar.UserRef(ann), hangar.UserUpdate{Name: &name}); err != nil || u.Name != name {
		t.Errorf("renamed to %+v, %v", u, err)
	}
	// An organization's own tokens may do this only if they allow everything without an end.
	until := p.clock.Now().Add(time.Hour)
	for _, test := range []struct {
		grant hangar.Grant
		may   bool
	}{
		{hangar.Grant{Org: "acme", Actions: hangar.ActionAll}, true},
		{hangar.Grant{Org: "acme", Actions: hangar.ActionAll, Until: until}, false},
		{hangar.Grant{Org: "acme", Actions: hangar.ActionAll &^ hangar.ActionMetrics}, false},
		{hangar.Grant{Org: "acme", Actions: hangar.ActionAll, Apps: []hangar.AppName{"web"}}, false},
	} {
		_, err := users.InviteUser(as(t, hangar.Principal{Subject: "ci", Grants: []hangar.Grant{test.grant}}), hangar.UserInvite{Email: "new@example.com", Org: "acme"})
		if (err == nil) != test.may {
			t.Errorf("%+v may invite: %v", test.grant, err)
		}
	}
}

// TestMembershipEnds: with it, all that it has allowed ends, at once and permanently.
func TestMembershipEnds(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		for _, slug := range []hangar.OrgSlug{"acme", "other"} {
			p.org(t, slug)
		}
		if _, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "web", Org: "acme"}); err != nil {
			t.Fatal(err)
		}
		ann, login := p.member(t, "ann", "acme", hangar.RoleMember)
		if _, err := p.Users().SetMember(admin(t), "other", hangar.UserRef(ann), hangar.RoleAdmin); err != nil {
			t.Fatal(err)
		}
		made, err := p.Tokens().CreateToken(p.with(t, login), hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{"web"}})
		if err != nil {
			t.Fatal(err)
		}
		if made.UserID != ann {
			t.Errorf("the token belongs to %q", made.UserID)
		}
		_, err = p.Tokens().CreateToken(p.with(t, login), hangar.TokenCreate{Kind: hangar.TokenOrg, Org: "acme"})
		wantError(t, err, hangar.CodeForbidden, "")
		life, whole := p.auth.Life(made.ID), p.auth.Life(p.with1(t, login).Tokens[0])
		if err := p.Users().RemoveMember(admin(t), "acme", "ann@example.com"); err != nil {
			t.Fatal(err)
		}
		if p.valid(t, made.Text) || life.Err() == nil || whole.Err() == nil {
			t.Error("a token outlives its membership")
		}
		_, err = p.Apps().App(p.with(t, login), "web")
		wantError(t, err, hangar.CodeForbidden, "")
		if _, err := p.Orgs().Org(p.with(t, login), "other"); err != nil {
			t.Errorf("the other membership has ended, too: %v", err)
		}
		if got := p.used(t, "acme", hangar.QuotaTokens) + p.used(t, "acme", hangar.QuotaMembers); got != 0 {
			t.Errorf("%d of acme's quotas are used", got)
		}
		if _, ok := p.auth.Find(made.ID); ok {
			t.Error("the token is still recorded")
		}
		wantError(t, p.Users().RemoveMember(admin(t), "acme", hangar.UserRef(ann)), hangar.CodeNotFound, hangar.ReasonUserNotFound)
		// A returning member starts over.
		if _, err := p.Users().SetMember(admin(t), "acme", hangar.UserRef(ann), hangar.RoleMember); err != nil {
			t.Fatal(err)
		}
		if p.valid(t, made.Text) {
			t.Error("a token comes back with its user")
		}
		// A changed role counts at once, and every member may leave.
		if _, err := p.Users().SetMember(admin(t), "acme", hangar.UserRef(ann), hangar.RoleAdmin); err != nil {
			t.Fatal(err)
		}
		org, err := p.Tokens().CreateToken(p.with(t, login), hangar.TokenCreate{Kind: hangar.TokenOrg, Org: "acme"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Users().SetMember(admin(t), "acme", hangar.UserRef(ann), hangar.RoleMember); err != nil {
			t.Fatal(err)
		}
		_, err = p.Peers().CreatePeer(p.with(t, org.Text), "acme", hangar.PeerCreate{PublicKey: testKey(3)})
		wantError(t, err, hangar.CodeForbidden, "")
		wantError(t, p.Orgs().DeleteOrg(p.with(t, login), "acme"), hangar.CodeForbidden, "")
		if err := p.Users().RemoveMember(p.with(t, login), "acme", hangar.UserRef(ann)); err != nil || p.valid(t, org.Text) {
			t.Errorf("has left, %v", err)
		}
		// With the organization, and with the user, it is the same.
		if err := p.Orgs().DeleteOrg(admin(t), "other"); err != nil {
			t.Fatal(err)
		}
		if user := p.user(t, "ann@example.com"); len(user.Memberships) != 0 || !p.valid(t, login) {
			t.Errorf("without an organization: %+v", user)
		}
		if err := p.Users().RemoveUser(admin(t), "ann@example.com"); err != nil || p.valid(t, login) {
			t.Errorf("removed, %v", err)
		}
		for _, prefix := range []string{state.UsersPrefix, state.EmailsPrefix, state.PasswordsPrefix, state.SignInsPrefix, state.IdentitiesPrefix, state.MembersPrefix, state.InvitationsPrefix, "/token-uses/"} {
			for _, key := range p.records(t, prefix) {
				if key != state.UserKey(hangar.UserAdmin) {
					t.Errorf("%s is left", key)
				}
			}
		}
		if again := p.join(t, hangar.UserInvite{Email: "ann@example.com"}); again.ID == ann || p.valid(t, login) {
			t.Error("the next user of the address is the same one")
		}
	})
}

// with1 is the principal of a credential.
func (p *plane) with1(t *testing.T, credential string) hangar.Principal {
	t.Helper()
	who, err := hangar.PrincipalFrom(p.with(t, credential))
	if err != nil {
		t.Fatal(err)
	}
	return who
}

func TestPasswords(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.org(t, "acme")
		ann, login := p.member(t, "ann", "acme", hangar.RoleMember)
		const next = "another good password"
		change := func(current, next string) error {
			return p.Users().SetPassword(p.with(t, login), hangar.PasswordChange{Current: hangar.NewSensitive(current), New: hangar.NewSensitive(next)})
		}
		wantError(t, change(goodPassword, "short"), hangar.CodeInvalid, "")
		wantError(t, change("wrong wrong wrong", next), hangar.CodeForbidden, hangar.ReasonWrongPassword)
		if err := change(goodPassword, next); err != nil {
			t.Fatal(err)
		}
		if p.valid(t, login) {
			t.Error("who was signed in with the old password still is")
		}
		login = p.signIn(t, "ann@example.com", next).Text
		reset, err := p.Users().ResetPassword(admin(t), hangar.UserRef(ann))
		if err != nil || !p.valid(t, login) {
			t.Fatalf("an unused reset: %v", err)
		}
		use := hangar.CodeUse{Code: hangar.NewSensitive(reset.Code), Password: hangar.NewSensitive(goodPassword)}
		if _, err := p.SignIns().UseCode(t.Context(), use); err != nil || p.valid(t, login) {
			t.Errorf("reset: %v", err)
		}
		_, err = p.SignIns().UseCode(t.Context(), use)
		wantError(t, err, hangar.CodeInvalid, hangar.ReasonCodeInvalid)
		p.signIn(t, "ann@example.com", goodPassword)
		reset, err = p.Users().ResetPassword(admin(t), hangar.UserRef(ann))
		if err != nil {
			t.Fatal(err)
		}
		p.clock.advance(hangar.PasswordResetLifetime)
		_, err = p.SignIns().UseCode(t.Context(), hangar.CodeUse{Code: hangar.NewSensitive(reset.Code), Password: hangar.NewSensitive(goodPassword)})
		wantError(t, err, hangar.CodeInvalid, hangar.ReasonCodeInvalid)
		// The next sign-in replaces a digest of weaker parameters.
		key := state.PasswordsPrefix + string(ann)
		weak := "$argon2id$v=19$m=8,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$XdTJKPvVpEdCNu922dgwQXj+XfOITS04PpG3cDMn5sE"
		if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(key, []byte(weak))}}); err != nil {
			t.Fatal(err)
		}
		p.signIn(t, "ann@example.com", goodPassword)
		item, err := p.store.Get(t.Context(), key)
		if err != nil || !bytes.Contains(item.Value, []byte("m=16,t=1,p=1")) {
			t.Errorf("kept as %s, %v", item.Value, err)
		}
		p.signIn(t, "ann@example.com", goodPassword)
	})
}

// TestSignInsAreBounded: a user has so many tokens from signing in, of which the oldest end.
func TestSignInsAreBounded(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.join(t, hangar.UserInvite{Email: "ann@example.com"})
	var texts []string
	for range hangar.MaxSignIns + 2 {
		texts = append(texts, p.signIn(t, "ann@example.com", goodPassword).Text)
		p.clock.advance(time.Second)
	}
	for i, text := range texts {
		if got, want := p.valid(t, text), i >= 2; got != want {
			t.Errorf("token %d is valid: %t", i, got)
		}
	}
	p.clock.advance(hangar.SignInLifetime)
	p.signIn(t, "ann@example.com", goodPassword)
	if left := p.records(t, "/tokens/"); len(left) != 2 { // this one, and the administrator's
		t.Errorf("records of tokens that have expired: %v", left)
	}
}

// TestUserAdmin: the user of the server's own token is always there, and everywhere.
func TestUserAdmin(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		acme := p.org(t, "acme")
		me, err := p.Users().CurrentUser(admin(t))
		if err != nil {
			t.Fatal(err)
		}
		if role, is := me.Role(acme.ID); me.ID != hangar.UserAdmin || !me.Admin || !is || role != hangar.RoleAdmin || len(me.Memberships) != 2 || me.CustomerAddress == "" {
			t.Errorf("%+v", me)
		}
		p.restart(t)
		again, err := p.Users().CurrentUser(admin(t))
		if err != nil || again.CustomerAddress != me.CustomerAddress {
			t.Errorf("after a restart %+v, %v", again, err)
		}
		no := false
		_, updated := p.Users().UpdateUser(admin(t), "admin", hangar.UserUpdate{Admin: &no})
		_, reset := p.Users().ResetPassword(admin(t), "admin")
		for _, err := range []error{
			p.Users().RemoveUser(admin(t), "admin"), p.Users().RemoveMember(admin(t), "acme", "admin"), updated, reset,
			p.Users().SetPassword(admin(t), hangar.PasswordChange{New: hangar.NewSensitive(goodPassword)}),
		} {
			wantError(t, err, hangar.CodeFailedPrecondition, "")
		}
		// Tokens that it makes belong to no user, as before there were users.
		made, err := p.Tokens().CreateToken(admin(t), hangar.TokenCreate{Kind: hangar.TokenOrg, Org: "acme"})
		if err != nil || made.UserID != "" {
			t.Errorf("%+v, %v", made, err)
		}
		// Another administrator may do the same, while being one.
		boss := p.join(t, hangar.UserInvite{Email: "boss@example.com", Admin: true})
		login := p.signIn(t, "boss@example.com", goodPassword).Text
		mine, err := p.Tokens().CreateToken(p.with(t, login), hangar.TokenCreate{Kind: hangar.TokenOrg, Org: "acme"})
		if err != nil || mine.UserID != boss.ID || !p.with1(t, login).Admin || p.with1(t, mine.Text).Admin {
			t.Fatalf("%+v, %v", mine, err)
		}
		if _, err := p.Users().UpdateUser(admin(t), hangar.UserRef(boss.ID), hangar.UserUpdate{Admin: &no}); err != nil {
			t.Fatal(err)
		}
		if p.with1(t, login).Admin || p.valid(t, mine.Text) {
			t.Error("what an administrator had is still there")
		}
	})
}

// TestDanglingUserKeys: single sign-on ends with an error if a key names a user who does not exist, as in a
// damaged state.
func TestDanglingUserKeys(t *testing.T) {
	who := hangar.Identity{Issuer: "https://id.example.com", Subject: "1", Email: "ann@example.com", EmailVerified: true}
	for _, prefix := range []string{state.EmailsPrefix, state.IdentitiesPrefix} {
		t.Run(prefix, func(t *testing.T) {
			store := faultyStore{state.NewMemory(), &faults{}}
			p := newPlane(t, store)
			p.org(t, "acme")
			p.invite(t, hangar.UserInvite{Email: who.Email, Org: "acme"})
			if _, err := p.Sessions().OpenSessionAs(t.Context(), who); err != nil {
				t.Fatal(err)
			}
			key := p.records(t, prefix)[0]
			if err := p.Users().RemoveUser(admin(t), hangar.UserRef(who.Email)); err != nil {
				t.Fatal(err)
			}
			p.invite(t, hangar.UserInvite{Email: who.Email, Org: "acme"})
			if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(key, []byte(`{"user":"gone"}`))}}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			store.arm(callerGone, 100, cancel) // more than it needs
			_, err := p.Sessions().OpenSessionAs(ctx, who)
			if ctx.Err() != nil {
				t.Fatal("it is tried again and again")
			}
			wantError(t, err, hangar.CodeInternal, hangar.ReasonRecordDamaged)
		})
	}
}

// interruptedStore lets something happen before it first reads keys with a prefix.
type interruptedStore struct {
	state.Store

	prefix string
	happen func()
}

func (s *interruptedStore) interrupt(key string) {
	if happen := s.happen; happen != nil && strings.HasPrefix(key, s.prefix) {
		s.happen = nil
		happen()
	}
}

func (s *interruptedStore) Get(ctx context.Context, key string) (state.Item, error) {
	s.interrupt(key)
	return s.Store.Get(ctx, key)
}

func (s *interruptedStore) List(ctx context.Context, prefix string, o state.ListOptions) (state.Page, error) {
	s.interrupt(prefix)
	return s.Store.List(ctx, prefix, o)
}

// TestFirstSignInsAtOnce: two first sign-ins of one person both succeed, wherever one comes between the steps of the
// other.
func TestFirstSignInsAtOnce(t *testing.T) {
	who := hangar.Identity{Issuer: "https://id.example.com", Subject: "1", Email: "ann@example.com", EmailVerified: true}
	for _, known := range []bool{false, true} {
		for _, prefix := range []string{state.IdentitiesPrefix, state.EmailsPrefix, state.InvitationsPrefix} {
			t.Run(fmt.Sprintf("%s known %t", prefix, known), func(t *testing.T) {
				store := &interruptedStore{Store: state.NewMemory(), prefix: prefix}
				p := newPlane(t, store)
				p.org(t, "acme")
				if in := (hangar.UserInvite{Email: who.Email, Org: "acme"}); known {
					p.join(t, in)
				} else {
					p.invite(t, in)
				}
				signIn := func() {
					if _, err := p.Sessions().OpenSessionAs(t.Context(), who); err != nil {
						t.Error(err)
					}
				}
				store.happen = signIn
				signIn()
			})
		}
	}
}

// TestCrashesWithUsers ends the process around each transaction of what takes several. What has begun to
// end counts for nothing from then on, and the next start, or another attempt, removes the rest.
func TestCrashesWithUsers(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, p *plane) error{
		"a member removed": func(ctx context.Context, p *plane) error {
			return p.Users().RemoveMember(ctx, "acme", "ann@example.com")
		},
		"a user removed":          func(ctx context.Context, p *plane) error { return p.Users().RemoveUser(ctx, "ann@example.com") },
		"an organization deleted": func(ctx context.Context, p *plane) error { return p.Orgs().DeleteOrg(ctx, "acme") },
	} {
		t.Run(name, func(t *testing.T) {
			hit := true
			for n := 1; hit; n++ {
				store := faultyStore{state.NewMemory(), &faults{}}
				p := newPlane(t, store)
				p.org(t, "acme")
				_, login := p.member(t, "ann", "acme", hangar.RoleAdmin)
				var texts []string
				for range 3 {
					made, err := p.Tokens().CreateToken(p.with(t, login), hangar.TokenCreate{Kind: hangar.TokenOrg, Org: "acme"})
					if err != nil {
						t.Fatal(err)
					}
					texts = append(texts, made.Text)
				}
				p.invite(t, hangar.UserInvite{Email: "bob@example.com", Org: "acme"})
				store.arm(killed, n, nil)
				_ = end(admin(t), p) // the caller does not get the answer
				hit = store.disarm()
				p.restart(t)
				if err := end(admin(t), p); err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
					t.Fatalf("after a crash at transaction %d: %v", n, err)
				}
				for _, text := range texts {
					if p.valid(t, text) {
						t.Errorf("after a crash at transaction %d, a token is valid", n)
					}
				}
				if left := p.records(t, "/tokens/"); len(left) > 2 { // the administrator's, and that of signing in
					t.Errorf("after a crash at transaction %d: %v", n, left)
				}
				if left := p.records(t, state.MembersPrefix); len(left) != 0 {
					t.Errorf("after a crash at transaction %d: %v", n, left)
				}
				if org, err := p.Orgs().Org(admin(t), "acme"); err == nil {
					if got := p.used(t, org.Slug, hangar.QuotaMembers); got != 1 || p.used(t, "acme", hangar.QuotaTokens) != 0 {
						t.Errorf("after a crash at transaction %d: %d members are counted", n, got)
					}
				}
			}
		})
	}
}

// failing is a state of which a read of a key below a prefix fails: the nth from now on.
type failing struct {
	state.Store

	prefix string
	nth    int
}

func (f *failing) Get(ctx context.Context, key string) (state.Item, error) {
	if f.prefix != "" && strings.HasPrefix(key, f.prefix) {
		if f.nth--; f.nth == 0 {
			return state.Item{}, errDead
		}
	}
	return f.Store.Get(ctx, key)
}

// TestPasswordWhileTheStateIsAway: neither was the password changed by another, nor is a code invalid, only because that
// cannot be found out.
func TestPasswordWhileTheStateIsAway(t *testing.T) {
	store := &failing{Store: state.NewMemory()}
	p := newPlane(t, store)
	p.org(t, "acme")
	id, _ := p.member(t, "ann", "acme", hangar.RoleMember)
	ctx, _ := p.session(t, "ann@example.com", goodPassword)
	store.prefix, store.nth = state.PasswordsPrefix, 2
	err := p.Users().SetPassword(ctx, hangar.PasswordChange{Current: hangar.NewSensitive(goodPassword), New: hangar.NewSensitive("another " + goodPassword)})
	wantError(t, err, hangar.CodeUnavailable, "")
	reset, err := p.Users().ResetPassword(admin(t), hangar.UserRef(id))
	if err != nil {
		t.Fatal(err)
	}
	store.prefix, store.nth = state.ResetsPrefix, 2
	use := hangar.CodeUse{Code: hangar.NewSensitive(reset.Code), Password: hangar.NewSensitive(goodPassword)}
	_, err = p.SignIns().UseCode(t.Context(), use)
	wantError(t, err, hangar.CodeUnavailable, "")
	if _, err := p.SignIns().UseCode(t.Context(), use); err != nil {
		t.Error(err)
	}
}

package contract

import (
	"context"
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
)

// UserService checks an implementation of hangar.UserService and hangar.SignInService.
func UserService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"invite, sign in, leave": userLife,
		"refusals":               userRefusals,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

// newUser makes a user with a membership, who goes with the test, and signs in.
func (h Harness) newUser(t *testing.T, org hangar.OrgSlug, role hangar.Role) (user *hangar.User, credential string) {
	t.Helper()
	email := string(uniqueName()) + "@example.com"
	made, err := h.Users.InviteUser(h.Context(t), hangar.UserInvite{Email: email, Org: org, Role: role})
	must(t, "invite", err)
	const password = "correct horse battery staple"
	user, err = h.SignIns.UseCode(h.Context(t), hangar.CodeUse{Code: hangar.NewSensitive(made.Code), Name: "Ann", Password: hangar.NewSensitive(password)})
	must(t, "use the code", err)
	token, err := h.SignIns.SignIn(h.Context(t), hangar.SignIn{Email: email, Password: hangar.NewSensitive(password)})
	must(t, "sign in", err)
	return user, token.Text
}

func userLife(t *testing.T, h Harness) {
	org := h.newOrg(t)
	user, credential := h.newUser(t, org, hangar.RoleMember)
	ann := h.As(t, credential)
	me, err := ann.Users.CurrentUser(ann.Context(t))
	must(t, "get the current user", err)
	if me.ID != user.ID || me.Name != "Ann" || me.CustomerAddress == "" || me.LastSignIn.IsZero() || !slices.Equal(me.Memberships, user.Memberships) {
		t.Errorf("signed in as %+v, want %+v", me, user)
	}
	app := uniqueName()
	_, err = ann.Apps.CreateApp(ann.Context(t), hangar.AppCreate{Name: app, Org: org})
	must(t, "create an app", err)
	t.Cleanup(func() { h.dropApp(t, app) })
	made, err := ann.Tokens.CreateToken(ann.Context(t), hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{app}})
	must(t, "create a token", err)
	if made.UserID != user.ID {
		t.Errorf("the token belongs to %q, want %q", made.UserID, user.ID)
	}
	wantError(t, "delete the organization", ann.Orgs.DeleteOrg(ann.Context(t), org), hangar.CodeForbidden, "")
	changed, err := h.Users.SetMember(h.Context(t), org, hangar.UserRef(user.Email), hangar.RoleAdmin)
	must(t, "set the role", err)
	if role, is := changed.Role(user.Memberships[0].OrgID); !is || role != hangar.RoleAdmin {
		t.Errorf("the role is %q", role)
	}
	must(t, "leave", ann.Users.RemoveMember(ann.Context(t), org, hangar.UserRef(user.ID)))
	h.void(t, made.Text)
	_, err = ann.Apps.App(ann.Context(t), app)
	wantError(t, "get an app after leaving", err, hangar.CodeForbidden, "")
	must(t, "sign out", ann.Users.SignOut(ann.Context(t)))
	h.void(t, credential)
	must(t, "remove", h.Users.RemoveUser(h.Context(t), hangar.UserRef(user.ID)))
	_, err = h.Users.User(h.Context(t), hangar.UserRef(user.Email))
	wantError(t, "get", err, hangar.CodeNotFound, hangar.ReasonUserNotFound)
}

func userRefusals(t *testing.T, h Harness) {
	org := h.newOrg(t)
	user, credential := h.newUser(t, org, hangar.RoleMember)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.Context(t)), patience)
		defer cancel()
		if err := h.Users.RemoveUser(ctx, hangar.UserRef(user.ID)); err != nil {
			t.Errorf("remove user: %v", err)
		}
	})
	ann := h.As(t, credential)
	_, err := ann.Users.InviteUser(ann.Context(t), hangar.UserInvite{Email: "x@example.com", Org: org})
	wantError(t, "invite as a member", err, hangar.CodeForbidden, "")
	_, err = ann.Users.Users(ann.Context(t), hangar.UserFilter{Org: hangar.OrgPersonal})
	wantError(t, "list others", err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	wantError(t, "remove as a member", ann.Users.RemoveUser(ann.Context(t), hangar.UserRef(user.ID)), hangar.CodeForbidden, "")
	_, err = h.SignIns.SignIn(h.Context(t), hangar.SignIn{Email: user.Email, Password: hangar.NewSensitive("another password")})
	wantError(t, "sign in with a wrong password", err, hangar.CodeUnauthenticated, hangar.ReasonWrongPassword)
	_, err = h.SignIns.UseCode(h.Context(t), hangar.CodeUse{Code: hangar.NewSensitive("hgi_x_y"), Password: hangar.NewSensitive("another password")})
	wantError(t, "use a code that is none", err, hangar.CodeInvalid, hangar.ReasonCodeInvalid)
	wantError(t, "cancel nothing", h.Users.CancelInvitation(h.Context(t), "x"), hangar.CodeNotFound, hangar.ReasonInvitationNotFound)
	wantError(t, "remove the built-in administrator", h.Users.RemoveUser(h.Context(t), hangar.UserRef(hangar.UserAdmin)), hangar.CodeFailedPrecondition, "")
}

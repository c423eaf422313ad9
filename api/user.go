package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

// describeUsers registers the types of users.
func describeUsers(s *openapi.Schemas) {
	openapi.KnowEnum(s, hangar.Roles()...)
	openapi.Describe[hangar.User](s, texts{
		"organizations":    "Those whose members the caller may see.",
		"admin":            "An administrator of the platform. Like the following properties, it is shown only to the user and to administrators.",
		"customer_address": "An e-mail address for third parties. It stays the same and reveals nothing about the user.",
		"last_sign_in_at":  "Left out before the first sign-in.",
	})
	openapi.Describe[hangar.UserInvite](s, texts{
		"org_slug": "Administrators of the platform may leave it out: the invitation is then to the platform alone.",
		"role":     "In the organization: `member` when it is left out.",
		"admin":    "Makes the person an administrator of the platform. Only without `org_slug`.",
	})
	openapi.Describe[codeRequest](s, texts{ //nolint:gosec // texts about secrets
		"code":     "Of an invitation or a password reset.",
		"name":     "Of a new user. The default is the part of the address before the @.",
		"password": "12 to 256 bytes.",
	})
	openapi.Describe[passwordRequest](s, texts{"new": "12 to 256 bytes."})
}

// The values in examples.
const (
	exampleUserID     = "b3z5q1k8w0h7m2xd"
	exampleEmail      = "ann@example.com"
	exampleInvitation = "4xo1b2m9p0qk7s3d-0f1e2d3c4b5a6978"
	exampleCode       = "hgi_4xo1b2m9p0qk7s3d-0f1e2d3c4b5a6978_PB3XSL5QXOQM2V5BBR2TWYDGQD"
)

func exampleUser() hangar.User {
	return hangar.User{
		ID: exampleUserID, Name: "Ann", Email: exampleEmail, CreatedAt: exampleTime, CustomerAddress: "u7d1m0x4k9s2b6qz@customer.example.com", LastSignIn: exampleTime,
		Memberships: []hangar.Membership{{OrgID: "4xo1b2m9p0qk7s3d", Org: "acme", Role: hangar.RoleMember}},
	}
}

func (s *server) userRoutes() {
	const (
		user    = "/v1/users/{user}"
		current = "/v1/users/current"
		member  = "/v1/orgs/{org}/members/{user}"
	)
	example := exampleUser()
	s.Handle("GET /v1/users", s.listUsers, router.Operation{
		ID: "listUsers", Tag: "Users", Summary: "List users",
		Text: "The members of an organization, for callers that may read it; without `org_slug`, all users, for administrators of the platform.",
		Query: []router.Param{
			{Name: "org_slug", Example: "acme", Text: "Only the members of this organization."},
			{Name: "customer_address", Example: example.CustomerAddress, Text: "Only the user whose customer address this is. For administrators of the platform."},
		},
		Answer: userList{[]*hangar.User{&example}}, Errors: []int{http.StatusNotFound},
	})
	s.Handle("GET "+current, s.currentUser, router.Operation{
		ID: "currentUser", Tag: "Users", Summary: "Get the current user",
		Text: "The user who owns the token. Tokens of organizations have no user.", Answer: example, Errors: []int{http.StatusNotFound},
	})
	s.Handle("PUT "+current+"/password", s.setPassword, router.Operation{
		ID: "setPassword", Tag: "Users", Summary: "Change the current user's password",
		Text:   "Ends all tokens of the user that come from signing in, including the token of the request. Needs such a token.",
		Body:   passwordRequest{Current: "correct horse battery staple", New: "a better password"},
		Status: http.StatusNoContent, Errors: []int{http.StatusPreconditionFailed, http.StatusConflict, http.StatusNotFound},
	})
	s.Handle("POST "+current+"/invitations", s.acceptInvitation, router.Operation{
		ID: "acceptInvitation", Tag: "Users", Summary: "Accept an invitation",
		Text: "For a user who has signed in. A person who is not a user yet becomes one with `useCode`.",
		Body: acceptRequest{exampleCode}, Answer: example, Errors: []int{http.StatusPreconditionFailed, http.StatusNotFound},
	})
	s.Handle("GET "+user, s.getUser, router.Operation{
		ID: "getUser", Tag: "Users", Summary: "Get a user", Text: "For the user, for callers that may read an organization of the user, and for administrators of the platform.", Answer: example,
	})
	s.Handle("PATCH "+user, s.updateUser, router.Operation{
		ID: "updateUser", Tag: "Users", Summary: "Update a user",
		Text: "What is left out stays. Users change their name, and administrators of the platform everything.",
		Body: hangar.UserUpdate{Name: &example.Name}, Answer: example, Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("DELETE "+user, s.removeUser, router.Operation{
		ID: "removeUser", Tag: "Users", Summary: "Remove a user", Text: "With all memberships and tokens. For administrators of the platform.",
		Status: http.StatusNoContent, Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("POST "+user+"/password_reset", s.resetPassword, router.Operation{
		ID: "resetPassword", Tag: "Users", Summary: "Create a password reset code",
		Text:   "Only this answer holds the code, which `useCode` accepts once. For administrators of the platform.",
		Answer: hangar.PasswordReset{Code: "hgp_" + exampleUserID + "_PB3XSL5QXOQM2V5BBR2TWYDGQD", ExpiresAt: exampleTime}, Status: http.StatusCreated,
		Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("PUT "+member, s.setMember, router.Operation{
		ID: "setMember", Tag: "Users", Summary: "Set the role of a member",
		Text: "For admins of the organization. Administrators of the platform may make any user a member this way.",
		Body: memberRequest{hangar.RoleAdmin}, Answer: example, Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("DELETE "+member, s.removeMember, router.Operation{
		ID: "removeMember", Tag: "Users", Summary: "Remove a member",
		Text:   "All tokens that the user has made as a member are void at once, and permanently. For admins of the organization, and for the user.",
		Status: http.StatusNoContent, Errors: []int{http.StatusPreconditionFailed},
	})
	s.invitationRoutes()
	s.signInRoutes()
}

func (s *server) invitationRoutes() {
	invitation := hangar.Invitation{
		ID: exampleInvitation, Email: exampleEmail, Org: "acme", Role: hangar.RoleMember, InvitedBy: "chief@example.com", CreatedAt: exampleTime,
		ExpiresAt: exampleTime.Add(hangar.InvitationLifetime),
	}
	s.Handle("POST /v1/invitations", s.inviteUser, router.Operation{
		ID: "inviteUser", Tag: "Users", Summary: "Invite a user",
		Text: "For admins of the organization. Only this answer holds the `code`, which is for the invited person and ends after a week. " +
			"An earlier invitation of the same address to the same organization ends at once.",
		Body:   hangar.UserInvite{Email: exampleEmail, Org: "acme", Role: hangar.RoleMember},
		Status: http.StatusCreated, Answer: newInvitationView{exampleCode, invitation}, Errors: []int{http.StatusNotFound, http.StatusUnprocessableEntity},
	})
	s.Handle("GET /v1/invitations", s.listInvitations, router.Operation{
		ID: "listInvitations", Tag: "Users", Summary: "List open invitations",
		Query:  []router.Param{{Name: "org_slug", Example: "acme", Text: "Only invitations to this organization. Without it: those to the platform alone, for its administrators."}},
		Answer: invitationList{[]*hangar.Invitation{&invitation}}, Errors: []int{http.StatusNotFound},
	})
	s.Handle("DELETE /v1/invitations/{invitation}", s.cancelInvitation, router.Operation{
		ID: "cancelInvitation", Tag: "Users", Summary: "Cancel an invitation", Status: http.StatusNoContent,
	})
}

// userList is a listing of users.
type userList struct {
	Users []*hangar.User `json:"users"`
}

// invitationList is a listing of invitations.
type invitationList struct {
	Invitations []*hangar.Invitation `json:"invitations"`
}

// newInvitationView is a new invitation. No other answer holds its code.
type newInvitationView struct {
	Code string `json:"code"`
	hangar.Invitation
}

type passwordRequest struct {
	Current string `json:"current" schema:"required"`
	New     string `json:"new" schema:"required"`
}

type memberRequest struct {
	Role hangar.Role `json:"role" schema:"required"`
}

type acceptRequest struct {
	Code string `json:"code" schema:"required"`
}

func userRef(r *http.Request) hangar.UserRef { return hangar.UserRef(r.PathValue("user")) }

func (s *server) listUsers(r *http.Request) (router.Answer, error) {
	q := input.QueryOf(r)
	filter := hangar.UserFilter{Org: hangar.OrgSlug(q.Text("org_slug")), CustomerAddress: q.Text("customer_address")}
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	users, err := s.Users.Users(r.Context(), filter)
	return router.AnswerOf(userList{view.OrEmpty(users)}, err)
}

func (s *server) currentUser(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(s.Users.CurrentUser(r.Context()))
}

func (s *server) getUser(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(s.Users.User(r.Context(), userRef(r)))
}

func (s *server) updateUser(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.UserUpdate](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(s.Users.UpdateUser(r.Context(), userRef(r), in))
}

func (s *server) removeUser(r *http.Request) (router.Answer, error) {
	return router.NoContent(s.Users.RemoveUser(r.Context(), userRef(r)))
}

func (s *server) setPassword(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[passwordRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	p, err := hangar.PrincipalFrom(r.Context())
	if err != nil {
		return router.Answer{}, err
	}
	if wait := s.attempts.of(p.User); wait > 0 { // a token must not allow guessing the password
		return tooMany(wait)
	}
	return router.NoContent(s.Users.SetPassword(r.Context(), hangar.PasswordChange{Current: hangar.NewSensitive(in.Current), New: hangar.NewSensitive(in.New)}))
}

func (s *server) resetPassword(r *http.Request) (router.Answer, error) {
	reset, err := s.Users.ResetPassword(r.Context(), userRef(r))
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusCreated, Body: reset, Header: router.SecretHeader()}, nil
}

func (s *server) acceptInvitation(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[acceptRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(s.Users.AcceptInvitation(r.Context(), hangar.NewSensitive(in.Code)))
}

func (s *server) setMember(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[memberRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(s.Users.SetMember(r.Context(), hangar.OrgSlug(r.PathValue("org")), userRef(r), in.Role))
}

func (s *server) removeMember(r *http.Request) (router.Answer, error) {
	return router.NoContent(s.Users.RemoveMember(r.Context(), hangar.OrgSlug(r.PathValue("org")), userRef(r)))
}

func (s *server) inviteUser(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.UserInvite](r)
	if err != nil {
		return router.Answer{}, err
	}
	made, err := s.Users.InviteUser(r.Context(), in)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusCreated, Body: newInvitationView{made.Code, made.Invitation}, Header: router.SecretHeader()}, nil
}

func (s *server) listInvitations(r *http.Request) (router.Answer, error) {
	q := input.QueryOf(r)
	org := hangar.OrgSlug(q.Text("org_slug"))
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	list, err := s.Users.Invitations(r.Context(), org)
	return router.AnswerOf(invitationList{view.OrEmpty(list)}, err)
}

func (s *server) cancelInvitation(r *http.Request) (router.Answer, error) {
	return router.NoContent(s.Users.CancelInvitation(r.Context(), hangar.InvitationID(r.PathValue("invitation"))))
}

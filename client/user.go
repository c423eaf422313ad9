package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/hangar-platform/hangar"
)

var (
	_ hangar.UserService   = (*Client)(nil)
	_ hangar.SignInService = (*Client)(nil)
)

func userPath(ref hangar.UserRef, rest ...string) string {
	return pathOf(append([]string{"v1", "users", string(ref)}, rest...)...)
}

func memberPath(org hangar.OrgSlug, ref hangar.UserRef) string {
	return pathOf("v1", "orgs", string(org), "members", string(ref))
}

// ask makes a call and returns a pointer to its answer.
func ask[T any](ctx context.Context, c *Client, in call) (*T, error) {
	out := new(T)
	if err := c.do(ctx, in, out); err != nil {
		return nil, err
	}
	return out, nil
}

// SignIn implements hangar.SignInService.
func (c *Client) SignIn(ctx context.Context, in hangar.SignIn) (*hangar.NewToken, error) {
	to := post("/v1/sign-in")
	to.in = map[string]string{"email": in.Email, "password": in.Password.Reveal()}
	return c.newToken(ctx, to)
}

// UseCode implements hangar.SignInService.
func (c *Client) UseCode(ctx context.Context, in hangar.CodeUse) (*hangar.User, error) {
	to := post("/v1/sign-in/code")
	to.in = map[string]string{"code": in.Code.Reveal(), "name": in.Name, "password": in.Password.Reveal()}
	return ask[hangar.User](ctx, c, to)
}

// SignOut implements hangar.UserService.
func (c *Client) SignOut(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodDelete, path: "/v1/sign-in"}, nil)
}

// InviteUser implements hangar.UserService.
func (c *Client) InviteUser(ctx context.Context, in hangar.UserInvite) (*hangar.NewInvitation, error) {
	to := post("/v1/invitations")
	to.in = in
	var made struct {
		Code string `json:"code"`
		hangar.Invitation
	}
	if err := c.do(ctx, to, &made); err != nil {
		return nil, err
	}
	return &hangar.NewInvitation{Invitation: made.Invitation, Code: made.Code}, nil
}

// Invitations implements hangar.UserService.
func (c *Client) Invitations(ctx context.Context, org hangar.OrgSlug) ([]*hangar.Invitation, error) {
	in := get("/v1/invitations")
	if org != "" {
		in.query = url.Values{"org_slug": {string(org)}}
	}
	var out struct {
		Invitations []*hangar.Invitation `json:"invitations"`
	}
	err := c.do(ctx, in, &out)
	return out.Invitations, err
}

// CancelInvitation implements hangar.UserService.
func (c *Client) CancelInvitation(ctx context.Context, id hangar.InvitationID) error {
	return c.do(ctx, call{method: http.MethodDelete, path: pathOf("v1", "invitations", string(id))}, nil)
}

// AcceptInvitation implements hangar.UserService.
func (c *Client) AcceptInvitation(ctx context.Context, code hangar.Sensitive) (*hangar.User, error) {
	to := post("/v1/users/current/invitations")
	to.in = map[string]string{"code": code.Reveal()}
	return ask[hangar.User](ctx, c, to)
}

// Users implements hangar.UserService.
func (c *Client) Users(ctx context.Context, filter hangar.UserFilter) ([]*hangar.User, error) {
	in := get("/v1/users")
	in.query = url.Values{}
	if filter.Org != "" {
		in.query.Set("org_slug", string(filter.Org))
	}
	if filter.CustomerAddress != "" {
		in.query.Set("customer_address", filter.CustomerAddress)
	}
	var out struct {
		Users []*hangar.User `json:"users"`
	}
	err := c.do(ctx, in, &out)
	return out.Users, err
}

// User implements hangar.UserService.
func (c *Client) User(ctx context.Context, ref hangar.UserRef) (*hangar.User, error) {
	return ask[hangar.User](ctx, c, get(userPath(ref)))
}

// CurrentUser implements hangar.UserService.
func (c *Client) CurrentUser(ctx context.Context) (*hangar.User, error) {
	return ask[hangar.User](ctx, c, get("/v1/users/current"))
}

// UpdateUser implements hangar.UserService.
func (c *Client) UpdateUser(ctx context.Context, ref hangar.UserRef, in hangar.UserUpdate) (*hangar.User, error) {
	return ask[hangar.User](ctx, c, call{method: http.MethodPatch, path: userPath(ref), in: in})
}

// SetMember implements hangar.UserService.
func (c *Client) SetMember(ctx context.Context, org hangar.OrgSlug, ref hangar.UserRef, role hangar.Role) (*hangar.User, error) {
	return ask[hangar.User](ctx, c, call{method: http.MethodPut, path: memberPath(org, ref), in: map[string]hangar.Role{"role": role}})
}

// RemoveMember implements hangar.UserService.
func (c *Client) RemoveMember(ctx context.Context, org hangar.OrgSlug, ref hangar.UserRef) error {
	return c.do(ctx, call{method: http.MethodDelete, path: memberPath(org, ref)}, nil)
}

// RemoveUser implements hangar.UserService.
func (c *Client) RemoveUser(ctx context.Context, ref hangar.UserRef) error {
	return c.do(ctx, call{method: http.MethodDelete, path: userPath(ref)}, nil)
}

// SetPassword implements hangar.UserService.
func (c *Client) SetPassword(ctx context.Context, in hangar.PasswordChange) error {
	body := map[string]string{"current": in.Current.Reveal(), "new": in.New.Reveal()}
	return c.do(ctx, call{method: http.MethodPut, path: "/v1/users/current/password", in: body}, nil)
}

// ResetPassword implements hangar.UserService.
func (c *Client) ResetPassword(ctx context.Context, ref hangar.UserRef) (*hangar.PasswordReset, error) {
	return ask[hangar.PasswordReset](ctx, c, post(userPath(ref, "password_reset")))
}

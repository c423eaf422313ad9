package graphql

import (
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
	"github.com/hangar-platform/hangar/api/input"
)

// The profiles of tokens that clients of the public platform request. Clients derive all other tokens
// from these.
const (
	profileDeploy = "deploy" // everything in one App
	profileOrg    = "deploy_organization"
)

// limitedToken is a token. text is empty except in the answer that created it.
type limitedToken struct {
	*hangar.Token

	text string
}

func tokens(q *query, in args, filter hangar.TokenFilter) (any, error) {
	list, err := called(q, func() ([]*hangar.Token, error) { return q.Services.Tokens.Tokens(q, filter) })
	if err != nil {
		return nil, err
	}
	shown := make([]limitedToken, 0, len(list))
	for _, t := range list {
		shown = append(shown, limitedToken{t, ""})
	}
	return page(in, shown)
}

func defineToken(s *schema) {
	type token = limitedToken
	execute.Define(s, "LimitedAccessToken", fields[token]{
		"id":          field(func(t token) hangar.TokenID { return t.ID }),
		"name":        field(func(t token) string { return t.Name }),
		"token":       field(func(t token) *string { return orNull(t.text) }),
		"tokenHeader": field(func(t token) *string { return orNull(t.text) }),
		"expiresAt":   field(func(t token) time.Time { return t.Grant.Until }),
		"revokedAt":   null[token],
		"user":        field(func(t token) *hangar.User { return &hangar.User{ID: t.UserID, Name: t.User, Email: t.User} }),
	})
}

func createToken(q *query, in args) (payload, error) {
	of, err := slug(q, in.Text("organizationId"))
	if err != nil {
		return nil, err
	}
	request := hangar.TokenCreate{Name: in.Text("name"), Org: of, Expiry: in.Text("expiry")}
	params := in.Object("profileParams")
	switch in.Text("profile") {
	case profileDeploy:
		id := params.Text("app_id")
		if id == "" {
			return nil, input.Invalid("profileParams.app_id", "is required: a deploy token is for one App")
		}
		found, err := app(q, id)
		if err != nil {
			return nil, err
		}
		request.Kind, request.Apps = hangar.TokenDeploy, []hangar.AppName{found.Name}
	case profileOrg:
		if len(params) > 0 {
			return nil, input.Invalid("profileParams", "are not for the profile %s, which is for the whole organization", profileOrg)
		}
		request.Kind = hangar.TokenOrg
	default:
		return nil, input.Unsupported("profile", "is none of "+profileDeploy+" and "+profileOrg+"; tokens that allow less are made by POST /v1/tokens")
	}
	made, err := called(q, func() (*hangar.NewToken, error) { return q.Services.Tokens.CreateToken(q, request) })
	if err != nil {
		return nil, err
	}
	return payload{"limitedAccessToken": limitedToken{&made.Token, made.Text}}, nil
}

func deleteToken(q *query, in args) (payload, error) {
	id := in.Text("id")
	if id == "" {
		return nil, input.Invalid("id", "is required")
	}
	return payload{}, q.Services.Tokens.RevokeToken(q, id)
}

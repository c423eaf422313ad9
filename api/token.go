package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

func (s *server) tokenRoutes() {
	example := hangar.Token{
		ID: "4k7fbw2hxq3s", Name: "ci", Kind: hangar.TokenDeploy, User: "ci@example.com", CreatedBy: "admin", CreatedAt: exampleTime,
		Grant: hangar.Grant{Org: hangar.OrgPersonal, Apps: []hangar.AppName{"web"}, Actions: hangar.ActionAll, Until: exampleTime.Add(hangar.DefaultTokenLifetime)},
	}
	const text = "hgr_4k7fbw2hxq3s_V7m0cWq4H1uR9sX2yB6nK8tE3aZ5dF7gJ0lP4oC1iM"
	s.Handle("POST /v1/tokens", s.createToken, router.Operation{
		ID: "createToken", Tag: "Tokens", Summary: "Create a token",
		Text: "Only this answer holds the token itself. A token cannot allow more than the one that creates it, nor for longer. " +
			"`kind` is a preset: `deploy` allows everything in `apps`, `org` everything in the organization, `readonly` to see it or some `apps` or `machines`, " +
			"`machine-exec` the same and to execute `commands`, `metrics` to query metrics, `custom` the `actions` that are named. " +
			"`expiry` is a duration such as `720h`, a time as in RFC 3339, or `never`; the default is 90 days.",
		Body: hangar.TokenCreate{
			Kind: hangar.TokenMachineExec, Name: "ci", User: "ci@example.com", Org: hangar.OrgPersonal, Apps: []hangar.AppName{"web"},
			Commands: []hangar.CommandRule{{Args: []string{"rails", "runner"}}}, Expiry: "720h",
		},
		Status: http.StatusCreated, Answer: newTokenView{text, example}, Errors: []int{http.StatusNotFound},
	})
	s.Handle("GET /v1/tokens", s.listTokens, router.Operation{
		ID: "listTokens", Tag: "Tokens", Summary: "List tokens", Text: "The tokens that the caller could create and revoke, without their secrets, oldest first.",
		Query: []router.Param{
			{Name: "org_slug", Example: "personal", Text: "Only those of this organization."},
			{Name: "app_name", Example: "web", Text: "Only those that are for this App, alone or with others."},
		},
		Answer: tokenList{[]*hangar.Token{&example}}, Errors: []int{http.StatusNotFound},
	})
	s.Handle("GET /v1/tokens/current", s.currentTokens, router.Operation{
		ID: "currentTokens", Tag: "Tokens", Summary: "Get the current tokens", Text: "The valid tokens in the `Authorization` header.",
		Answer: currentTokenList{[]currentToken{viewCurrent(&example)}},
	})
	s.authorizeRoutes(&example, text)
	s.Handle("DELETE /v1/tokens/{token}", s.revokeToken, router.Operation{
		ID: "revokeToken", Tag: "Tokens", Summary: "Revoke a token", Text: "Named by its id or, if only one has it, its name. It is void at once.",
		Status: http.StatusNoContent, Errors: []int{http.StatusConflict, http.StatusPreconditionFailed},
	})
	s.Handle("POST /v1/apps/{app}/deploy_token", s.createDeployToken, router.Operation{
		ID: "createDeployToken", Tag: "Tokens", Summary: "Create a deploy token of an App",
		Body: deployTokenRequest{Expiry: "720h"}, MayOmit: true, Answer: deployToken{text},
	})
}

// tokenList is a listing of tokens.
type tokenList struct {
	Tokens []*hangar.Token `json:"tokens"`
}

// currentTokenList is the tokens of a request.
type currentTokenList struct {
	Tokens []currentToken `json:"tokens"`
}

type deployTokenRequest struct {
	Expiry string `json:"expiry"`
}

type deployToken struct {
	Token string `json:"token"`
}

// newTokenView is a new token. No other answer holds its text.
type newTokenView struct {
	Text string `json:"token"`
	hangar.Token
}

// createToken creates any token. The service decides what it may allow.
func (s *server) createToken(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.TokenCreate](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.Kind == "" {
		return router.Answer{}, input.Invalid("kind", "is required; it is one of %v", hangar.TokenKinds())
	}
	for _, list := range []struct {
		name  string
		empty bool
	}{
		{"apps", in.Apps != nil && len(in.Apps) == 0},
		{"machines", in.Machines != nil && len(in.Machines) == 0},
		{"commands", in.Commands != nil && len(in.Commands) == 0},
	} {
		if list.empty {
			return router.Answer{}, input.Invalid(list.name, "is empty, and a list without entries restricts nothing; leave it out if that is meant")
		}
	}
	made, err := s.Tokens.CreateToken(r.Context(), in)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusCreated, Body: newTokenView{made.Text, made.Token}, Header: router.SecretHeader()}, nil
}

// createDeployToken creates a deploy token of one App, as existing clients ask for it.
func (s *server) createDeployToken(r *http.Request) (router.Answer, error) {
	name, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.DecodeOptional[deployTokenRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	made, err := s.Tokens.CreateToken(r.Context(), hangar.TokenCreate{
		Kind: hangar.TokenDeploy, Apps: []hangar.AppName{name}, Expiry: in.Expiry,
	})
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Body: deployToken{made.Text}, Header: router.SecretHeader()}, nil
}

func (s *server) listTokens(r *http.Request) (router.Answer, error) {
	q := input.QueryOf(r)
	filter := hangar.TokenFilter{Org: hangar.OrgSlug(q.Text("org_slug")), App: hangar.AppName(q.Text("app_name"))}
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	tokens, err := s.Tokens.Tokens(r.Context(), filter)
	return router.AnswerOf(tokenList{view.OrEmpty(tokens)}, err)
}

func (s *server) revokeToken(r *http.Request) (router.Answer, error) {
	return router.NoContent(s.Tokens.RevokeToken(r.Context(), r.PathValue("token")))
}

// currentToken is a token of the caller as existing clients decode it, with its details in Token.
type currentToken struct {
	ID           hangar.TokenID   `json:"token_id"`
	OrgSlug      hangar.OrgSlug   `json:"org_slug"`
	Organization hangar.OrgSlug   `json:"organization"`
	Apps         []hangar.AppName `json:"apps"`
	User         string           `json:"user"`
	// SourceMachine is always empty, because no token is bound to a Machine that presents it.
	SourceMachine hangar.MachineID `json:"source_machine_id"`
	Machine       hangar.MachineID `json:"restricted_to_machine"`
	Token         *hangar.Token    `json:"details"`
}

func viewCurrent(t *hangar.Token) currentToken {
	v := currentToken{
		ID: t.ID, OrgSlug: t.Grant.Org, Organization: t.Grant.Org, Apps: view.OrEmpty(t.Grant.Apps), User: t.User, Token: t,
	}
	if len(t.Grant.Machines) == 1 {
		v.Machine = t.Grant.Machines[0]
	}
	return v
}

func (s *server) currentTokens(r *http.Request) (router.Answer, error) {
	tokens, err := s.Tokens.CurrentTokens(r.Context())
	if err != nil {
		return router.Answer{}, err
	}
	return presentedAnswer(tokens)
}

func presentedAnswer(tokens []*hangar.Token) (router.Answer, error) {
	views := make([]currentToken, 0, len(tokens))
	for _, t := range tokens {
		views = append(views, viewCurrent(t))
	}
	return router.OK(currentTokenList{views})
}

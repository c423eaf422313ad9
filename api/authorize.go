package api

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
)

func (s *server) authorizeRoutes(example *hangar.Token, text string) {
	header := hangar.Authorization("Bearer " + text)
	s.Handle("POST /v1/tokens/authenticate", s.authenticateTokens, router.Operation{
		ID: "authenticateTokens", Tag: "Tokens", Summary: "Authenticate tokens",
		Text: "For services that accept tokens of this server: `header` is the `Authorization` header of a client of theirs. " +
			"The answer lists its valid tokens. When there are none, it is 400 with the reason `token_invalid`.",
		Body: authenticateRequest{header}, Answer: currentTokenList{[]currentToken{viewCurrent(example)}},
	})
	s.Handle("POST /v1/tokens/authorize", s.authorizeTokens, router.Operation{
		ID: "authorizeTokens", Tag: "Tokens", Summary: "Authorize tokens",
		Text: "Answers 200 with `access`, and the organization filled in, when a token in `header` allows it, and 403 when none does. " +
			"403 is also the answer for a missing target. When no token is valid the answer is 400 with the reason `token_invalid`.",
		Body:   authorizeRequest{header, accessRequest{Action: accessActions(hangar.ActionRead), App: "web", Machine: exampleID}},
		Answer: accessAnswer{accessView{Actions: hangar.ActionRead, Org: hangar.OrgPersonal, App: "web", Machine: exampleID}},
	})
}

// authenticateRequest is the body of authenticate.
type authenticateRequest struct {
	Header hangar.Authorization `json:"header" schema:"required"`
}

// authorizeRequest is the body of authorize.
type authorizeRequest struct {
	Header hangar.Authorization `json:"header" schema:"required"`
	Access accessRequest        `json:"access" schema:"required"`
}

// accessRequest is an access as existing clients describe it.
type accessRequest struct {
	Action  accessActions    `json:"action"`
	Org     hangar.OrgSlug   `json:"org_slug"`
	App     hangar.AppName   `json:"app_name"`
	Machine hangar.MachineID `json:"machine_id"`
	Volume  hangar.VolumeID  `json:"volume_id"`
	Command []string         `json:"command"`
	// SourceMachine is the Machine of the client. It has no effect, because no token is bound to one.
	SourceMachine hangar.MachineID `json:"source_machine"`

	AppFeature     string `json:"app_feature"`
	MachineFeature string `json:"machine_feature"`
	OrgFeature     string `json:"org_feature"`
	Mutation       string `json:"mutation"`
	StorageObject  string `json:"storage_object"`
}

// accessAnswer is an access that is allowed.
type accessAnswer struct {
	Access accessView `json:"access"`
}

type accessView struct {
	Actions hangar.Action    `json:"action"`
	Org     hangar.OrgSlug   `json:"org_slug"`
	App     hangar.AppName   `json:"app_name,omitempty"`
	Machine hangar.MachineID `json:"machine_id,omitempty"`
	Volume  hangar.VolumeID  `json:"volume_id,omitempty"`
	Command []string         `json:"command,omitempty"`
}

// accessActions are actions as existing clients write them: as letters, or by name.
type accessActions hangar.Action

// actionLetters are the actions that letters stand for.
var actionLetters = map[rune]hangar.Action{
	'r': hangar.ActionRead, 'w': hangar.ActionWrite, 'c': hangar.ActionCreate, 'd': hangar.ActionDelete, 'C': hangar.ActionControl,
	'*': hangar.ActionAll,
}

// MarshalJSON writes a list of names.
func (a accessActions) MarshalJSON() ([]byte, error) { return hangar.Action(a).MarshalJSON() }

// UnmarshalJSON reads letters, or names with commas between them, or a list of names.
func (a *accessActions) UnmarshalJSON(b []byte) error {
	var text string
	var names []string
	if json.Unmarshal(b, &text) == nil {
		mask, ok := lettersOf(text)
		if ok {
			*a = accessActions(mask)
			return nil
		}
		names = strings.FieldsFunc(text, func(c rune) bool { return c == ',' || c == ' ' })
	} else if err := json.Unmarshal(b, &names); err != nil {
		return input.Invalid("access.action", "must be letters of rwcdC, or names such as \"read,write\"")
	}
	mask, err := hangar.ParseActions(names)
	if err != nil {
		return input.Invalid("access.action", "%w", err)
	}
	*a = accessActions(mask)
	return nil
}

// lettersOf returns the actions that letters stand for.
func lettersOf(text string) (mask hangar.Action, ok bool) {
	for _, letter := range text {
		action, known := actionLetters[letter]
		if !known {
			return 0, false
		}
		mask |= action
	}
	return mask, true
}

// access returns the requested access. It refuses what this server does not have.
func (in *accessRequest) access() (hangar.Access, error) {
	for _, f := range []struct{ name, value string }{
		{"app_feature", in.AppFeature},
		{"machine_feature", in.MachineFeature},
		{"org_feature", in.OrgFeature},
		{"mutation", in.Mutation},
		{"storage_object", in.StorageObject},
	} {
		if f.value != "" {
			return hangar.Access{}, input.Unsupported("access."+f.name, "no token of this server says anything about it")
		}
	}
	if in.SourceMachine != "" && !in.SourceMachine.Valid() {
		return hangar.Access{}, input.Invalid("access.source_machine", "%.40q is not the id of a machine", in.SourceMachine)
	}
	a := hangar.Access{Actions: hangar.Action(in.Action), Org: in.Org, App: in.App, Machine: in.Machine, Volume: in.Volume, Command: in.Command}
	if a.Actions == 0 && len(a.Command) > 0 {
		a.Actions = hangar.ActionControl
	}
	return a, nil
}

func (s *server) authenticateTokens(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[authenticateRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.Header == "" {
		return router.Answer{}, input.Invalid("header", "is required")
	}
	tokens, err := s.Tokens.AuthenticateTokens(r.Context(), in.Header)
	if err != nil {
		return router.Answer{}, err
	}
	return presentedAnswer(tokens)
}

func (s *server) authorizeTokens(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[authorizeRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.Header == "" {
		return router.Answer{}, input.Invalid("header", "is required")
	}
	access, err := in.Access.access()
	if err != nil {
		return router.Answer{}, err
	}
	a, err := s.Tokens.Authorize(r.Context(), in.Header, access)
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(accessAnswer{accessView(a)})
}

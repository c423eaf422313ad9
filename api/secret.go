package api

import (
	"math"
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

func (s *server) secretRoutes() {
	const all = "/v1/apps/{app}/secrets"
	const one = all + "/{secret}"
	example := hangar.Secret{Name: exampleSecret, Digest: "f52fbd32b2b3b86f", CreatedAt: exampleTime, UpdatedAt: exampleTime}
	listed := viewSecrets(hangar.Secrets{List: []hangar.Secret{example}, Version: 3})
	query := []router.Param{
		{Name: "min_version", Example: 3, Text: "The least acceptable version. The answer is 412 while the secrets are older."},
		{Name: "version", Example: 3, Text: "Another name of min_version."},
		{Name: "show_secrets", Example: false, Text: "Show values; needs the right to change them."},
	}
	s.Handle("GET "+all, s.listSecrets, router.Operation{
		ID: "listSecrets", Tag: "Secrets", Summary: "List secrets",
		Text:  "Sorted by name. The digest of a value stays the same as long as the value does.",
		Query: query, Answer: listed, Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("POST "+all, s.setSecrets, router.Operation{
		ID: "setSecrets", Tag: "Secrets", Summary: "Update secrets",
		Text: "Sets all of them or none; null deletes a secret. A request that changes nothing keeps the version. " +
			"A name must suit an environment variable. Names and values have at most 65536 bytes together.",
		Body: secretsRequest{map[string]hangar.Sensitive{exampleSecret: hangar.NewSensitive("…")}}, Answer: listed,
		Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("GET "+one, s.getSecret, router.Operation{
		ID: "getSecret", Tag: "Secrets", Summary: "Get a secret", Query: query, Answer: viewSecret(example),
		Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("POST "+one, s.setSecret, router.Operation{
		ID: "setSecret", Tag: "Secrets", Summary: "Set a secret",
		Body: secretRequest{hangar.NewSensitive("…")}, Status: http.StatusCreated,
		Answer: madeSecretView{viewSecret(example), secretVersionView{3, 3}},
		Errors: []int{http.StatusConflict, http.StatusPreconditionFailed},
	})
	s.Handle("DELETE "+one, s.deleteSecret, router.Operation{
		ID: "deleteSecret", Tag: "Secrets", Summary: "Delete a secret", Answer: secretVersionView{4, 4},
		Errors: []int{http.StatusPreconditionFailed},
	})
}

const exampleSecret = "DATABASE_URL"

// secretView is a secret as clients decode it; its fields hide those of the Secret.
type secretView struct {
	hangar.Secret
	CreatedAt string  `json:"created_at"`
	UpdatedAt string  `json:"updated_at"`
	Value     *string `json:"value,omitempty"` // if it was requested
}

func viewSecret(s hangar.Secret) secretView {
	v := secretView{Secret: s, CreatedAt: view.Time(s.CreatedAt), UpdatedAt: view.Time(s.UpdatedAt)}
	if !s.Value.IsZero() {
		text := s.Value.Reveal()
		v.Value = &text
	}
	return v
}

// secretsView are the secrets of an App. Clients know the version by two names.
type secretsView struct {
	Secrets    []secretView `json:"secrets"`
	Version    int          `json:"version"`
	OldVersion int          `json:"Version"`
}

func viewSecrets(all hangar.Secrets) secretsView {
	v := secretsView{Secrets: []secretView{}, Version: all.Version, OldVersion: all.Version}
	for _, s := range all.List {
		v.Secrets = append(v.Secrets, viewSecret(s))
	}
	return v
}

// secretVersionView answers a change of one secret.
type secretVersionView struct {
	Version    int `json:"version"`
	OldVersion int `json:"Version"`
}

// madeSecretView answers the setting of one secret.
type madeSecretView struct {
	secretView
	secretVersionView
}

// secretsRequest is the body that sets secrets; null deletes one.
type secretsRequest struct {
	Values map[string]hangar.Sensitive `json:"values"`
}

// secretRequest is the body that sets one secret.
type secretRequest struct {
	Value hangar.Sensitive `json:"value"`
}

// secretQuery reads the parameters of a listing. The least version has two names.
func secretQuery(r *http.Request) (hangar.SecretQuery, error) {
	q := input.QueryOf(r)
	query := hangar.SecretQuery{
		MinVersion: max(q.Int("min_version", 0, math.MaxInt32), q.Int("version", 0, math.MaxInt32)),
		Show:       q.Bool("show_secrets"),
	}
	return query, q.Err
}

func (s *server) listSecrets(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	q, err := secretQuery(r)
	if err != nil {
		return router.Answer{}, err
	}
	all, err := s.Secrets.Secrets(r.Context(), app, q)
	return router.AnswerOf(viewSecrets(all), err)
}

func (s *server) setSecrets(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[secretsRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.Values == nil {
		return router.Answer{}, input.Invalid("values", "is required: an object of names and values, null to delete one")
	}
	all, err := s.Secrets.SetSecrets(r.Context(), app, in.Values)
	return router.AnswerOf(viewSecrets(all), err)
}

func (s *server) getSecret(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	q, err := secretQuery(r)
	if err != nil {
		return router.Answer{}, err
	}
	secret, err := s.Secrets.Secret(r.Context(), app, r.PathValue("secret"), q)
	return router.AnswerOf(viewSecret(secret), err)
}

func (s *server) setSecret(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[secretRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.Value.IsZero() {
		return router.Answer{}, input.Invalid("value", "is required")
	}
	name := r.PathValue("secret")
	all, err := s.Secrets.SetSecrets(r.Context(), app, map[string]hangar.Sensitive{name: in.Value})
	if err != nil {
		return router.Answer{}, err
	}
	for _, made := range all.List {
		if made.Name == name {
			return router.Answer{Status: http.StatusCreated, Body: madeSecretView{viewSecret(made), secretVersionView{all.Version, all.Version}}}, nil
		}
	}
	return router.Answer{}, hangar.Errorf(hangar.CodeConflict, "", "secret %q was removed by another request at the same time", name)
}

func (s *server) deleteSecret(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	version, err := s.Secrets.DeleteSecret(r.Context(), app, r.PathValue("secret"))
	return router.AnswerOf(secretVersionView{version, version}, err)
}

package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

func (s *server) registryRoutes() {
	const one = "/v1/registries/{registry}"
	example := hangar.RegistryCredential{Registry: exampleRegistry, Username: "me", CreatedAt: exampleTime, UpdatedAt: exampleTime}
	s.Handle("GET /v1/registries", s.listRegistries, router.Operation{
		ID: "listRegistries", Tag: "Registries", Summary: "List registry credentials",
		Text: "Sorted by registry, without passwords. " + forAdmins, Answer: registriesAnswer{[]hangar.RegistryCredential{example}},
	})
	s.Handle("GET "+one, s.getRegistry, router.Operation{
		ID: "getRegistry", Tag: "Registries", Summary: "Get a registry credential",
		Text: "Without the password. " + forAdmins, Answer: example,
	})
	s.Handle("PUT "+one, s.setRegistry, router.Operation{
		ID: "setRegistry", Tag: "Registries", Summary: "Set a registry credential",
		Text:   "Creates or replaces the credential, which the next pull uses. The password, or token, is kept encrypted and never shown. " + forAdmins,
		Body:   loginRequest{Username: "me", Password: hangar.NewSensitive("ghp_…")},
		Answer: example,
	})
	s.Handle("DELETE "+one, s.deleteRegistry, router.Operation{
		ID: "deleteRegistry", Tag: "Registries", Summary: "Delete a registry credential",
		Text: forAdmins, Status: http.StatusNoContent,
	})
}

func (s *server) encryptionRoutes() {
	s.Handle("POST /v1/encryption/rotate", s.rotateEncryptionKey, router.Operation{
		ID: "rotateEncryptionKey", Tag: "Platform", Summary: "Rotate the encryption key",
		Text:   "Makes a new key, encrypts everything with it, and drops the old one. An interrupted rotation is continued. " + forAdmins,
		Answer: hangar.KeyRotation{Key: 1927250828, Resealed: 4, Dropped: 1},
	})
}

const (
	forAdmins       = "Only an administrator may do this."
	exampleRegistry = "ghcr.io"
)

// registriesAnswer lists credentials.
type registriesAnswer struct {
	Registries []hangar.RegistryCredential `json:"registries"`
}

// loginRequest is the body that sets a credential.
type loginRequest struct {
	Username string           `json:"username"`
	Password hangar.Sensitive `json:"password"`
}

func (s *server) listRegistries(r *http.Request) (router.Answer, error) {
	list, err := s.Registries.RegistryCredentials(r.Context())
	return router.AnswerOf(registriesAnswer{view.OrEmpty(list)}, err)
}

func (s *server) getRegistry(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(s.Registries.RegistryCredential(r.Context(), r.PathValue("registry")))
}

func (s *server) setRegistry(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[loginRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(s.Registries.SetRegistryCredential(r.Context(), r.PathValue("registry"), hangar.RegistryLogin(in)))
}

func (s *server) deleteRegistry(r *http.Request) (router.Answer, error) {
	return router.NoContent(s.Registries.DeleteRegistryCredential(r.Context(), r.PathValue("registry")))
}

func (s *server) rotateEncryptionKey(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(s.Encryption.RotateEncryptionKey(r.Context()))
}

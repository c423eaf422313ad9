// Package extension has the operations of providers and of extensions, and receives webhooks.
//
// Promises. Secrets of a provider are only in the answer that creates them. A webhook is
// authenticated by its signature alone, over the bytes of its body.
//
// Concurrency. Handlers are safe for concurrent use.
//
// It decides nothing: package control/extensions does.
package extension

import (
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/router"
)

// Hooks receives webhooks of providers.
type Hooks interface {
	ReceiveHook(r *http.Request, name hangar.ProviderName) error
}

// Services has the services behind the operations.
type Services struct {
	Providers  hangar.ProviderService
	Extensions hangar.ExtensionService
	Hooks      Hooks
}

// area has the handlers.
type area struct{ Services }

// Routes adds the operations to a router.
func Routes(rt *router.Router, s Services) {
	a := area{s}
	a.providerRoutes(rt)
	a.extensionRoutes(rt)
	rt.Public("POST /hooks/extensions/{provider}", a.receiveHook, router.Operation{
		ID: "receiveExtensionHook", Tag: "Extensions", Summary: "Receive a webhook of a provider",
		Text: "For providers of extensions. The header `X-Signature` authenticates it, as the documentation of extensions says: " +
			"the answer is 401 when the signature does not fit the body, the timestamp is more than five minutes off, or the same webhook came before. " +
			"Providers repeat it after 429 and 5xx.",
		Body: exampleHook(), Lenient: true, Status: http.StatusNoContent, Errors: []int{http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusForbidden},
	})
}

func (a area) receiveHook(r *http.Request) (router.Answer, error) {
	return router.NoContent(a.Hooks.ReceiveHook(r, providerName(r)))
}

// hook is the body of a webhook, for the document.
type hook struct {
	Action    string                     `json:"action" schema:"required"`
	Resource  map[string]json.RawMessage `json:"resource" schema:"required"`
	Timestamp string                     `json:"timestamp" schema:"required"`
	URL       string                     `json:"url,omitempty"`
	Nonce     string                     `json:"nonce,omitempty"`
}

func exampleHook() hook {
	return hook{
		Action: "resource.updated", Resource: map[string]json.RawMessage{"id": json.RawMessage(`"7"`), "plan": json.RawMessage(`"pro"`), "status": json.RawMessage(`"ready"`)}, Timestamp: "1786701455",
		URL: "https://api.example.com/hooks/extensions/logs", Nonce: "e3f7b4c8f5ea016d0d2e92048ca0d856",
	}
}

func providerName(r *http.Request) hangar.ProviderName {
	return hangar.ProviderName(r.PathValue("provider"))
}

// DescribeTypes describes the types of this area.
func DescribeTypes(s *openapi.Schemas) {
	openapi.KnowEnum(s, hangar.ProviderSecrets()...)
	s.Know(reflect.TypeFor[json.RawMessage](), openapi.Schema{Description: "Any JSON value."})
	s.Name(reflect.TypeFor[hangar.ProviderCreate](), "ProviderRequest")
	s.Name(reflect.TypeFor[hangar.ExtensionCreate](), "ExtensionRequest")
	openapi.Describe[hangar.Provider](s, map[string]string{
		"name":             "At most 63 characters of a-z, 0-9 and dash.",
		"client_id":        "Of OAuth, for single sign-on.",
		"webhook_url":      "To which the provider sends webhooks.",
		"extensions":       "How many there are now.",
		"rotation_ends_at": "When the last old secret becomes invalid. Left out when there is none.",
	})
	openapi.Describe[hangar.ProviderCreate](s, map[string]string{"name": "At most 63 characters of a-z, 0-9 and dash."})
	settings := map[string]string{
		"display_name":       "For people. The default is the name.",
		"base_url":           "Of the provider's server: https, or http with `allow_private`.",
		"allow_private":      "The server may be on loopback, on a private network or on this platform, and speak plain HTTP.",
		"redirect_uris":      "Of single sign-on, compared byte by byte.",
		"terms":              "What every user accepts once before creating an extension.",
		"name_suffix":        "Follows the App's name in default names. The default is a dash and the provider's name.",
		"plans":              "To choose from. Without any, the provider has plans of its own.",
		"regions":            "Where extensions are offered. Everywhere when it is left out.",
		"asynchronous":       "An extension may not be ready when its creation was answered.",
		"read_replicas":      "There may be read regions.",
		"public_event_types": "Types of Machine events are spelled as on the public platform.",
		"platform_app_name":  "The provider's App on this platform. Apps of its organization may serve extensions; the provider gets its Machine events.",
		"granted_apps":       "Further Apps whose Machine events the provider gets.",
	}
	openapi.Describe[hangar.ProviderSettings](s, settings)
	openapi.Describe[hangar.ProviderUpdate](s, settings)
	openapi.Describe[hangar.ProviderLimits](s, map[string]string{
		"extensions": "Of all organizations.", "per_organization": "Extensions of one organization.", "webhooks_per_minute": "That are accepted.",
	})
	openapi.Describe[hangar.ProviderRotate](s, map[string]string{ //nolint:gosec // texts about secrets
		"secrets": "All when it is left out.",
		"overlap": "How long old secrets stay valid; requests are signed with the old one until then. `24h` when it is left out.",
	})
	openapi.Describe[hangar.Extension](s, map[string]string{
		"name":              "Unique on the platform among extensions with an App.",
		"app_name":          "Left out for an extension that the provider has created by itself.",
		"user_id":           "Its creator.",
		"status":            "`provisioning`, `ready`, `sleeping`, `error`, `destroying`, or a word of the provider.",
		"error":             "The last fault, while it lasts.",
		"ip_address":        "A private address in the network of the App, which an App of the provider may serve.",
		"platform_app_name": "The provider's App that serves `ip_address`.",
		"provider_id":       "The provider's own id for it.",
		"secrets":           "The names of the App's secrets that the extension has set.",
		"usage":             "Further members of the provider's answer.",
		"checked_at":        "When the provider last reported the status.",
	})
	openapi.Describe[hangar.ExtensionCreate](s, map[string]string{
		"name":         "The default is the App's name with the provider's suffix.",
		"accept_terms": "The version of the provider's terms that the user accepts; needed once.",
		"overwrite":    "Replace secrets of the App that have the same names.",
	})
	openapi.Describe[hangar.ExtensionLink](s, map[string]string{"url": "Works once, within five minutes."})
}

// decoded calls with the decoded body of a request.
func decoded[T, A any](r *http.Request, call func(T) (A, error)) (router.Answer, error) {
	in, err := input.Decode[T](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(call(in))
}

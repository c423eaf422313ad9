package extension

import (
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

// exampleTime is the time in all examples.
func exampleTime() time.Time { return time.Date(2026, 8, 14, 9, 57, 35, 0, time.UTC) }

// providerList is a listing of providers.
type providerList struct {
	Providers []*hangar.Provider `json:"providers"`
}

// newProvider is a provider with new secrets. No other answer holds them.
type newProvider struct {
	ClientSecret  string `json:"client_secret,omitempty"`
	RequestSecret string `json:"request_secret,omitempty"`
	WebhookSecret string `json:"webhook_secret,omitempty"`
	hangar.Provider
}

func exampleProvider() hangar.Provider {
	return hangar.Provider{
		Name: "logs", ClientID: "u7d1m0x4k9s2b6qz", WebhookURL: "https://api.example.com/hooks/extensions/logs", Extensions: 3,
		CreatedAt: exampleTime(), UpdatedAt: exampleTime(),
		ProviderSettings: hangar.ProviderSettings{
			DisplayName: "Logs", BaseURL: "https://logs.example.com", RedirectURIs: []string{"https://logs.example.com/oauth/callback"},
			Terms: &hangar.ProviderTerms{URL: "https://logs.example.com/terms", Version: "2026-01"}, Plans: []string{"hobby", "pro"},
			Limits: hangar.ProviderLimits{}.WithDefaults(),
		},
	}
}

func (a area) providerRoutes(rt *router.Router) {
	const provider = "/v1/providers/{provider}"
	example := exampleProvider()
	settings := hangar.ProviderCreate{Name: example.Name, ProviderSettings: example.ProviderSettings}
	settings.Limits = hangar.ProviderLimits{}
	made := newProvider{ //nolint:gosec // the beginnings of secrets
		ClientSecret: "hgpc_0f1e2d3c…", RequestSecret: "hgpr_5a6978ff…", WebhookSecret: "hgpw_77aa01bc…", Provider: example,
	}
	rt.Handle("POST /v1/providers", a.createProvider, router.Operation{
		ID: "createProvider", Tag: "Extensions", Summary: "Create a provider",
		Text: "For administrators of the platform, like all operations on providers. Only this answer holds the secrets. " +
			"The keys of signatures are the bytes of the secrets as shown.",
		Body: settings, Status: http.StatusCreated, Answer: made, Errors: []int{http.StatusUnprocessableEntity},
	})
	rt.Handle("GET /v1/providers", a.listProviders, router.Operation{
		ID: "listProviders", Tag: "Extensions", Summary: "List providers", Answer: providerList{[]*hangar.Provider{&example}},
	})
	rt.Handle("GET "+provider, a.getProvider, router.Operation{
		ID: "getProvider", Tag: "Extensions", Summary: "Get a provider", Answer: example,
	})
	rt.Handle("PATCH "+provider, a.updateProvider, router.Operation{
		ID: "updateProvider", Tag: "Extensions", Summary: "Update a provider", Text: "What is left out stays. Empty `terms` remove them.",
		Body: hangar.ProviderUpdate{Plans: &example.Plans}, Answer: example,
	})
	rt.Handle("DELETE "+provider, a.removeProvider, router.Operation{
		ID: "removeProvider", Tag: "Extensions", Summary: "Remove a provider",
		Text:   "A provider with extensions is refused without `force`. With it, its extensions are removed, too, with the secrets that they have set, and the provider is not asked to delete them.",
		Query:  []router.Param{{Name: "force", Example: true, Text: "Also while there are extensions."}},
		Status: http.StatusNoContent, Errors: []int{http.StatusPreconditionFailed},
	})
	rt.Handle("POST "+provider+"/rotate", a.rotateProvider, router.Operation{
		ID: "rotateProvider", Tag: "Extensions", Summary: "Rotate the secrets of a provider",
		Text: "Old secrets stay valid for a while. Only this answer holds the new ones.",
		Body: hangar.ProviderRotate{Secrets: []hangar.ProviderSecret{hangar.SecretOfWebhooks}}, MayOmit: true,
		Answer: newProvider{WebhookSecret: made.WebhookSecret, Provider: example}, Errors: []int{http.StatusPreconditionFailed},
	})
}

func shown(p *hangar.NewProvider) newProvider {
	return newProvider{p.ClientSecret.Reveal(), p.RequestSecret.Reveal(), p.WebhookSecret.Reveal(), p.Provider}
}

func (a area) createProvider(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.ProviderCreate](r)
	if err != nil {
		return router.Answer{}, err
	}
	made, err := a.Providers.CreateProvider(r.Context(), in)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusCreated, Body: shown(made), Header: router.SecretHeader()}, nil
}

func (a area) listProviders(r *http.Request) (router.Answer, error) {
	list, err := a.Providers.Providers(r.Context())
	return router.AnswerOf(providerList{view.OrEmpty(list)}, err)
}

func (a area) getProvider(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(a.Providers.Provider(r.Context(), providerName(r)))
}

func (a area) updateProvider(r *http.Request) (router.Answer, error) {
	return decoded(r, func(in hangar.ProviderUpdate) (*hangar.Provider, error) {
		return a.Providers.UpdateProvider(r.Context(), providerName(r), in)
	})
}

func (a area) removeProvider(r *http.Request) (router.Answer, error) {
	q := input.QueryOf(r)
	force := q.Bool("force")
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	return router.NoContent(a.Providers.RemoveProvider(r.Context(), providerName(r), force))
}

func (a area) rotateProvider(r *http.Request) (router.Answer, error) {
	in, err := input.DecodeOptional[hangar.ProviderRotate](r)
	if err != nil {
		return router.Answer{}, err
	}
	made, err := a.Providers.RotateProvider(r.Context(), providerName(r), in)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Body: shown(made), Header: router.SecretHeader()}, nil
}

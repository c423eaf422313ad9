package extension

import (
	"encoding/json"
	"net/http"
	"net/netip"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

// extensionList is a listing of extensions.
type extensionList struct {
	Extensions []*hangar.Extension `json:"extensions"`
}

// ended is the result of a request to destroy an extension.
type ended struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Error  string `json:"error,omitempty"`
}

// destroyed is the status of an extension that is gone.
const destroyed = "destroyed"

func exampleExtension() hangar.Extension {
	return hangar.Extension{
		ID: "w2k8d0x5m1q7z3ha", Name: "web-logs", Provider: "logs", App: "web", Org: "acme", User: "b3z5q1k8w0h7m2xd", Plan: "hobby",
		PrimaryRegion: "ams", Status: hangar.ExtensionReady, IP: netip.MustParseAddr("fdaa:0:1:0:1::3"), ProviderID: "7", Secrets: []string{"LOGS_TOKEN"},
		Usage:     map[string]json.RawMessage{"lines": json.RawMessage("1200")},
		CheckedAt: exampleTime(), CreatedAt: exampleTime(), UpdatedAt: exampleTime(),
	}
}

func (a area) extensionRoutes(rt *router.Router) {
	const all, one = "/v1/apps/{app}/extensions", "/v1/apps/{app}/extensions/{extension}"
	example := exampleExtension()
	plan := "pro"
	rt.Handle("POST "+all, a.createExtension, router.Operation{
		ID: "createExtension", Tag: "Extensions", Summary: "Create an extension",
		Text: "The provider creates it, and its answer becomes secrets of the App, all or none. The answer comes when that is done, or " +
			"after five seconds with the status at that time; the work continues. Needs the token of a user. The text of a 412 with the status " +
			"`terms_not_accepted` says where to find the terms that the user has to accept.",
		Body:   hangar.ExtensionCreate{Provider: example.Provider, Plan: example.Plan, PrimaryRegion: example.PrimaryRegion, AcceptTerms: "2026-01"},
		Status: http.StatusCreated, Answer: example, Errors: []int{http.StatusPreconditionFailed, http.StatusUnprocessableEntity},
	})
	rt.Handle("GET "+all, a.listExtensions, router.Operation{
		ID: "listExtensions", Tag: "Extensions", Summary: "List extensions", Answer: extensionList{[]*hangar.Extension{&example}},
	})
	rt.Handle("GET /v1/orgs/{org}/extensions", a.listOrgExtensions, router.Operation{
		ID: "listOrgExtensions", Tag: "Extensions", Summary: "List extensions of an organization",
		Text: "Of all its Apps, including those that providers have created by themselves, and those of destroyed Apps whose provider has not " +
			"confirmed the deletion yet.",
		Answer: extensionList{[]*hangar.Extension{&example}},
	})
	rt.Handle("GET "+one, a.getExtension, router.Operation{
		ID: "getExtension", Tag: "Extensions", Summary: "Get an extension", Answer: example,
	})
	rt.Handle("PATCH "+one, a.updateExtension, router.Operation{
		ID: "updateExtension", Tag: "Extensions", Summary: "Update an extension", Text: "What is left out stays.",
		Body: hangar.ExtensionUpdate{Plan: &plan}, Answer: example, Errors: []int{http.StatusConflict},
	})
	rt.Handle("DELETE "+one, a.destroyExtension, router.Operation{
		ID: "destroyExtension", Tag: "Extensions", Summary: "Destroy an extension",
		Text: "Removes at once the secrets that the extension has set, unless they were changed since. The status is `" + destroyed + "`, or `destroying` until the " +
			"provider has confirmed it.",
		Answer: ended{Name: example.Name, Status: destroyed},
	})
	rt.Handle("POST "+one+"/retry", a.retryExtension, router.Operation{
		ID: "retryExtension", Tag: "Extensions", Summary: "Retry a failed extension",
		Body: hangar.ExtensionRetry{Overwrite: true}, MayOmit: true, Answer: example, Errors: []int{http.StatusConflict},
	})
	rt.Handle("GET "+one+"/sso", a.linkExtension, router.Operation{
		ID: "linkExtension", Tag: "Extensions", Summary: "Get the sign-on link of an extension",
		Text:   "The provider asks the visitor to sign in.",
		Answer: hangar.ExtensionLink{URL: "https://logs.example.com/extensions/7/sso?nonce=…&timestamp=…&url=…&signature=…"}, Errors: []int{http.StatusConflict},
	})
}

func appName(r *http.Request) hangar.AppName { return hangar.AppName(r.PathValue("app")) }

func (a area) createExtension(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.ExtensionCreate](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Created(a.Extensions.CreateExtension(r.Context(), appName(r), in))
}

func (a area) listExtensions(r *http.Request) (router.Answer, error) {
	list, err := a.Extensions.Extensions(r.Context(), appName(r))
	return router.AnswerOf(extensionList{view.OrEmpty(list)}, err)
}

func (a area) listOrgExtensions(r *http.Request) (router.Answer, error) {
	list, err := a.Extensions.OrgExtensions(r.Context(), hangar.OrgSlug(r.PathValue("org")))
	return router.AnswerOf(extensionList{view.OrEmpty(list)}, err)
}

func (a area) getExtension(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(a.Extensions.Extension(r.Context(), appName(r), r.PathValue("extension")))
}

func (a area) updateExtension(r *http.Request) (router.Answer, error) {
	return decoded(r, func(in hangar.ExtensionUpdate) (*hangar.Extension, error) {
		e, err := a.Extensions.UpdateExtension(r.Context(), appName(r), r.PathValue("extension"), in)
		if err == nil && e == nil {
			err = hangar.ExtensionNotFound(r.PathValue("extension"))
		}
		return e, err
	})
}

func (a area) destroyExtension(r *http.Request) (router.Answer, error) {
	e, err := a.Extensions.DestroyExtension(r.Context(), appName(r), r.PathValue("extension"))
	if err != nil {
		return router.Answer{}, err
	}
	if e == nil {
		return router.OK(ended{Name: r.PathValue("extension"), Status: destroyed})
	}
	return router.OK(ended{Name: e.Name, Status: string(e.Status), Error: e.Error})
}

func (a area) retryExtension(r *http.Request) (router.Answer, error) {
	in, err := input.DecodeOptional[hangar.ExtensionRetry](r)
	if err != nil {
		return router.Answer{}, err
	}
	e, err := a.Extensions.RetryExtension(r.Context(), appName(r), r.PathValue("extension"), in)
	if err == nil && e == nil {
		err = hangar.ExtensionNotFound(r.PathValue("extension"))
	}
	return router.AnswerOf(e, err)
}

func (a area) linkExtension(r *http.Request) (router.Answer, error) {
	link, err := a.Extensions.ExtensionLink(r.Context(), appName(r), r.PathValue("extension"))
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Body: link, Header: router.SecretHeader()}, nil
}

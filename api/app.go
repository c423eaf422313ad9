package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
)

func (s *server) appRoutes() {
	s.Handle("POST /v1/apps", s.createApp, router.Operation{
		ID: "createApp", Tag: "Apps", Summary: "Create an App",
		Text:   "One of `app_name` and `name` is required. A name that exists is refused with 422 and the reason `name_taken`.",
		Query:  []router.Param{{Name: "wait", Example: true, Text: "Accepted; an App is always ready when this answers."}},
		Body:   appRequest{AppName: "web", Org: hangar.OrgPersonal},
		Status: http.StatusCreated, Answer: exampleApp(), Errors: []int{http.StatusNotFound, http.StatusUnprocessableEntity},
	})
	s.Handle("GET /v1/apps", s.listApps, router.Operation{
		ID: "listApps", Tag: "Apps", Summary: "List Apps", Text: "Sorted by name.",
		Query: []router.Param{
			{Name: "org_slug", Example: "personal", Text: "Only those of this organization."},
			{Name: "app_role", Example: "", Text: "Only those with this role; no App has one."},
		},
		Answer: appList{1, []appView{exampleApp()}}, Errors: []int{http.StatusNotFound},
	})
	s.Handle("GET /v1/apps/{app}", s.getApp, router.Operation{
		ID: "getApp", Self: true, Tag: "Apps", Summary: "Get an App",
		Text:   "An App of another organization is refused with 403, which reveals that its name is taken.",
		Answer: exampleApp(),
	})
	s.Handle("DELETE /v1/apps/{app}", s.destroyApp, router.Operation{
		ID: "destroyApp", Tag: "Apps", Summary: "Destroy an App", Text: "Its Machines are destroyed with it.",
		Query:  []router.Param{{Name: "force", Example: true, Text: "Also while a Machine runs. The default is true."}},
		Status: http.StatusAccepted, Errors: []int{http.StatusPreconditionFailed},
	})
}

// appView is an App as clients decode it.
type appView struct {
	*hangar.App
	CreatedAt   int64  `json:"created_at"` // Unix milliseconds
	CNAMETarget string `json:"cname_target"`
	Role        string `json:"app_role"` // always empty: no App has a role
}

// appList is a listing of Apps.
type appList struct {
	Total int       `json:"total_apps"`
	Apps  []appView `json:"apps"`
}

func (s *server) viewApp(a *hangar.App) appView {
	if s.AppURL != nil {
		served := *a
		served.URL = s.AppURL(a.Name)
		a = &served
	}
	return viewApp(a)
}

func viewApp(a *hangar.App) appView { return appView{App: a, CreatedAt: a.CreatedAt.UnixMilli()} }

// appRequest is the body of create. Clients write the name under either of two
// properties.
type appRequest struct {
	AppName hangar.AppName `json:"app_name"`
	Name    hangar.AppName `json:"name"`
	Org     hangar.OrgSlug `json:"org_slug"`
	Network string         `json:"network"`
	// Clients of the public platform send these, too. They have no effect.
	Role       string `json:"app_role_id"`
	Subdomains bool   `json:"enable_subdomains"`
}

func (s *server) createApp(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[appRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.AppName == "" {
		in.AppName = in.Name
	}
	if in.AppName == "" {
		return router.Answer{}, input.Invalid("app_name", "is required")
	}
	app, err := s.Apps.CreateApp(r.Context(), hangar.AppCreate{Name: in.AppName, Org: in.Org, Network: in.Network})
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusCreated, Body: s.viewApp(app)}, nil
}

func (s *server) listApps(r *http.Request) (router.Answer, error) {
	q := input.QueryOf(r)
	filter := hangar.AppFilter{Org: hangar.OrgSlug(q.Text("org_slug"))}
	role := q.Text("app_role")
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	views := []appView{}
	if role == "" { // no App has a role
		apps, err := s.Apps.Apps(r.Context(), filter)
		if err != nil {
			return router.Answer{}, err
		}
		for _, a := range apps {
			views = append(views, s.viewApp(a))
		}
	}
	return router.OK(appList{len(views), views})
}

func (s *server) getApp(r *http.Request) (router.Answer, error) {
	name, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	app, err := s.Apps.App(r.Context(), name)
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(s.viewApp(app))
}

// destroyApp takes a missing force for true. Existing clients never send it and expect it to destroy
// running Machines, too.
func (s *server) destroyApp(r *http.Request) (router.Answer, error) {
	name, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	q := input.QueryOf(r)
	force := q.BoolOr("force", true)
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	if err := s.Apps.DestroyApp(r.Context(), name, force); err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusAccepted}, nil
}

package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
)

func (s *server) appRoutes() {
	s.handle("POST /v1/apps", s.createApp, operation{
		ID: "createApp", Tag: "Apps", Summary: "Create an App",
		Text:   "One of `app_name` and `name` is required. A name that exists is refused with 422 and the reason `name_taken`.",
		Query:  []param{{"wait", true, "Accepted; an App is always ready when this answers."}},
		Body:   appWish{AppName: "web", Org: hangar.OrgPersonal},
		Status: http.StatusCreated, Answer: exampleApp(), Errors: []int{http.StatusNotFound, http.StatusUnprocessableEntity},
	})
	s.handle("GET /v1/apps", s.listApps, operation{
		ID: "listApps", Tag: "Apps", Summary: "List Apps", Text: "Sorted by name.",
		Query: []param{
			{"org_slug", "personal", "Only those of this organization."},
			{"app_role", "", "Only those with this role; no App has one."},
		},
		Answer: appList{1, []appView{exampleApp()}}, Errors: []int{http.StatusNotFound},
	})
	s.handle("GET /v1/apps/{app}", s.getApp, operation{
		ID: "getApp", Self: true, Tag: "Apps", Summary: "Get an App",
		Text:   "An App of another organization is refused with 403, which tells that its name is taken.",
		Answer: exampleApp(),
	})
	s.handle("DELETE /v1/apps/{app}", s.destroyApp, operation{
		ID: "destroyApp", Tag: "Apps", Summary: "Destroy an App and its Machines",
		Query:  []param{{"force", true, "Also while a Machine runs. The default is true."}},
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

// appWish is the body of create. Clients write the name under either of two
// properties.
type appWish struct {
	AppName hangar.AppName `json:"app_name"`
	Name    hangar.AppName `json:"name"`
	Org     hangar.OrgSlug `json:"org_slug"`
	Network string         `json:"network"`
	// Clients of the public platform send these, too. They have no effect.
	Role       string `json:"app_role_id"`
	Subdomains bool   `json:"enable_subdomains"`
}

func (s *server) createApp(r *http.Request) (answer, error) {
	in, err := input.Decode[appWish](r)
	if err != nil {
		return answer{}, err
	}
	if in.AppName == "" {
		in.AppName = in.Name
	}
	if in.AppName == "" {
		return answer{}, input.Invalid("app_name", "is required")
	}
	app, err := s.Apps.CreateApp(r.Context(), hangar.AppCreate{Name: in.AppName, Org: in.Org, Network: in.Network})
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusCreated, body: s.viewApp(app)}, nil
}

func (s *server) listApps(r *http.Request) (answer, error) {
	q := input.QueryOf(r)
	filter := hangar.AppFilter{Org: hangar.OrgSlug(q.Text("org_slug"))}
	role := q.Text("app_role")
	if q.Err != nil {
		return answer{}, q.Err
	}
	views := []appView{}
	if role == "" { // no App has a role
		apps, err := s.Apps.Apps(r.Context(), filter)
		if err != nil {
			return answer{}, err
		}
		for _, a := range apps {
			views = append(views, s.viewApp(a))
		}
	}
	return ok(appList{len(views), views})
}

func (s *server) getApp(r *http.Request) (answer, error) {
	name, err := appName(r)
	if err != nil {
		return answer{}, err
	}
	app, err := s.Apps.App(r.Context(), name)
	if err != nil {
		return answer{}, err
	}
	return ok(s.viewApp(app))
}

// destroyApp takes a missing force for true: existing clients never send it and
// expect their running Machines to go, too.
func (s *server) destroyApp(r *http.Request) (answer, error) {
	name, err := appName(r)
	if err != nil {
		return answer{}, err
	}
	q := input.QueryOf(r)
	force := q.BoolOr("force", true)
	if q.Err != nil {
		return answer{}, q.Err
	}
	if err := s.Apps.DestroyApp(r.Context(), name, force); err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusAccepted}, nil
}

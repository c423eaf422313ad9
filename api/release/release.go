// Package release serves the releases of Apps: what was deployed, by whom, and how far it has come.
//
// Below /v1 they have the form of this API; below /api/v1 the form that deployers of the public
// platform use, with the builds that they announce. Builds are not stored: the id of one says when
// it began.
package release

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
)

// Services are the services behind the operations.
type Services struct {
	Releases hangar.ReleaseService
	Apps     hangar.AppService
}

type area struct{ Services }

func exampleTime() time.Time { return time.Date(2026, 8, 14, 9, 57, 35, 0, time.UTC) }

func exampleRelease() hangar.Release {
	return hangar.Release{
		ID: "w5yt2wl6j1qgakzn-12", App: "web", Version: 12, Status: hangar.ReleaseComplete, Strategy: hangar.StrategyRolling,
		Image: "registry.example.com/acme/web:12", Definition: json.RawMessage(`{"app":"web","primary_region":"ams"}`),
		Reason: "deploy", Description: "Release", User: "ann@example.com", UserID: "b3z5q1k8w0h7m2xd", CreatedAt: exampleTime(), UpdatedAt: exampleTime(),
	}
}

// releaseList is a listing of releases.
type releaseList struct {
	Releases []*hangar.Release `json:"releases"`
}

// deployedRelease is a release as deployers decode it.
type deployedRelease struct {
	ID          hangar.ReleaseID     `json:"id"`
	Version     int                  `json:"version"`
	Stable      bool                 `json:"stable"`
	InProgress  bool                 `json:"in_progress"`
	Status      hangar.ReleaseStatus `json:"status"`
	Strategy    string               `json:"strategy"` // in capitals
	Description string               `json:"description"`
	Reason      string               `json:"reason"`
	User        string               `json:"user"`
	ImageRef    string               `json:"image_ref"`
	CreatedAt   time.Time            `json:"created_at"`
}

func view(r *hangar.Release) deployedRelease {
	return deployedRelease{
		ID: r.ID, Version: r.Version, Stable: r.Status == hangar.ReleaseComplete, InProgress: r.Status.InProgress(), Status: r.Status,
		Strategy: strings.ToUpper(string(r.Strategy)), Description: r.Description, Reason: r.Reason, User: r.User, ImageRef: r.Image,
		CreatedAt: r.CreatedAt,
	}
}

// oneRelease is a release by itself. Some deployers decode it as release, others as the whole.
type oneRelease struct {
	deployedRelease

	Release deployedRelease `json:"release"`
}

func whole(r *hangar.Release) oneRelease { return oneRelease{view(r), view(r)} }

// deployedList is a listing of releases as deployers decode it.
type deployedList struct {
	Releases []deployedRelease `json:"releases"`
}

// releaseRequest is a request for a release from a deployer. Other properties have no effect.
type releaseRequest struct {
	App        hangar.AppName  `json:"app_name" schema:"required"`
	Image      string          `json:"image"`
	Definition json.RawMessage `json:"definition,omitempty"`
	Strategy   string          `json:"strategy,omitempty"`
}

// releaseProgress is a change of a release's progress.
type releaseProgress struct {
	Status   string          `json:"status" schema:"required"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// buildRequest announces a build, or says that it has ended. Other properties have no effect.
type buildRequest struct {
	App     hangar.AppName `json:"app_name" schema:"required"`
	BuildID int64          `json:"build_id,omitempty"`
	Status  string         `json:"status,omitempty"`
}

// buildView is a build as deployers decode it.
type buildView struct {
	ID        int64  `json:"id"` // when it began, in Unix milliseconds
	Status    string `json:"status"`
	Wallclock int64  `json:"wallclock_time_ms"`
}

// Routes adds the operations about releases.
func Routes(rt *router.Router, s Services) {
	const tag, all, existing = "Releases", "/v1/apps/{app}/releases", "In the shape that deployers of the public platform decode."
	const current = "The newest that is complete or, if none is, the newest."
	a := area{s}
	example := exampleRelease()
	limit := []router.Param{{Name: "limit", Example: 20, Text: "How many at most, from 1 to 100."}}
	rt.Handle("POST "+all, a.create, router.Operation{
		ID: "createRelease", Tag: tag, Summary: "Create a release",
		Text: "A record of what is deployed, which changes no Machine. With `rollback`, it takes the image and the definition of that version. " +
			"Only the newest 100 are kept.",
		Body:   hangar.ReleaseCreate{Image: example.Image, Definition: example.Definition, Reason: example.Reason},
		Status: http.StatusCreated, Answer: example,
	})
	rt.Handle("GET "+all, a.list, router.Operation{
		ID: "listReleases", Tag: tag, Summary: "List releases", Text: "Newest first.", Query: limit, Answer: releaseList{[]*hangar.Release{&example}},
	})
	rt.Handle("GET "+all+"/current", a.current, router.Operation{
		ID: "getCurrentRelease", Tag: tag, Summary: "Get the current release", Text: current, Answer: example,
	})
	rt.Handle("PATCH /v1/releases/{release}", a.update, router.Operation{
		ID: "updateRelease", Tag: tag, Summary: "Report the progress of a release", Text: "A release that has ended keeps its status.",
		Body: hangar.ReleaseUpdate{Status: hangar.ReleaseComplete}, Answer: example, Errors: []int{http.StatusPreconditionFailed},
	})
	rt.Handle("POST /api/v1/releases", a.createDeployed, router.Operation{
		ID: "beginRelease", Tag: router.TagExisting, Summary: "Create a release", Text: existing, Lenient: true,
		Body:   releaseRequest{App: "web", Image: example.Image, Strategy: "ROLLING"},
		Status: http.StatusCreated, Answer: whole(&example), Errors: []int{http.StatusNotFound},
	})
	rt.Handle("PATCH /api/v1/releases/{release}", a.updateDeployed, router.Operation{
		ID: "followRelease", Tag: router.TagExisting, Summary: "Report the progress of a release", Text: existing, Lenient: true,
		Body: releaseProgress{Status: "complete"}, Answer: whole(&example), Errors: []int{http.StatusPreconditionFailed},
	})
	rt.Handle("GET /api/v1/apps/{app}/releases", a.listDeployed, router.Operation{
		ID: "viewReleases", Tag: router.TagExisting, Summary: "List releases", Text: existing, Query: limit, Answer: deployedList{[]deployedRelease{view(&example)}},
	})
	rt.Handle("GET /api/v1/apps/{app}/releases/current", a.currentDeployed, router.Operation{
		ID: "viewCurrentRelease", Tag: router.TagExisting, Summary: "Get the current release",
		Text: existing + " " + current, Answer: whole(&example),
	})
	rt.Handle("GET /api/v1/releases/all_current", a.allCurrent, router.Operation{
		ID: "viewCurrentReleases", Tag: router.TagExisting, Summary: "Get the creation times of the current releases of all Apps",
		Text: existing + " By the names of Apps. Apps without a release are left out.", Answer: map[string]time.Time{"web": example.CreatedAt},
	})
	text := existing + " Nothing is kept of a build."
	began := buildView{ID: exampleTime().UnixMilli(), Status: "started"}
	rt.Handle("POST /api/v1/builds", a.beginBuild, router.Operation{
		ID: "beginBuild", Tag: router.TagExisting, Summary: "Announce a build", Text: text, Lenient: true,
		Body: buildRequest{App: "web"}, Answer: began, Errors: []int{http.StatusNotFound},
	})
	rt.Handle("POST /api/v1/builds/finish", a.finishBuild, router.Operation{
		ID: "finishBuild", Tag: router.TagExisting, Summary: "Say that a build has ended", Text: text, Lenient: true,
		Body:   buildRequest{App: "web", BuildID: began.ID, Status: "completed"},
		Answer: buildView{ID: began.ID, Status: "completed", Wallclock: 2150}, Errors: []int{http.StatusNotFound},
	})
}

func appName(r *http.Request) hangar.AppName { return hangar.AppName(r.PathValue("app")) }

func (a area) create(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.ReleaseCreate](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Created(a.Releases.CreateRelease(r.Context(), appName(r), in))
}

// releases lists the releases of the App of a request.
func (a area) releases(r *http.Request) ([]*hangar.Release, error) {
	q := input.QueryOf(r)
	limit := q.Int("limit", 1, hangar.MaxReleases)
	if q.Err != nil {
		return nil, q.Err
	}
	return a.Releases.Releases(r.Context(), appName(r), limit)
}

func (a area) list(r *http.Request) (router.Answer, error) {
	found, err := a.releases(r)
	return router.AnswerOf(releaseList{found}, err)
}

func (a area) update(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.ReleaseUpdate](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(a.Releases.UpdateRelease(r.Context(), hangar.ReleaseID(r.PathValue("release")), in))
}

func (a area) current(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(a.Releases.CurrentRelease(r.Context(), appName(r)))
}

func (a area) createDeployed(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[releaseRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.App == "" {
		return router.Answer{}, input.Invalid("app_name", "is required")
	}
	made, err := a.Releases.CreateRelease(r.Context(), in.App, hangar.ReleaseCreate{
		Image: in.Image, Definition: in.Definition, Strategy: hangar.ReleaseStrategy(strings.ToLower(in.Strategy)),
	})
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusCreated, Body: whole(made)}, nil
}

func (a area) updateDeployed(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[releaseProgress](r)
	if err != nil {
		return router.Answer{}, err
	}
	made, err := a.Releases.UpdateRelease(r.Context(), hangar.ReleaseID(r.PathValue("release")), hangar.ReleaseUpdate{
		Status: hangar.ReleaseStatus(strings.ToLower(in.Status)), Metadata: in.Metadata,
	})
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(whole(made))
}

func (a area) listDeployed(r *http.Request) (router.Answer, error) {
	found, err := a.releases(r)
	if err != nil {
		return router.Answer{}, err
	}
	shown := make([]deployedRelease, 0, len(found))
	for _, one := range found {
		shown = append(shown, view(one))
	}
	return router.OK(deployedList{shown})
}

func (a area) currentDeployed(r *http.Request) (router.Answer, error) {
	found, err := a.Releases.CurrentRelease(r.Context(), appName(r))
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(whole(found))
}

func (a area) allCurrent(r *http.Request) (router.Answer, error) {
	apps, err := a.Apps.Apps(r.Context(), hangar.AppFilter{})
	if err != nil {
		return router.Answer{}, err
	}
	found := map[hangar.AppName]time.Time{}
	for _, app := range apps {
		one, err := a.Releases.CurrentRelease(r.Context(), app.Name)
		switch hangar.CodeOf(err) {
		case "":
			found[app.Name] = one.CreatedAt
		case hangar.CodeNotFound, hangar.CodeForbidden: // it has none, was destroyed meanwhile, or may not be read
		default:
			return router.Answer{}, err
		}
	}
	return router.OK(found)
}

func (a area) buildOf(r *http.Request) (buildRequest, error) {
	in, err := input.Decode[buildRequest](r)
	if err != nil {
		return in, err
	}
	if in.App == "" {
		return in, input.Invalid("app_name", "is required")
	}
	_, err = a.Apps.App(r.Context(), in.App)
	return in, err
}

func (a area) beginBuild(r *http.Request) (router.Answer, error) {
	if _, err := a.buildOf(r); err != nil {
		return router.Answer{}, err
	}
	return router.OK(buildView{ID: time.Now().UnixMilli(), Status: "started"})
}

func (a area) finishBuild(r *http.Request) (router.Answer, error) {
	in, err := a.buildOf(r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(buildView{ID: in.BuildID, Status: input.Clip(in.Status), Wallclock: max(0, time.Now().UnixMilli()-in.BuildID)})
}

package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

func (s *server) orgRoutes() {
	const org = "/v1/orgs/{org}"
	example := hangar.Org{ID: "4xo1b2m9p0qk7s3d", Slug: "acme", Name: "Acme Corporation", NumericID: 2}
	s.Handle("POST /v1/orgs", s.createOrg, router.Operation{
		ID: "createOrg", Tag: "Organizations", Summary: "Create an organization",
		Text:   "For administrators. A slug that exists is refused with 422 and the reason `name_taken`.",
		Body:   orgRequest{Slug: "acme", Name: "Acme Corporation"},
		Status: http.StatusCreated, Answer: example, Errors: []int{http.StatusUnprocessableEntity},
	})
	s.Handle("GET /v1/orgs", s.listOrgs, router.Operation{
		ID: "listOrgs", Tag: "Organizations", Summary: "List organizations",
		Text:   "Those in which the token allows anything, sorted by slug.",
		Answer: orgList{[]*hangar.Org{&example}},
	})
	s.Handle("GET "+org, s.getOrg, router.Operation{
		ID: "getOrg", Tag: "Organizations", Summary: "Get an organization", Answer: example,
	})
	s.Handle("DELETE "+org, s.deleteOrg, router.Operation{
		ID: "deleteOrg", Tag: "Organizations", Summary: "Delete an organization",
		Text:   "With its networks and tokens. An organization with Apps cannot be deleted, nor can `personal`, which always exists.",
		Status: http.StatusNoContent, Errors: []int{http.StatusPreconditionFailed},
	})
	quotas := quotaList{[]hangar.QuotaStatus{{Key: hangar.QuotaMemory, Used: 1024, Limit: 5888}, {Key: hangar.QuotaAddressesV4, Used: 1, Limit: 8, Set: true}}}
	s.Handle("GET "+org+"/quotas", s.listQuotas, router.Operation{
		ID: "listQuotas", Tag: "Organizations", Summary: "List the quotas of an organization",
		Text:   "What the organization may have, and what it has. A limit of -1 means no limit. A request that would exceed a limit is refused with 403 and the reason `quota`.",
		Answer: quotas,
	})
	s.Handle("PATCH "+org+"/quotas", s.setQuotas, router.Operation{
		ID: "setQuotas", Tag: "Organizations", Summary: "Update the quotas of an organization",
		Text: "For administrators. Omitted limits stay; `reset` names the ones that return to the server's defaults.",
		Body: quotaRequest{Limits: hangar.Quotas{hangar.QuotaAddressesV4: 8}}, Answer: quotas,
	})
	const text = "In the shape that clients of the public platform's console decode."
	s.Handle("GET /api/v1/organizations", s.viewOrgs, router.Operation{
		ID: "viewOrgs", Tag: router.TagExisting, Summary: "List organizations", Text: text,
		Query:  []router.Param{{Name: "admin", Example: false, Text: "Accepted; the list is the same."}},
		Answer: orgViews{[]orgView{viewOrg(&example)}},
	})
	s.Handle("GET /api/v1/organizations/{org}", s.viewOneOrg, router.Operation{
		ID: "viewOrg", Tag: router.TagExisting, Summary: "Get an organization", Text: text,
		Answer: oneOrgView{viewOrg(&example)},
	})
}

// orgList is a listing of organizations.
type orgList struct {
	Orgs []*hangar.Org `json:"organizations"`
}

// orgViews is orgList for existing clients.
type orgViews struct {
	Orgs []orgView `json:"organizations"`
}

type oneOrgView struct {
	Org orgView `json:"organization"`
}

// orgRequest is the body of create.
type orgRequest struct {
	Slug hangar.OrgSlug `json:"slug" schema:"required"`
	Name string         `json:"name"`
}

// orgView is an organization as clients of the public platform's billing decode it. This server has no
// billing.
type orgView struct {
	hangar.Org
	RawSlug       hangar.OrgSlug `json:"raw_slug"`
	Personal      bool           `json:"personal"`
	PaidPlan      bool           `json:"paid_plan"`
	Billable      bool           `json:"billable"`
	BillingStatus string         `json:"billing_status"`
	BetaExtension bool           `json:"provisions_beta_extensions"`
	BuilderImage  string         `json:"remote_builder_image"`
}

func viewOrg(o *hangar.Org) orgView {
	return orgView{Org: *o, RawSlug: o.Slug, Personal: o.Personal(), BillingStatus: "CURRENT"}
}

func (s *server) createOrg(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[orgRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.Slug == "" {
		return router.Answer{}, input.Invalid("slug", "is required")
	}
	return router.Created(s.Orgs.CreateOrg(r.Context(), hangar.OrgCreate{Slug: in.Slug, Name: in.Name}))
}

func (s *server) listOrgs(r *http.Request) (router.Answer, error) {
	orgs, err := s.Orgs.Orgs(r.Context())
	return router.AnswerOf(orgList{view.OrEmpty(orgs)}, err)
}

func (s *server) getOrg(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(s.Orgs.Org(r.Context(), hangar.OrgSlug(r.PathValue("org"))))
}

// quotaList is a listing of quotas.
type quotaList struct {
	Quotas []hangar.QuotaStatus `json:"quotas"`
}

// quotaRequest is the body of setQuotas.
type quotaRequest struct {
	Limits hangar.Quotas     `json:"limits"`
	Reset  []hangar.QuotaKey `json:"reset,omitempty"`
}

func (s *server) listQuotas(r *http.Request) (router.Answer, error) {
	quotas, err := s.Orgs.OrgQuotas(r.Context(), hangar.OrgSlug(r.PathValue("org")))
	return router.AnswerOf(quotaList{quotas}, err)
}

func (s *server) setQuotas(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[quotaRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	quotas, err := s.Orgs.SetOrgQuotas(r.Context(), hangar.OrgSlug(r.PathValue("org")), in.Limits, in.Reset)
	return router.AnswerOf(quotaList{quotas}, err)
}

func (s *server) deleteOrg(r *http.Request) (router.Answer, error) {
	return router.NoContent(s.Orgs.DeleteOrg(r.Context(), hangar.OrgSlug(r.PathValue("org"))))
}

// viewOrgs is listOrgs in the shape of the public platform's console.
func (s *server) viewOrgs(r *http.Request) (router.Answer, error) {
	orgs, err := s.Orgs.Orgs(r.Context())
	if err != nil {
		return router.Answer{}, err
	}
	views := make([]orgView, 0, len(orgs))
	for _, o := range orgs {
		views = append(views, viewOrg(o))
	}
	return router.OK(orgViews{views})
}

// viewOneOrg is getOrg in the shape of the public platform's console.
func (s *server) viewOneOrg(r *http.Request) (router.Answer, error) {
	org, err := s.Orgs.Org(r.Context(), hangar.OrgSlug(r.PathValue("org")))
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(oneOrgView{viewOrg(org)})
}

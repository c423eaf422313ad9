package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

func (s *server) listOrgMachines(r *http.Request) (router.Answer, error) {
	q := input.QueryOf(r)
	in := hangar.MachinePageQuery{
		MachineFilter: machineFilter(q), Cursor: q.Text("cursor"), Limit: q.Int("limit", 1, hangar.MaxMachinePage),
	}
	summary := q.Bool("summary")
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	page, err := s.Machines.OrgMachines(r.Context(), hangar.OrgSlug(r.PathValue("org")), in)
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(view.OfMachinePage(page, summary))
}

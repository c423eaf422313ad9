package api

import (
	"bytes"
	"cmp"
	_ "embed"
	"html/template"
	"net/http"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/router"
)

// documentPath is where the document of the API is.
const documentPath = "/v1/openapi.json"

func (s *server) platformRoutes() {
	s.Handle("GET /v1/platform/regions", s.listRegions, router.Operation{
		ID: "listRegions", Tag: "Platform", Summary: "List regions",
		Text: "`capacity` is how many more Machines of a size fit into memory that is not promised yet. Servers promise more than they have, " +
			"so 0 does not mean that no Machine can be created.",
		Query: []router.Param{
			{Name: "size", Example: "shared-cpu-1x", Text: "The name of a size. The default is shared-cpu-1x."},
			{Name: "cpu_kind", Example: "shared", Text: "Overrides the kind of CPU of the size."},
			{Name: "cpus", Example: 1, Text: "Overrides the number of CPUs of the size."},
			{Name: "memory_mb", Example: 256, Text: "Overrides the memory of the size, in MiB."},
		},
		Answer: regionList{[]regionView{{Code: "loc", Name: "loc", Capacity: 30}}, "loc"},
	})
	s.Handle("POST /v1/platform/placements", s.placeMachines, router.Operation{
		ID: "placeMachines", Tag: "Platform", Summary: "Get placements",
		Text: "The best region first. Nothing is reserved. `region` is empty, `any`, or a list separated by commas. A word that is not a code of three letters " +
			"stands for all regions. So does a list without any region of this server, because clients ask for the one near their user. `Count` is how many of `count` Machines would go to a region, and `Concurrency` on how many servers. " +
			"With `volume_size_bytes` each Machine gets a new volume of that size, on a server with room for it. The volume's name and weights have no effect.",
		Lenient: true, Body: placementRequest{Compute: exampleMachine().Config.Guest, Region: "any", Count: 2}, MayOmit: true,
		Answer: placementList{[]hangar.Placement{{Region: "loc", Count: 2, Concurrency: 1}}}, Errors: []int{http.StatusNotFound, http.StatusConflict},
	})
	s.Public("GET "+documentPath, s.getDocument, router.Operation{
		ID: "getDocument", Tag: "Platform", Summary: "Get the OpenAPI document",
		Text: "An OpenAPI 3.1 document.", Answer: map[string]any{"openapi": openapi.Version},
	})
	s.Public("GET /docs", s.getReference, router.Operation{
		ID: "getReference", Tag: "Platform", Summary: "Read the API reference",
		Answer: "<!DOCTYPE html>", Media: router.MediaHTML,
	})
	s.Public("GET /{$}", s.getFront, router.Operation{
		ID: "getFront", Tag: "Platform", Summary: "Read the front page",
		Answer: "<!DOCTYPE html>", Media: router.MediaHTML,
	})
	s.Public("GET /healthz", s.health, router.Operation{
		ID: "getHealth", Tag: "Platform", Summary: "Get the health of the server",
		Text:   "`registry` is the host that references to images of the built-in registry begin with, even if the images were pushed to the address of the API.",
		Answer: healthView{"ok", "loc", "v0.1.0", "registry.example.com"},
	})
}

//go:embed front.html
var frontSource string

var frontPage = template.Must(template.New("front").Parse(frontSource))

// getFront answers people who open the address of the API in a browser.
func (s *server) getFront(r *http.Request) (router.Answer, error) {
	var b bytes.Buffer
	err := frontPage.Execute(&b, map[string]any{"Version": s.Version, "Region": s.Region, "URL": router.Origin(r)})
	return router.Answer{Page: b.Bytes()}, err
}

// healthView describes the answering server.
type healthView struct {
	Status  string        `json:"status"`
	Region  hangar.Region `json:"region"`
	Version string        `json:"version"`
	// Registry is the host of references to images of the built-in registry.
	Registry string `json:"registry,omitempty"`
}

// health answers without a token.
func (s *server) health(*http.Request) (router.Answer, error) {
	return router.OK(healthView{"ok", s.Region, s.Version, s.RegistryName})
}

// regionView is a region as clients decode it.
type regionView struct {
	Code             hangar.Region `json:"code"`
	Name             string        `json:"name"`
	Latitude         float64       `json:"latitude"`
	Longitude        float64       `json:"longitude"`
	GatewayAvailable bool          `json:"gateway_available"`
	RequiresPaidPlan bool          `json:"requires_paid_plan"`
	Deprecated       bool          `json:"deprecated"`
	Capacity         int           `json:"capacity"`
	GeoRegion        string        `json:"geo_region"`
	MPGAvailable     bool          `json:"mpg_available"` // always false: there are no managed databases
}

// regionList is a listing of regions. The capitals are those of the public platform.
type regionList struct {
	Regions []regionView
	Nearest hangar.Region
}

// placementRequest is the body of a request for placements.
type placementRequest struct {
	Compute         *hangar.Guest  `json:"compute"`
	Region          string         `json:"region"`
	Count           int            `json:"count"`
	Org             hangar.OrgSlug `json:"org_slug"`
	VolumeName      string         `json:"volume_name"`
	VolumeSizeBytes int64          `json:"volume_size_bytes"`
	Weights         any            `json:"weights"`
}

// placementList says where Machines would go.
type placementList struct {
	Regions []hangar.Placement
}

func (s *server) listRegions(r *http.Request) (router.Answer, error) {
	q := input.QueryOf(r)
	guest := hangar.Guest{
		CPUKind: q.Text("cpu_kind"), CPUs: q.Int("cpus", 1, hangar.MaxCPUs), MemoryMB: q.Int("memory_mb", 1, hangar.MaxMemoryMB),
	}
	if size := q.Text("size"); size != "" {
		preset, known := hangar.Preset(size)
		if !known {
			q.Fail("size", "%q is not one of %v", size, hangar.Presets())
		}
		guest = hangar.Guest{
			CPUKind: cmp.Or(guest.CPUKind, preset.CPUKind), CPUs: cmp.Or(guest.CPUs, preset.CPUs), MemoryMB: cmp.Or(guest.MemoryMB, preset.MemoryMB),
		}
	}
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	rooms, err := s.Platform.Regions(r.Context(), guest)
	if err != nil {
		return router.Answer{}, err
	}
	list := regionList{Regions: []regionView{}, Nearest: s.Region}
	for _, room := range rooms {
		list.Regions = append(list.Regions, regionView{Code: room.Region, Name: string(room.Region), GatewayAvailable: true, Capacity: room.Capacity})
	}
	return router.OK(list)
}

func (s *server) placeMachines(r *http.Request) (router.Answer, error) {
	in, err := input.DecodeOptional[placementRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	query := hangar.PlacementQuery{Org: in.Org, Count: in.Count, VolumeBytes: in.VolumeSizeBytes}
	if in.Compute != nil {
		query.Guest = *in.Compute
	}
	for word := range strings.SplitSeq(in.Region, ",") {
		if word = strings.TrimSpace(word); word != "" {
			query.Regions = append(query.Regions, hangar.Region(input.Clip(word)))
		}
	}
	placements, err := s.Platform.Placements(r.Context(), query)
	return router.AnswerOf(placementList{placements}, err)
}

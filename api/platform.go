package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/openapi"
)

func (s *server) platformRoutes() {
	s.handle("GET /v1/platform/regions", s.listRegions, operation{
		ID: "listRegions", Tag: "Platform", Summary: "List regions",
		Answer: regionList{[]regionView{{Code: "loc", Name: "loc"}}, "loc"},
	})
	s.public("GET /v1/openapi.json", s.getDocument, operation{
		ID: "getDocument", Tag: "Platform", Summary: "Get this document",
		Text: "An OpenAPI 3.1 document.", Answer: map[string]any{"openapi": openapi.Version},
	})
	s.public("GET /healthz", s.health, operation{
		ID: "getHealth", Tag: "Platform", Summary: "Ask whether the server answers",
		Answer: healthView{"ok", "loc", "v0.1.0"},
	})
}

// healthView says what answers.
type healthView struct {
	Status  string        `json:"status"`
	Region  hangar.Region `json:"region"`
	Version string        `json:"version"`
}

// health says that the server answers; it needs no token.
func (s *server) health(*http.Request) (answer, error) {
	return ok(healthView{"ok", s.Region, s.Version})
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
	GeoRegion        string        `json:"geo_region"`
}

// regionList is a listing of regions.
type regionList struct {
	Regions []regionView
	Nearest hangar.Region
}

// listRegions answers with the one region of this server. The capitals are those
// of the public platform.
func (s *server) listRegions(*http.Request) (answer, error) {
	return ok(regionList{[]regionView{{Code: s.Region, Name: string(s.Region)}}, s.Region})
}

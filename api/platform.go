package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
)

// health says that the server answers; it needs no token.
func (s *server) health(*http.Request) (answer, error) {
	return ok(struct {
		Status  string        `json:"status"`
		Region  hangar.Region `json:"region"`
		Version string        `json:"version"`
	}{"ok", s.Region, s.Version})
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

// listRegions answers with the one region of this server. The capitals are those
// of the public platform.
func (s *server) listRegions(*http.Request) (answer, error) {
	return ok(struct {
		Regions []regionView
		Nearest hangar.Region
	}{[]regionView{{Code: s.Region, Name: string(s.Region)}}, s.Region})
}

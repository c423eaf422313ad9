package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
)

// Regions implements hangar.PlatformService.
func (c *Client) Regions(ctx context.Context, guest hangar.Guest) ([]hangar.RegionRoom, error) {
	in := get("/v1/platform/regions")
	in.query = url.Values{}
	if guest.CPUKind != "" {
		in.query.Set("cpu_kind", guest.CPUKind)
	}
	if guest.CPUs != 0 {
		in.query.Set("cpus", strconv.Itoa(guest.CPUs))
	}
	if guest.MemoryMB != 0 {
		in.query.Set("memory_mb", strconv.Itoa(guest.MemoryMB))
	}
	var out struct {
		Regions []hangar.RegionRoom `json:"Regions"`
	}
	err := c.do(ctx, in, &out)
	return out.Regions, err
}

// Health is what a server tells every caller about itself.
type Health struct {
	Region  hangar.Region `json:"region"`
	Version string        `json:"version"`
	// Registry is the host that references to images of the server's own registry begin
	// with; empty: the address of the API.
	Registry string `json:"registry"`
}

// Health asks whether the server answers. It needs no token.
func (c *Client) Health(ctx context.Context) (Health, error) {
	var h Health
	err := c.do(ctx, get("/healthz"), &h)
	return h, err
}

// placementRequest is the body of a request for placements.
type placementRequest struct {
	Compute hangar.Guest   `json:"compute"`
	Region  string         `json:"region,omitempty"`
	Count   int            `json:"count,omitempty"`
	Org     hangar.OrgSlug `json:"org_slug,omitempty"`
	Bytes   int64          `json:"volume_size_bytes,omitempty"`
}

// Placements implements hangar.PlatformService.
func (c *Client) Placements(ctx context.Context, q hangar.PlacementQuery) ([]hangar.Placement, error) {
	words := make([]string, len(q.Regions))
	for i, r := range q.Regions {
		words[i] = string(r)
	}
	var out struct {
		Regions []hangar.Placement `json:"Regions"`
	}
	err := c.do(ctx, call{method: http.MethodPost, path: "/v1/platform/placements", in: placementRequest{
		Compute: q.Guest, Region: strings.Join(words, ","), Count: q.Count, Org: q.Org, Bytes: q.VolumeBytes,
	}}, &out)
	return out.Regions, err
}

package client

import (
	"context"
	"net/http"

	"github.com/hangar-platform/hangar"
)

// CreateOrg implements hangar.OrgService.
func (c *Client) CreateOrg(ctx context.Context, in hangar.OrgCreate) (*hangar.Org, error) {
	to := post("/v1/orgs")
	to.in = map[string]any{"slug": in.Slug, "name": in.Name}
	var org hangar.Org
	if err := c.do(ctx, to, &org); err != nil {
		return nil, err
	}
	return &org, nil
}

// Org implements hangar.OrgService.
func (c *Client) Org(ctx context.Context, slug hangar.OrgSlug) (*hangar.Org, error) {
	var org hangar.Org
	if err := c.do(ctx, get(pathOf("v1", "orgs", string(slug))), &org); err != nil {
		return nil, err
	}
	return &org, nil
}

// Orgs implements hangar.OrgService.
func (c *Client) Orgs(ctx context.Context) ([]*hangar.Org, error) {
	var out struct {
		Orgs []*hangar.Org `json:"organizations"`
	}
	if err := c.do(ctx, get("/v1/orgs"), &out); err != nil {
		return nil, err
	}
	return out.Orgs, nil
}

// DeleteOrg implements hangar.OrgService.
func (c *Client) DeleteOrg(ctx context.Context, slug hangar.OrgSlug) error {
	return c.do(ctx, call{method: http.MethodDelete, path: pathOf("v1", "orgs", string(slug))}, nil)
}

// OrgQuotas implements hangar.OrgService.
func (c *Client) OrgQuotas(ctx context.Context, slug hangar.OrgSlug) ([]hangar.QuotaStatus, error) {
	var out quotaList
	err := c.do(ctx, get(pathOf("v1", "orgs", string(slug), "quotas")), &out)
	return out.Quotas, err
}

// SetOrgQuotas implements hangar.OrgService.
func (c *Client) SetOrgQuotas(ctx context.Context, slug hangar.OrgSlug, limits hangar.Quotas, reset []hangar.QuotaKey) ([]hangar.QuotaStatus, error) {
	to := call{method: http.MethodPatch, path: pathOf("v1", "orgs", string(slug), "quotas")}
	to.in = map[string]any{"limits": limits, "reset": reset}
	var out quotaList
	err := c.do(ctx, to, &out)
	return out.Quotas, err
}

type quotaList struct {
	Quotas []hangar.QuotaStatus `json:"quotas"`
}

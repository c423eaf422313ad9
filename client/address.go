package client

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/hangar-platform/hangar"
)

func addressesOf(app hangar.AppName, ip ...string) string {
	return pathOf(append([]string{"v1", "apps", string(app), "ip_assignments"}, ip...)...)
}

// Addresses implements hangar.AddressService.
func (c *Client) Addresses(ctx context.Context, app hangar.AppName) ([]hangar.Address, error) {
	var out struct {
		IPs []hangar.Address `json:"ips"`
	}
	err := c.do(ctx, get(addressesOf(app)), &out)
	for i := range out.IPs {
		out.IPs[i].App = app
	}
	return out.IPs, err
}

// AllocateAddress implements hangar.AddressService.
func (c *Client) AllocateAddress(ctx context.Context, app hangar.AppName, in hangar.AddressCreate) (*hangar.Address, error) {
	to := post(addressesOf(app))
	to.in = map[string]any{"type": in.Kind, "region": in.Region, "org_slug": in.Org, "network": in.Network, "service_name": in.Service}
	made := hangar.Address{App: app}
	if err := c.do(ctx, to, &made); err != nil {
		return nil, err
	}
	return &made, nil
}

// ReleaseAddress implements hangar.AddressService.
func (c *Client) ReleaseAddress(ctx context.Context, app hangar.AppName, ip netip.Addr) error {
	return c.do(ctx, call{method: http.MethodDelete, path: addressesOf(app, ip.String())}, nil)
}

package client

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"

	"github.com/hangar-platform/hangar"
)

func addressesOf(app hangar.AppName, ip ...string) string {
	return pathOf(append([]string{"v1", "apps", string(app), "ip_assignments"}, ip...)...)
}

// address is an address on the wire. Its network is an object, whose name is empty for the default
// network.
type address struct {
	hangar.Address

	Network *struct {
		Name string `json:"name"`
	} `json:"network"`
}

func (a address) of(app hangar.AppName) hangar.Address {
	a.App = app
	if a.Network != nil {
		a.Address.Network = cmp.Or(a.Network.Name, hangar.DefaultNetwork)
	}
	return a.Address
}

// Addresses implements hangar.AddressService.
func (c *Client) Addresses(ctx context.Context, app hangar.AppName) ([]hangar.Address, error) {
	var out struct {
		IPs []address `json:"ips"`
	}
	err := c.do(ctx, get(addressesOf(app)), &out)
	list := make([]hangar.Address, len(out.IPs))
	for i, a := range out.IPs {
		list[i] = a.of(app)
	}
	return list, err
}

// AllocateAddress implements hangar.AddressService.
func (c *Client) AllocateAddress(ctx context.Context, app hangar.AppName, in hangar.AddressCreate) (*hangar.Address, error) {
	to := post(addressesOf(app))
	to.in = map[string]any{"type": in.Kind, "region": in.Region, "org_slug": in.Org, "network": in.Network, "service_name": in.Service}
	var out address
	if err := c.do(ctx, to, &out); err != nil {
		return nil, err
	}
	made := out.of(app)
	return &made, nil
}

// ReleaseAddress implements hangar.AddressService.
func (c *Client) ReleaseAddress(ctx context.Context, app hangar.AppName, ip netip.Addr) error {
	return c.do(ctx, call{method: http.MethodDelete, path: addressesOf(app, ip.String())}, nil)
}

package graphql

import (
	"net/netip"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
	"github.com/hangar-platform/hangar/api/input"
)

// everywhere is the region that clients read for an address of all regions.
const everywhere hangar.Region = "global"

// addressOf is an address of an App.
type addressOf struct {
	hangar.Address

	org *hangar.Org
}

// network is a private network of an organization.
type network struct {
	name string
	org  *hangar.Org
}

func allAddresses(q *query, a *hangar.App) ([]hangar.Address, error) {
	return called(q, func() ([]hangar.Address, error) { return q.Services.Addresses.Addresses(q, a.Name) })
}

// addresses are the App's own addresses. Clients ask for the shared one separately.
func addresses(q *query, a *hangar.App, in args) (any, error) {
	all, err := allAddresses(q, a)
	if err != nil {
		return nil, err
	}
	own := make([]addressOf, 0, len(all))
	for _, one := range all {
		if one.Kind != hangar.AddressSharedV4 {
			own = append(own, addressOf{one, &a.Org})
		}
	}
	return page(in, own)
}

func sharedAddress(q *query, a *hangar.App, _ args) (any, error) {
	all, err := allAddresses(q, a)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, func(one hangar.Address) bool { return one.Kind == hangar.AddressSharedV4 }); i >= 0 {
		return all[i].IP.String(), nil
	}
	return nil, nil //nolint:nilnil // null
}

func defineAddress(s *schema) {
	type address = addressOf
	execute.Define(s, "IPAddress", fields[address]{
		"id":      field(func(a address) string { return a.IP.String() }),
		"address": field(func(a address) string { return a.IP.String() }),
		"type":    field(func(a address) hangar.AddressKind { return a.Kind }),
		"region": field(func(a address) hangar.Region {
			if a.Region == "" {
				return everywhere
			}
			return a.Region
		}),
		"createdAt": field(func(a address) time.Time { return a.CreatedAt }),
		"network": field(func(a address) *network {
			if a.Network == "" {
				return nil
			}
			return &network{a.Network, a.org}
		}),
		"serviceName": field(func(a address) *string { return orNull(a.Service) }),
	})
	execute.Define(s, "Network", fields[*network]{
		"name":         field(func(n *network) string { return n.name }),
		"organization": field(func(n *network) *hangar.Org { return n.org }),
	})
	execute.Define(s, "EgressIPAddress", fields[nothing]{
		"id": null[nothing], "ip": null[nothing], "version": null[nothing], "region": null[nothing], "updatedAt": null[nothing],
	})
}

func allocateAddress(q *query, in args) (payload, error) {
	of, err := app(q, in.Text("appId"))
	if err != nil {
		return nil, err
	}
	request := hangar.AddressCreate{
		Kind: hangar.AddressKind(in.Text("type")), Region: hangar.Region(in.Text("region")), Service: in.Text("serviceName"), Network: in.Text("network"),
	}
	if request.Org, err = slug(q, in.Text("organizationId")); err != nil {
		return nil, err
	}
	made, err := called(q, func() (*hangar.Address, error) { return q.Services.Addresses.AllocateAddress(q, of.Name, request) })
	if err != nil {
		return nil, err
	}
	return payload{"app": of, "ipAddress": addressOf{*made, &of.Org}}, nil
}

func releaseAddress(q *query, in args) (payload, error) {
	if in.Text("appId") == "" {
		return nil, input.Invalid("appId", "is required")
	}
	text := in.Text("ip")
	if text == "" {
		text = in.Text("ipAddressId")
	}
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return nil, input.Invalid("ip", "%.80q is not an IP address", text)
	}
	of, err := app(q, in.Text("appId"))
	if err != nil {
		return nil, err
	}
	return payload{"app": of}, q.Services.Addresses.ReleaseAddress(q, of.Name, ip)
}

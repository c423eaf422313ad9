package api

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
)

func (s *server) addressRoutes() {
	const all = "/v1/apps/{app}/ip_assignments"
	example := viewAddress(hangar.Address{IP: netip.MustParseAddr("203.0.113.7"), Kind: hangar.AddressV4, CreatedAt: exampleTime}, "")
	s.Handle("GET "+all, s.listAddresses, router.Operation{
		ID: "listAddresses", Tag: "Addresses", Summary: "List IP addresses",
		Text:   "The shared one comes first, the others are sorted by type and address. Addresses that begin with `fdaa:` are private.",
		Answer: addressList{[]addressView{example}},
	})
	s.Handle("POST "+all, s.allocateAddress, router.Operation{
		ID: "allocateAddress", Tag: "Addresses", Summary: "Allocate an IP address",
		Text: "The edge serves the App at the address by the time of the answer. `shared_v4` is one address for all Apps, which are distinguished by " +
			"their names; a repeated request returns it. `private_v6` is in a private network of the organization: `network`, or the App's own. " +
			"There, `<app>.flycast` resolves to it. An empty property counts as left out.",
		Body:   addressRequest{Kind: hangar.AddressV4},
		Answer: example, Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("DELETE "+all+"/{ip}", s.releaseAddress, router.Operation{
		ID: "releaseAddress", Tag: "Addresses", Summary: "Release an IP address",
		Text: "New connections to it are refused. Another App gets it only after all other free addresses.", Status: http.StatusNoContent,
	})
}

// addressList is a listing of addresses.
type addressList struct {
	IPs []addressView `json:"ips"`
}

// addressView is an address as clients know it.
type addressView struct {
	IP        netip.Addr         `json:"ip"`
	Kind      hangar.AddressKind `json:"type"`
	Region    hangar.Region      `json:"region"`
	Service   string             `json:"service_name"`
	Shared    bool               `json:"shared"`
	Network   *addressNetwork    `json:"network,omitempty"` // of private addresses
	NetworkID hangar.NetworkID   `json:"network_id,omitempty"`
	CreatedAt time.Time          `json:"created_at"`
}

// addressNetwork is the network that an address is in, as existing clients decode it.
type addressNetwork struct {
	Name string         `json:"name"` // empty: the default one
	Org  hangar.OrgSlug `json:"org_slug"`
}

// viewAddress returns the view of an address of an App of an organization.
func viewAddress(a hangar.Address, org hangar.OrgSlug) addressView {
	v := addressView{
		IP: a.IP, Kind: a.Kind, Region: a.Region, Service: a.Service, Shared: a.Kind == hangar.AddressSharedV4,
		NetworkID: a.NetworkID, CreatedAt: a.CreatedAt,
	}
	if a.Network != "" {
		v.Network = &addressNetwork{Name: a.Network, Org: org}
		if a.Network == hangar.DefaultNetwork {
			v.Network.Name = ""
		}
	}
	return v
}

// viewAddresses is viewAddress for addresses of an App.
func (s *server) viewAddresses(ctx context.Context, app hangar.AppName, list ...hangar.Address) ([]addressView, error) {
	var org hangar.OrgSlug
	if slices.ContainsFunc(list, func(a hangar.Address) bool { return a.Network != "" }) {
		of, err := s.Apps.App(ctx, app)
		if err != nil {
			return nil, err
		}
		org = of.Org.Slug
	}
	views := make([]addressView, len(list))
	for i, a := range list {
		views[i] = viewAddress(a, org)
	}
	return views, nil
}

// addressRequest is the body of allocate.
type addressRequest struct {
	Kind    hangar.AddressKind `json:"type" schema:"required"`
	Region  hangar.Region      `json:"region"`
	Org     hangar.OrgSlug     `json:"org_slug"`
	Network string             `json:"network"`
	Service string             `json:"service_name"`
}

func (s *server) listAddresses(r *http.Request) (router.Answer, error) {
	app := hangar.AppName(r.PathValue("app"))
	list, err := s.Addresses.Addresses(r.Context(), app)
	if err != nil {
		return router.Answer{}, err
	}
	views, err := s.viewAddresses(r.Context(), app, list...)
	return router.AnswerOf(addressList{views}, err)
}

func (s *server) allocateAddress(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[addressRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	app := hangar.AppName(r.PathValue("app"))
	made, err := s.Addresses.AllocateAddress(r.Context(), app, hangar.AddressCreate{
		Kind: in.Kind, Region: in.Region, Service: in.Service, Org: in.Org, Network: in.Network,
	})
	if err != nil {
		return router.Answer{}, err
	}
	views, err := s.viewAddresses(r.Context(), app, *made)
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(views[0])
}

func (s *server) releaseAddress(r *http.Request) (router.Answer, error) {
	ip, err := netip.ParseAddr(r.PathValue("ip"))
	if err != nil {
		return router.Answer{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid ip: %.80q is not an IP address", r.PathValue("ip"))
	}
	return router.NoContent(s.Addresses.ReleaseAddress(r.Context(), hangar.AppName(r.PathValue("app")), ip))
}

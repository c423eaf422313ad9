package api

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
)

func (s *server) addressRoutes() {
	const all = "/v1/apps/{app}/ip_assignments"
	example := viewAddress(hangar.Address{IP: netip.MustParseAddr("203.0.113.7"), Kind: hangar.AddressV4, CreatedAt: exampleTime})
	s.Handle("GET "+all, s.listAddresses, router.Operation{
		ID: "listAddresses", Tag: "Addresses", Summary: "List IP addresses",
		Text:   "The shared one first, then by type and address. Those that begin with `fdaa:` are private.",
		Answer: addressList{[]addressView{example}},
	})
	s.Handle("POST "+all, s.allocateAddress, router.Operation{
		ID: "allocateAddress", Tag: "Addresses", Summary: "Allocate an IP address",
		Text: "The App is served at the address when the answer comes. `shared_v4` is the same one for all Apps, which are distinguished by " +
			"their names; it may be asked for again. `private_v6` is in a private network of the organization: `network`, or the App's own. " +
			"There, `<app>.flycast` leads to it. An empty property counts as left out.",
		Body:   addressRequest{Kind: hangar.AddressV4},
		Answer: example, Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("DELETE "+all+"/{ip}", s.releaseAddress, router.Operation{
		ID: "releaseAddress", Tag: "Addresses", Summary: "Release an IP address",
		Text: "No new connection to it is taken. It is given to another App only after all others that are free.", Status: http.StatusNoContent,
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
	Network   string             `json:"network,omitempty"`
	NetworkID hangar.NetworkID   `json:"network_id,omitempty"`
	CreatedAt time.Time          `json:"created_at"`
}

func viewAddress(a hangar.Address) addressView {
	return addressView{
		IP: a.IP, Kind: a.Kind, Region: a.Region, Service: a.Service, Shared: a.Kind == hangar.AddressSharedV4,
		Network: a.Network, NetworkID: a.NetworkID, CreatedAt: a.CreatedAt,
	}
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
	list, err := s.Addresses.Addresses(r.Context(), hangar.AppName(r.PathValue("app")))
	if err != nil {
		return router.Answer{}, err
	}
	views := make([]addressView, len(list))
	for i, a := range list {
		views[i] = viewAddress(a)
	}
	return router.OK(addressList{views})
}

func (s *server) allocateAddress(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[addressRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	made, err := s.Addresses.AllocateAddress(r.Context(), hangar.AppName(r.PathValue("app")), hangar.AddressCreate{
		Kind: in.Kind, Region: in.Region, Service: in.Service, Org: in.Org, Network: in.Network,
	})
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(viewAddress(*made))
}

func (s *server) releaseAddress(r *http.Request) (router.Answer, error) {
	ip, err := netip.ParseAddr(r.PathValue("ip"))
	if err != nil {
		return router.Answer{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid ip: %.80q is not an IP address", r.PathValue("ip"))
	}
	if err := s.Addresses.ReleaseAddress(r.Context(), hangar.AppName(r.PathValue("app")), ip); err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusNoContent}, nil
}

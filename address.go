package hangar

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// AddressKind says from where an address of an App is reachable.
type AddressKind string

// The kinds of addresses, as clients of the public platform know them.
const (
	// AddressSharedV4 is the one IPv4 address that Apps share. The edge finds the App by the TLS server
	// name or the Host header, so only TLS and HTTP work there.
	AddressSharedV4 AddressKind = "shared_v4"
	AddressV4       AddressKind = "v4" // IPv4, of one App
	AddressV6       AddressKind = "v6" // IPv6, of one App
	// AddressPrivateV6 is an address in a private network, whose Machines and peers reach the App there
	// through the edge. Its name is APP.flycast.
	AddressPrivateV6 AddressKind = "private_v6"
)

// AddressKinds lists every kind.
func AddressKinds() []AddressKind {
	return []AddressKind{AddressSharedV4, AddressV4, AddressV6, AddressPrivateV6}
}

// Address is an address at which the edge serves an App.
type Address struct {
	IP        netip.Addr  `json:"ip"`
	Kind      AddressKind `json:"type"`
	App       AppName     `json:"app_name"`
	Region    Region      `json:"region,omitempty"`       // empty: every region
	Service   string      `json:"service_name,omitempty"` // stored only
	Network   string      `json:"network,omitempty"`      // of an AddressPrivateV6: the name of its network
	NetworkID NetworkID   `json:"network_id,omitempty"`   // of an AddressPrivateV6: the number of its network
	CreatedAt time.Time   `json:"created_at"`             // UTC
}

// AddressCreate is the request for an address.
type AddressCreate struct {
	Kind    AddressKind
	Region  Region  // empty: every region
	Service string  // stored only
	Org     OrgSlug // owner of Network; empty: the organization of the App, which is the only one allowed
	// Network is the name of the network of an AddressPrivateV6. Empty: the App's own.
	Network string
}

// anyRegionWord means every region to clients of the public platform.
const anyRegionWord Region = "global"

// The bounds of names in an AddressCreate, in bytes.
const (
	maxAddressService = 100
	maxNetworkName    = 63
)

// Complete fills in what a request for an address of an App leaves out, given the App's
// organization and network. It answers CodeInvalid, naming the field.
func (in *AddressCreate) Complete(org OrgSlug, network string) error {
	bad := func(field, rule string, args ...any) error {
		return Errorf(CodeInvalid, "", "invalid %s: %s", field, fmt.Sprintf(rule, args...))
	}
	if in.Region == anyRegionWord || in.Region == AnyRegion {
		in.Region = ""
	}
	private := in.Kind == AddressPrivateV6
	switch {
	case in.Kind == "":
		return bad("type", "is required; one of v4, v6, shared_v4 and private_v6")
	case !slices.Contains(AddressKinds(), in.Kind):
		return bad("type", "%.40q is none of v4, v6, shared_v4 and private_v6", in.Kind)
	case in.Region != "" && !in.Region.IsCode():
		return bad("region", "%.40q is not the code of a region", in.Region)
	case len(in.Service) > maxAddressService:
		return bad("service_name", "has %d characters, may have %d", len(in.Service), maxAddressService)
	case in.Org != "" && in.Org != org:
		return bad("org_slug", "the app is not of the organization %.80q", in.Org)
	case in.Network != "" && !private:
		return bad("network", "only a private_v6 address is in a network")
	case len(in.Network) > maxNetworkName:
		return bad("network", "has %d characters, may have %d", len(in.Network), maxNetworkName)
	}
	in.Org = org
	if private {
		in.Network = cmp.Or(in.Network, network)
	}
	return nil
}

// CompareAddresses orders addresses by their kind, the shared one first, and then by IP.
func CompareAddresses(a, b Address) int {
	kinds := AddressKinds()
	return cmp.Or(cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)), a.IP.Compare(b.IP))
}

// MaxAddresses is how many addresses an App may have.
const MaxAddresses = 64

// AddressService keeps the addresses of Apps. An App without one cannot be reached from
// outside of its private network.
type AddressService interface {
	// Addresses are sorted: shared first, then by kind and address.
	Addresses(ctx context.Context, app AppName) ([]Address, error)
	// AllocateAddress gives an App an address, where the edge serves the App by the time of the answer.
	// The shared address is given once: a repeated request returns it. It answers CodeInvalid for an
	// unknown kind or network, CodeExhausted when the pool is used up or the App has MaxAddresses, and
	// CodeFailedPrecondition when the server has no pool of that kind.
	AllocateAddress(ctx context.Context, app AppName, in AddressCreate) (*Address, error)
	// ReleaseAddress takes an address away. It answers CodeNotFound with
	// ReasonAddressNotFound for one that the App does not have.
	ReleaseAddress(ctx context.Context, app AppName, ip netip.Addr) error
}

// flycastMark is the last byte of a host id that no host has. Private addresses of Apps have this id
// where those of Machines have their host's.
const flycastMark = 1

// FlycastAddress returns the n-th private address of Apps in a network: fdaa, the network, 0:1, then n,
// which begins at 1. No Machine, peer or service has such an address.
func FlycastAddress(network NetworkID, n uint64) netip.Addr {
	a := [16]byte{0: 0xfd, 1: 0xaa, 9: flycastMark}
	for i := range 4 {
		a[5-i] = byte(network >> (8 * i))
	}
	for i := range 6 {
		a[15-i] = byte(n >> (8 * i))
	}
	return netip.AddrFrom16(a)
}

// IsFlycast reports whether an address is one that FlycastAddress could have made.
func IsFlycast(ip netip.Addr) bool {
	a := ip.As16()
	return ip.Is6() && a[0] == 0xfd && a[1] == 0xaa && a[6] == 0 && a[7] == 0 && a[8] == 0 && a[9] == flycastMark
}

package fake

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
)

// addresses is what a Service knows of addresses: whose they are, and how many of each kind
// and network were given.
type addresses struct {
	list []hangar.Address
	made map[string]uint64
}

// sharedAddress is the one that Apps share.
var sharedAddress = netip.MustParseAddr("127.0.0.1")

// Addresses implements hangar.AddressService.
func (s *Service) Addresses(ctx context.Context, app hangar.AppName) ([]hangar.Address, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.appFor(ctx, hangar.ActionRead, hangar.MachineRef{App: app}); err != nil {
		return nil, err
	}
	list := []hangar.Address{}
	for _, a := range s.addresses.list {
		if a.App == app {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, hangar.CompareAddresses)
	return list, nil
}

// AllocateAddress implements hangar.AddressService.
func (s *Service) AllocateAddress(ctx context.Context, app hangar.AppName, in hangar.AddressCreate) (*hangar.Address, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owner, err := s.appFor(ctx, hangar.ActionWrite, hangar.MachineRef{App: app})
	if err != nil {
		return nil, err
	}
	if err := in.Complete(owner.Org.Slug, owner.Network); err != nil {
		return nil, err
	}
	a := hangar.Address{Kind: in.Kind, App: app, Region: in.Region, Service: in.Service, CreatedAt: s.now().UTC().Truncate(time.Second)}
	if in.Kind == hangar.AddressPrivateV6 {
		network, ok := s.networkID(owner.Org.Slug, in.Network)
		if !ok {
			return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid network: the organization %q has no network %q; an app makes one", owner.Org.Slug, in.Network)
		}
		a.Network, a.NetworkID = in.Network, network
	}
	count := 0
	for _, other := range s.addresses.list {
		if other.App == app {
			count++
			if other.Kind == hangar.AddressSharedV4 && in.Kind == other.Kind {
				return &other, nil
			}
		}
	}
	if count >= hangar.MaxAddresses {
		return nil, hangar.Errorf(hangar.CodeExhausted, "", "The app %q has %d addresses, which is the most there may be", app, count)
	}
	a.IP = s.nextAddress(&a)
	s.addresses.list = append(s.addresses.list, a)
	return &a, nil
}

// nextAddress is one that was never given. The caller holds mu.
func (s *Service) nextAddress(a *hangar.Address) netip.Addr {
	if a.Kind == hangar.AddressSharedV4 {
		return sharedAddress
	}
	of := fmt.Sprintf("%s/%d", a.Kind, a.NetworkID)
	s.addresses.made[of]++
	n := s.addresses.made[of]
	switch a.Kind {
	case hangar.AddressV4:
		return netip.AddrFrom4([4]byte{127, byte(1 + n>>16), byte(n >> 8), byte(n)})
	case hangar.AddressV6:
		return netip.MustParseAddr(fmt.Sprintf("fd00::%x:%x", n>>16&0xffff, n&0xffff))
	default:
		return hangar.FlycastAddress(a.NetworkID, n)
	}
}

// ReleaseAddress implements hangar.AddressService.
func (s *Service) ReleaseAddress(ctx context.Context, app hangar.AppName, ip netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.appFor(ctx, hangar.ActionWrite, hangar.MachineRef{App: app}); err != nil {
		return err
	}
	i := slices.IndexFunc(s.addresses.list, func(a hangar.Address) bool { return a.App == app && a.IP == ip })
	if i < 0 {
		return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonAddressNotFound, "Could not find IP address %q of app %q", ip, app)
	}
	s.addresses.list = slices.Delete(s.addresses.list, i, i+1)
	return nil
}

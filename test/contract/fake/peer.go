package fake

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// gateway is what peers are told: nobody listens there.
var gateway = hangar.PeerGateway{
	EndpointIP: "peers.example", EndpointPort: 51820, GatewayKey: "bmXOC+F1FxEMF9dyiK2H5/1SUtzH0JuVo51h2wPfgyo=",
}

const gatewayHost hangar.HostID = "0000000a"

// peers is what a Service knows of peers.
type peers struct {
	list     []hangar.Peer
	made     uint64
	networks []string // that have or had a peer: organization/name
}

// CreatePeer implements hangar.PeerService.
func (s *Service) CreatePeer(ctx context.Context, org hangar.OrgSlug, in hangar.PeerCreate) (*hangar.NewPeer, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.org(p, hangar.ActionWrite, org); err != nil {
		return nil, err
	}
	in.Network = cmp.Or(in.Network, hangar.DefaultNetwork)
	if in.Name != "" && !validName(in.Name) {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid name: may only contain numbers, lowercase letters and dashes")
	}
	if _, err := hangar.ParsePeerKey(string(in.PublicKey)); err != nil {
		return nil, err
	}
	network, ok := s.networkID(org, in.Network)
	if !ok {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid network: the organization %q has no network %q", org, in.Network)
	}
	for _, other := range s.peers.list {
		switch {
		case other.Org == org && other.Name == in.Name:
			return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "invalid name: the organization %q has a peer %q already", org, in.Name)
		case other.PublicKey == in.PublicKey:
			return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid public_key: a peer has it already")
		}
	}
	s.peers.made++
	peer := hangar.Peer{
		Name: cmp.Or(in.Name, fmt.Sprintf("%s%08d", hangar.PeerInteractive, s.peers.made)),
		Org:  org, Network: in.Network, NetworkID: network, Host: gatewayHost,
		Address: hangar.PeerAddress(network, gatewayHost, s.peers.made), PublicKey: in.PublicKey,
		CreatedAt: s.now().UTC().Truncate(time.Second),
	}
	s.peers.list = append(s.peers.list, peer)
	return &hangar.NewPeer{Peer: peer, PeerGateway: gateway}, nil
}

// networkID returns a number for an organization's network, which an App has made
// unless it is the default one. The caller holds mu.
func (s *Service) networkID(org hangar.OrgSlug, name string) (hangar.NetworkID, bool) {
	there := name == hangar.DefaultNetwork
	for _, a := range s.apps {
		there = there || a.Org.Slug == org && a.Network == name
	}
	if !there {
		return 0, false
	}
	full := string(org) + "/" + name
	i := slices.Index(s.peers.networks, full)
	if i < 0 {
		i, s.peers.networks = len(s.peers.networks), append(s.peers.networks, full)
	}
	return hangar.NetworkID(i + 1), true
}

// Peers implements hangar.PeerService.
func (s *Service) Peers(ctx context.Context, org hangar.OrgSlug) ([]hangar.PeerStatus, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.org(p, hangar.ActionRead, org); err != nil {
		return nil, err
	}
	list := []hangar.PeerStatus{}
	for _, peer := range s.peers.list {
		if peer.Org == org {
			list = append(list, hangar.PeerStatus{Peer: peer})
		}
	}
	slices.SortFunc(list, func(a, b hangar.PeerStatus) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// RemovePeer implements hangar.PeerService.
func (s *Service) RemovePeer(ctx context.Context, org hangar.OrgSlug, name string) error {
	p, err := principal(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.org(p, hangar.ActionWrite, org); err != nil {
		return err
	}
	i := slices.IndexFunc(s.peers.list, func(p hangar.Peer) bool { return p.Org == org && p.Name == name })
	if i < 0 {
		return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonPeerNotFound, "Could not find WireGuard peer %q of organization %q", name, org)
	}
	s.peers.list = slices.Delete(s.peers.list, i, i+1)
	return nil
}

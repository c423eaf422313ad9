package api

import (
	"net/http"
	"net/netip"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

func (s *server) peerRoutes() {
	const all = "/v1/orgs/{org}/wireguard_peers"
	peer := hangar.Peer{
		Name: examplePeer, Org: hangar.OrgPersonal, Network: hangar.DefaultNetwork, NetworkID: 1,
		Address: netip.MustParseAddr("fdaa:0:1:a7b:7d:a000:0:102"), PublicKey: examplePeerKey, Host: "0a7b007d", CreatedAt: exampleTime,
	}
	s.Handle("POST "+all, s.createPeer, router.Operation{
		ID: "createPeer", Tag: "WireGuard", Summary: "Create a WireGuard peer",
		Text: "The peer reaches one private network of the organization, which is /48 of `peerip`, and the name server at ::3 of that, but nothing else. " +
			"`peerip`/120 is its own. `pubkey` is the key of the gateway, which listens at UDP port `endpoint_port` of `endpointip`. " +
			"The answer comes when the gateway lets the peer in.",
		Body:   peerRequest{Name: examplePeer, PublicKey: examplePeerKey},
		Status: http.StatusCreated, Answer: hangar.NewPeer{Peer: peer, PeerGateway: hangar.PeerGateway{
			EndpointIP: "203.0.113.7", EndpointPort: 51820, GatewayKey: "bmXOC+F1FxEMF9dyiK2H5/1SUtzH0JuVo51h2wPfgyo=",
		}},
		Errors: []int{http.StatusPreconditionFailed, http.StatusUnprocessableEntity},
	})
	s.Handle("GET "+all, s.listPeers, router.Operation{
		ID: "listPeers", Tag: "WireGuard", Summary: "List WireGuard peers",
		Text: "Sorted by name, with what the gateway has seen of each since its daemon started.",
		Answer: peerList{[]hangar.PeerStatus{{
			Peer: peer, PeerTraffic: hangar.PeerTraffic{Handshake: exampleTime, Received: 148, Sent: 92},
		}}},
	})
	s.Handle("DELETE "+all+"/{peer}", s.removePeer, router.Operation{
		ID: "removePeer", Tag: "WireGuard", Summary: "Remove a WireGuard peer",
		Text: "At once and permanently: no other peer gets its address.", Status: http.StatusNoContent,
	})
}

const (
	examplePeer    = "laptop"
	examplePeerKey = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
)

// peerList is a listing of peers.
type peerList struct {
	Peers []hangar.PeerStatus `json:"wireguard_peers"`
}

// peerRequest is the body of create.
type peerRequest struct {
	Name      string         `json:"name"`
	Network   string         `json:"network"`
	PublicKey hangar.PeerKey `json:"public_key" schema:"required"`
}

func (s *server) createPeer(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[peerRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	made, err := s.Peers.CreatePeer(r.Context(), hangar.OrgSlug(r.PathValue("org")), hangar.PeerCreate(in))
	if err != nil {
		return router.Answer{}, err
	}
	if made.EndpointIP == "" {
		made.EndpointIP = router.CalledHost(r)
	}
	return router.Answer{Status: http.StatusCreated, Body: made}, nil
}

func (s *server) listPeers(r *http.Request) (router.Answer, error) {
	list, err := s.Peers.Peers(r.Context(), hangar.OrgSlug(r.PathValue("org")))
	return router.AnswerOf(peerList{view.OrEmpty(list)}, err)
}

func (s *server) removePeer(r *http.Request) (router.Answer, error) {
	return router.NoContent(s.Peers.RemovePeer(r.Context(), hangar.OrgSlug(r.PathValue("org")), r.PathValue("peer")))
}

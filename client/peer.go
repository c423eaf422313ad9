package client

import (
	"context"
	"net/http"

	"github.com/hangar-platform/hangar"
)

func peersOf(org hangar.OrgSlug, name ...string) string {
	return pathOf(append([]string{"v1", "orgs", string(org), "wireguard_peers"}, name...)...)
}

// CreatePeer implements hangar.PeerService.
func (c *Client) CreatePeer(ctx context.Context, org hangar.OrgSlug, in hangar.PeerCreate) (*hangar.NewPeer, error) {
	to := post(peersOf(org))
	to.in = map[string]any{"name": in.Name, "network": in.Network, "public_key": in.PublicKey}
	var made hangar.NewPeer
	if err := c.do(ctx, to, &made); err != nil {
		return nil, err
	}
	return &made, nil
}

// Peers implements hangar.PeerService.
func (c *Client) Peers(ctx context.Context, org hangar.OrgSlug) ([]hangar.PeerStatus, error) {
	var out struct {
		Peers []hangar.PeerStatus `json:"wireguard_peers"`
	}
	err := c.do(ctx, get(peersOf(org)), &out)
	return out.Peers, err
}

// RemovePeer implements hangar.PeerService.
func (c *Client) RemovePeer(ctx context.Context, org hangar.OrgSlug, name string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: peersOf(org, name)}, nil)
}

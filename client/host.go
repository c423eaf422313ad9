package client

import (
	"context"
	"net/http"

	"github.com/hangar-platform/hangar"
)

var _ hangar.HostService = (*Client)(nil)

func hostPath(id hangar.HostID) string { return pathOf("v1", "hosts", string(id)) }

// Hosts implements hangar.HostService.
func (c *Client) Hosts(ctx context.Context) ([]hangar.Host, error) {
	list, err := answered[struct {
		Hosts []hangar.Host `json:"hosts"`
	}](ctx, c, get("/v1/hosts"))
	return list.Hosts, err
}

// HostUsage implements hangar.HostService.
func (c *Client) HostUsage(ctx context.Context) ([]hangar.HostUsage, error) {
	list, err := answered[struct {
		Hosts []hangar.HostUsage `json:"hosts"`
	}](ctx, c, get("/v1/host-usage"))
	return list.Hosts, err
}

// Host implements hangar.HostService.
func (c *Client) Host(ctx context.Context, id hangar.HostID) (hangar.Host, error) {
	return answered[hangar.Host](ctx, c, get(hostPath(id)))
}

// UpdateHost implements hangar.HostService.
func (c *Client) UpdateHost(ctx context.Context, id hangar.HostID, in hangar.HostUpdate) (hangar.Host, error) {
	return answered[hangar.Host](ctx, c, call{method: http.MethodPatch, path: hostPath(id), in: in})
}

// RemoveHost implements hangar.HostService.
func (c *Client) RemoveHost(ctx context.Context, id hangar.HostID, in hangar.HostRemoval) error {
	return c.do(ctx, call{method: http.MethodDelete, path: hostPath(id), in: in}, nil)
}

// CreateJoinToken implements hangar.HostService.
func (c *Client) CreateJoinToken(ctx context.Context, in hangar.JoinTokenCreate) (hangar.NewJoinToken, error) {
	return answered[hangar.NewJoinToken](ctx, c, call{method: http.MethodPost, path: "/v1/join-tokens", in: in})
}

// JoinTokens implements hangar.HostService.
func (c *Client) JoinTokens(ctx context.Context) ([]hangar.JoinToken, error) {
	list, err := answered[struct {
		Tokens []hangar.JoinToken `json:"tokens"`
	}](ctx, c, get("/v1/join-tokens"))
	return list.Tokens, err
}

// RevokeJoinToken implements hangar.HostService.
func (c *Client) RevokeJoinToken(ctx context.Context, id hangar.JoinTokenID) error {
	return c.do(ctx, call{method: http.MethodDelete, path: pathOf("v1", "join-tokens", string(id))}, nil)
}

// BackupState implements hangar.HostService.
func (c *Client) BackupState(ctx context.Context) (hangar.StateBackup, error) {
	return answered[hangar.StateBackup](ctx, c, post("/v1/state/backup"))
}

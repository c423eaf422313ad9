package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/hangar-platform/hangar"
)

var _ hangar.ElectionService = (*Client)(nil)

func electionPath(app hangar.AppName, name hangar.ElectionName, rest ...string) string {
	return pathOf(append([]string{"v1", "apps", string(app), "elections", string(name)}, rest...)...)
}

// Election implements hangar.ElectionService.
func (c *Client) Election(ctx context.Context, app hangar.AppName, name hangar.ElectionName, q hangar.ElectionQuery) (*hangar.Election, error) {
	to := get(electionPath(app, name))
	if q.After != "" {
		to.query = url.Values{"after": {q.After}, "wait": {q.Wait.String()}}
	}
	return ask[hangar.Election](ctx, c, to)
}

// ChangeElection implements hangar.ElectionService.
func (c *Client) ChangeElection(ctx context.Context, app hangar.AppName, name hangar.ElectionName, in hangar.ElectionChange) (hangar.ElectionChanged, error) {
	return answered[hangar.ElectionChanged](ctx, c, call{method: http.MethodPost, path: electionPath(app, name), in: in})
}

// OpenElectionSession implements hangar.ElectionService.
func (c *Client) OpenElectionSession(ctx context.Context, app hangar.AppName, name hangar.ElectionName, in hangar.ElectionSessionOpen) (hangar.ElectionSession, error) {
	return answered[hangar.ElectionSession](ctx, c, call{method: http.MethodPost, path: electionPath(app, name, "sessions"), in: in})
}

// RenewElectionSession implements hangar.ElectionService.
func (c *Client) RenewElectionSession(ctx context.Context, app hangar.AppName, name hangar.ElectionName, id hangar.ElectionSessionID) (hangar.ElectionSession, error) {
	return answered[hangar.ElectionSession](ctx, c, call{method: http.MethodPost, path: electionPath(app, name, "sessions", string(id), "renew")})
}

// EndElectionSession implements hangar.ElectionService.
func (c *Client) EndElectionSession(ctx context.Context, app hangar.AppName, name hangar.ElectionName, id hangar.ElectionSessionID) error {
	return c.do(ctx, call{method: http.MethodDelete, path: electionPath(app, name, "sessions", string(id))}, nil)
}

// RemoveElection implements hangar.ElectionService.
func (c *Client) RemoveElection(ctx context.Context, app hangar.AppName, name hangar.ElectionName) error {
	return c.do(ctx, call{method: http.MethodDelete, path: electionPath(app, name)}, nil)
}

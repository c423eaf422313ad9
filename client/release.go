package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/hangar-platform/hangar"
)

var _ hangar.ReleaseService = (*Client)(nil)

func releasesPath(app hangar.AppName, rest ...string) string {
	return pathOf(append([]string{"v1", "apps", string(app), "releases"}, rest...)...)
}

// CreateRelease implements hangar.ReleaseService.
func (c *Client) CreateRelease(ctx context.Context, app hangar.AppName, in hangar.ReleaseCreate) (*hangar.Release, error) {
	return ask[hangar.Release](ctx, c, call{method: http.MethodPost, path: releasesPath(app), in: in})
}

// UpdateRelease implements hangar.ReleaseService.
func (c *Client) UpdateRelease(ctx context.Context, id hangar.ReleaseID, in hangar.ReleaseUpdate) (*hangar.Release, error) {
	return ask[hangar.Release](ctx, c, call{method: http.MethodPatch, path: pathOf("v1", "releases", string(id)), in: in})
}

// Releases implements hangar.ReleaseService.
func (c *Client) Releases(ctx context.Context, app hangar.AppName, limit int) ([]*hangar.Release, error) {
	to := get(releasesPath(app))
	if limit > 0 {
		to.query = url.Values{"limit": {strconv.Itoa(limit)}}
	}
	list, err := answered[struct {
		Releases []*hangar.Release `json:"releases"`
	}](ctx, c, to)
	return list.Releases, err
}

// CurrentRelease implements hangar.ReleaseService.
func (c *Client) CurrentRelease(ctx context.Context, app hangar.AppName) (*hangar.Release, error) {
	return ask[hangar.Release](ctx, c, get(releasesPath(app, "current")))
}

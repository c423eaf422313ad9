package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/hangar-platform/hangar"
)

// CreateApp implements hangar.AppService.
func (c *Client) CreateApp(ctx context.Context, in hangar.AppCreate) (*hangar.App, error) {
	body := map[string]any{"app_name": in.Name}
	if in.Org != "" {
		body["org_slug"] = in.Org
	}
	if in.Network != "" {
		body["network"] = in.Network
	}
	var app hangar.App
	if err := c.do(ctx, call{method: http.MethodPost, path: "/v1/apps", in: body}, &app); err != nil {
		return nil, err
	}
	return &app, nil
}

// App implements hangar.AppService.
func (c *Client) App(ctx context.Context, name hangar.AppName) (*hangar.App, error) {
	var app hangar.App
	if err := c.do(ctx, get(appPath(name)), &app); err != nil {
		return nil, err
	}
	return &app, nil
}

// Apps implements hangar.AppService.
func (c *Client) Apps(ctx context.Context, filter hangar.AppFilter) ([]*hangar.App, error) {
	in := get("/v1/apps")
	if filter.Org != "" {
		in.query = url.Values{"org_slug": {string(filter.Org)}}
	}
	var out struct {
		Apps []*hangar.App `json:"apps"`
	}
	if err := c.do(ctx, in, &out); err != nil {
		return nil, err
	}
	return out.Apps, nil
}

// DestroyApp implements hangar.AppService.
func (c *Client) DestroyApp(ctx context.Context, name hangar.AppName, force bool) error {
	q := url.Values{"force": {strconv.FormatBool(force)}}
	return c.do(ctx, call{method: http.MethodDelete, path: appPath(name), query: q}, nil)
}

func appPath(name hangar.AppName, more ...string) string {
	return pathOf(append([]string{"v1", "apps", string(name)}, more...)...)
}

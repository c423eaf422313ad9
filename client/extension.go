package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/hangar-platform/hangar"
)

var (
	_ hangar.ProviderService  = (*Client)(nil)
	_ hangar.ExtensionService = (*Client)(nil)
)

func providerPath(name hangar.ProviderName, rest ...string) string {
	return pathOf(append([]string{"v1", "providers", string(name)}, rest...)...)
}

func extensionPath(app hangar.AppName, name string, rest ...string) string {
	return appPath(app, append([]string{"extensions", name}, rest...)...)
}

// newProvider makes a call whose answer is a provider with its new secrets.
func (c *Client) newProvider(ctx context.Context, in call) (*hangar.NewProvider, error) {
	var made struct {
		ClientSecret  hangar.Sensitive `json:"client_secret"`
		RequestSecret hangar.Sensitive `json:"request_secret"`
		WebhookSecret hangar.Sensitive `json:"webhook_secret"`
		hangar.Provider
	}
	if err := c.do(ctx, in, &made); err != nil {
		return nil, err
	}
	return &hangar.NewProvider{
		Provider: made.Provider, ClientSecret: made.ClientSecret, RequestSecret: made.RequestSecret, WebhookSecret: made.WebhookSecret,
	}, nil
}

// CreateProvider implements hangar.ProviderService.
func (c *Client) CreateProvider(ctx context.Context, in hangar.ProviderCreate) (*hangar.NewProvider, error) {
	to := post("/v1/providers")
	to.in = in
	return c.newProvider(ctx, to)
}

// Providers implements hangar.ProviderService.
func (c *Client) Providers(ctx context.Context) ([]*hangar.Provider, error) {
	var out struct {
		Providers []*hangar.Provider `json:"providers"`
	}
	err := c.do(ctx, get("/v1/providers"), &out)
	return out.Providers, err
}

// Provider implements hangar.ProviderService.
func (c *Client) Provider(ctx context.Context, name hangar.ProviderName) (*hangar.Provider, error) {
	return ask[hangar.Provider](ctx, c, get(providerPath(name)))
}

// UpdateProvider implements hangar.ProviderService.
func (c *Client) UpdateProvider(ctx context.Context, name hangar.ProviderName, in hangar.ProviderUpdate) (*hangar.Provider, error) {
	return ask[hangar.Provider](ctx, c, call{method: http.MethodPatch, path: providerPath(name), in: in})
}

// RotateProvider implements hangar.ProviderService.
func (c *Client) RotateProvider(ctx context.Context, name hangar.ProviderName, in hangar.ProviderRotate) (*hangar.NewProvider, error) {
	to := post(providerPath(name, "rotate"))
	to.in = in
	return c.newProvider(ctx, to)
}

// RemoveProvider implements hangar.ProviderService.
func (c *Client) RemoveProvider(ctx context.Context, name hangar.ProviderName, force bool) error {
	to := call{method: http.MethodDelete, path: providerPath(name)}
	if force {
		to.query = url.Values{"force": {"true"}}
	}
	return c.do(ctx, to, nil)
}

// CreateExtension implements hangar.ExtensionService.
func (c *Client) CreateExtension(ctx context.Context, app hangar.AppName, in hangar.ExtensionCreate) (*hangar.Extension, error) {
	to := post(appPath(app, "extensions"))
	to.in = in
	return ask[hangar.Extension](ctx, c, to)
}

func (c *Client) extensions(ctx context.Context, path string) ([]*hangar.Extension, error) {
	var out struct {
		Extensions []*hangar.Extension `json:"extensions"`
	}
	err := c.do(ctx, get(path), &out)
	return out.Extensions, err
}

// Extensions implements hangar.ExtensionService.
func (c *Client) Extensions(ctx context.Context, app hangar.AppName) ([]*hangar.Extension, error) {
	return c.extensions(ctx, appPath(app, "extensions"))
}

// OrgExtensions implements hangar.ExtensionService.
func (c *Client) OrgExtensions(ctx context.Context, org hangar.OrgSlug) ([]*hangar.Extension, error) {
	return c.extensions(ctx, pathOf("v1", "orgs", string(org), "extensions"))
}

// Extension implements hangar.ExtensionService.
func (c *Client) Extension(ctx context.Context, app hangar.AppName, name string) (*hangar.Extension, error) {
	return ask[hangar.Extension](ctx, c, get(extensionPath(app, name)))
}

// UpdateExtension implements hangar.ExtensionService.
func (c *Client) UpdateExtension(ctx context.Context, app hangar.AppName, name string, in hangar.ExtensionUpdate) (*hangar.Extension, error) {
	return ask[hangar.Extension](ctx, c, call{method: http.MethodPatch, path: extensionPath(app, name), in: in})
}

// DestroyExtension implements hangar.ExtensionService.
func (c *Client) DestroyExtension(ctx context.Context, app hangar.AppName, name string) (*hangar.Extension, error) {
	e, err := ask[hangar.Extension](ctx, c, call{method: http.MethodDelete, path: extensionPath(app, name)})
	if err == nil && e.Status == "destroyed" {
		return nil, nil //nolint:nilnil // it is gone
	}
	return e, err
}

// RetryExtension implements hangar.ExtensionService.
func (c *Client) RetryExtension(ctx context.Context, app hangar.AppName, name string, in hangar.ExtensionRetry) (*hangar.Extension, error) {
	to := post(extensionPath(app, name, "retry"))
	to.in = in
	return ask[hangar.Extension](ctx, c, to)
}

// ExtensionLink implements hangar.ExtensionService.
func (c *Client) ExtensionLink(ctx context.Context, app hangar.AppName, name string) (*hangar.ExtensionLink, error) {
	return ask[hangar.ExtensionLink](ctx, c, get(extensionPath(app, name, "sso")))
}

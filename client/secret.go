package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/hangar-platform/hangar"
)

// Secrets implements hangar.SecretService.
func (c *Client) Secrets(ctx context.Context, app hangar.AppName, q hangar.SecretQuery) (hangar.Secrets, error) {
	in := get(appPath(app, "secrets"))
	in.query = secretQuery(q)
	return c.secrets(ctx, in)
}

func (c *Client) secrets(ctx context.Context, in call) (hangar.Secrets, error) {
	var out hangar.Secrets
	err := c.do(ctx, in, &out)
	return out, err
}

// Secret implements hangar.SecretService.
func (c *Client) Secret(ctx context.Context, app hangar.AppName, name string, q hangar.SecretQuery) (hangar.Secret, error) {
	in := get(appPath(app, "secrets", name))
	in.query = secretQuery(q)
	var out hangar.Secret
	err := c.do(ctx, in, &out)
	return out, err
}

// SetSecrets implements hangar.SecretService.
func (c *Client) SetSecrets(ctx context.Context, app hangar.AppName, values map[string]hangar.Sensitive) (hangar.Secrets, error) {
	shown := make(map[string]*string, len(values))
	for name, value := range values {
		shown[name] = nil
		if !value.IsZero() {
			text := value.Reveal()
			shown[name] = &text
		}
	}
	in := post(appPath(app, "secrets"))
	in.in = map[string]any{"values": shown}
	return c.secrets(ctx, in)
}

// DeleteSecret implements hangar.SecretService.
func (c *Client) DeleteSecret(ctx context.Context, app hangar.AppName, name string) (int, error) {
	var out hangar.Secrets
	err := c.do(ctx, call{method: http.MethodDelete, path: appPath(app, "secrets", name)}, &out)
	return out.Version, err
}

func secretQuery(q hangar.SecretQuery) url.Values {
	values := atLeast(q.MinVersion)
	if q.Show {
		values.Set("show_secrets", "true")
	}
	return values
}

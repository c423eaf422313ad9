package client

import (
	"context"
	"net/http"

	"github.com/hangar-platform/hangar"
)

// RegistryCredentials implements hangar.RegistryService.
func (c *Client) RegistryCredentials(ctx context.Context) ([]hangar.RegistryCredential, error) {
	var out struct {
		Registries []hangar.RegistryCredential `json:"registries"`
	}
	err := c.do(ctx, get("/v1/registries"), &out)
	return out.Registries, err
}

// RegistryCredential implements hangar.RegistryService.
func (c *Client) RegistryCredential(ctx context.Context, registry string) (hangar.RegistryCredential, error) {
	return c.credential(ctx, call{method: http.MethodGet}, registry)
}

// SetRegistryCredential implements hangar.RegistryService.
func (c *Client) SetRegistryCredential(ctx context.Context, registry string, in hangar.RegistryLogin) (hangar.RegistryCredential, error) {
	body := map[string]string{"username": in.Username, "password": in.Password.Reveal()}
	return c.credential(ctx, call{method: http.MethodPut, in: body}, registry)
}

// DeleteRegistryCredential implements hangar.RegistryService.
func (c *Client) DeleteRegistryCredential(ctx context.Context, registry string) error {
	name, err := hangar.RegistryName(registry)
	if err != nil {
		return err
	}
	return c.do(ctx, call{method: http.MethodDelete, path: pathOf("v1", "registries", name)}, nil)
}

// credential makes a call about one registry. Its name may be given as a URL, which cannot be a part of
// a path.
func (c *Client) credential(ctx context.Context, in call, registry string) (hangar.RegistryCredential, error) {
	name, err := hangar.RegistryName(registry)
	if err != nil {
		return hangar.RegistryCredential{}, err
	}
	in.path = pathOf("v1", "registries", name)
	var out hangar.RegistryCredential
	err = c.do(ctx, in, &out)
	return out, err
}

// RotateEncryptionKey implements hangar.EncryptionService.
func (c *Client) RotateEncryptionKey(ctx context.Context) (hangar.KeyRotation, error) {
	var out hangar.KeyRotation
	err := c.do(ctx, post("/v1/encryption/rotate"), &out)
	return out, err
}

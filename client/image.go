package client

import (
	"context"
	"net/http"

	"github.com/hangar-platform/hangar"
)

// Images implements hangar.ImageService.
func (c *Client) Images(ctx context.Context) ([]hangar.Image, error) {
	var out []hangar.Image
	if err := c.do(ctx, get("/v1/images"), &out); err != nil {
		return nil, err
	}
	return out, nil
}

// RemoveImage implements hangar.ImageService.
func (c *Client) RemoveImage(ctx context.Context, digest string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: pathOf("v1", "images", digest)}, nil)
}

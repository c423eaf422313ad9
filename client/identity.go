package client

import (
	"context"
	"fmt"
	"io"

	"github.com/hangar-platform/hangar"
)

// maxTokenBytes bounds an identity token.
const maxTokenBytes = 64 << 10

// IssueIdentityToken implements hangar.IdentityService.
func (c *Client) IssueIdentityToken(ctx context.Context, ref hangar.MachineRef, in hangar.IdentityTokenRequest) (string, error) {
	to := post("/v1/tokens/oidc")
	if ref != (hangar.MachineRef{}) {
		to = post(machinePath(ref, "oidc_token"))
	}
	to.in = in
	res, err := c.send(ctx, to)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	token, err := io.ReadAll(io.LimitReader(res.Body, maxTokenBytes+1))
	if err == nil && len(token) > maxTokenBytes {
		err = fmt.Errorf("a token of more than %d bytes", maxTokenBytes)
	}
	if err != nil {
		return "", lost(ctx, to, err)
	}
	return string(token), nil
}

// signingKeys are the keys that sign identity tokens.
type signingKeys struct {
	Keys []hangar.SigningKey `json:"keys"`
}

// SigningKeys implements hangar.SigningKeyService.
func (c *Client) SigningKeys(ctx context.Context) ([]hangar.SigningKey, error) {
	var out signingKeys
	err := c.do(ctx, get("/v1/oidc/keys"), &out)
	return out.Keys, err
}

// RotateSigningKey implements hangar.SigningKeyService.
func (c *Client) RotateSigningKey(ctx context.Context) ([]hangar.SigningKey, error) {
	var out signingKeys
	err := c.do(ctx, post("/v1/oidc/keys/rotate"), &out)
	return out.Keys, err
}

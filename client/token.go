package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/hangar-platform/hangar"
)

// CreateToken implements hangar.TokenService.
func (c *Client) CreateToken(ctx context.Context, in hangar.TokenCreate) (*hangar.NewToken, error) {
	to := post("/v1/tokens")
	to.in = in
	return c.newToken(ctx, to)
}

// newToken makes a call whose answer is a new token.
func (c *Client) newToken(ctx context.Context, in call) (*hangar.NewToken, error) {
	var made struct {
		Text string `json:"token"`
		hangar.Token
	}
	if err := c.do(ctx, in, &made); err != nil {
		return nil, err
	}
	return &hangar.NewToken{Token: made.Token, Text: made.Text}, nil
}

// Tokens implements hangar.TokenService.
func (c *Client) Tokens(ctx context.Context, filter hangar.TokenFilter) ([]*hangar.Token, error) {
	in := get("/v1/tokens")
	in.query = url.Values{}
	if filter.Org != "" {
		in.query.Set("org_slug", string(filter.Org))
	}
	if filter.App != "" {
		in.query.Set("app_name", string(filter.App))
	}
	var out struct {
		Tokens []*hangar.Token `json:"tokens"`
	}
	if err := c.do(ctx, in, &out); err != nil {
		return nil, err
	}
	return out.Tokens, nil
}

// RevokeToken implements hangar.TokenService.
func (c *Client) RevokeToken(ctx context.Context, idOrName string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: pathOf("v1", "tokens", idOrName)}, nil)
}

// CurrentTokens implements hangar.TokenService.
func (c *Client) CurrentTokens(ctx context.Context) ([]*hangar.Token, error) {
	return c.presented(ctx, get("/v1/tokens/current"))
}

// AuthenticateTokens implements hangar.TokenService.
func (c *Client) AuthenticateTokens(ctx context.Context, header hangar.Authorization) ([]*hangar.Token, error) {
	to := post("/v1/tokens/authenticate")
	to.in = map[string]hangar.Authorization{"header": header}
	return c.presented(ctx, to)
}

// presented asks the server for the tokens that a caller has presented.
func (c *Client) presented(ctx context.Context, in call) ([]*hangar.Token, error) {
	var out struct {
		Tokens []struct {
			Token *hangar.Token `json:"details"`
		} `json:"tokens"`
	}
	if err := c.do(ctx, in, &out); err != nil {
		return nil, err
	}
	tokens := make([]*hangar.Token, 0, len(out.Tokens))
	for _, t := range out.Tokens {
		if t.Token != nil {
			tokens = append(tokens, t.Token)
		}
	}
	return tokens, nil
}

// Authorize implements hangar.TokenService.
func (c *Client) Authorize(ctx context.Context, header hangar.Authorization, in hangar.Access) (hangar.Access, error) {
	to := post("/v1/tokens/authorize")
	to.in = struct {
		Header hangar.Authorization `json:"header"`
		Access hangar.Access        `json:"access"`
	}{header, in}
	var out struct {
		Access hangar.Access `json:"access"`
	}
	err := c.do(ctx, to, &out)
	return out.Access, err
}

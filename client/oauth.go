package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/hangar-platform/hangar"
)

// AuthorizeURL is where a user signs in with a browser, which then goes to redirectURI, a redirect URI
// of hangar.OAuthClientCLI. challenge belongs to the verifier of ExchangeCode (RFC 7636, section 4.2).
func (c *Client) AuthorizeURL(redirectURI, state, challenge string) string {
	return c.base + "/oauth/authorize?" + url.Values{
		"response_type": {"code"}, "client_id": {string(hangar.OAuthClientCLI)}, "redirect_uri": {redirectURI}, "scope": {hangar.OAuthScopeSignIn},
		"state": {state}, "code_challenge": {challenge}, "code_challenge_method": {"S256"},
	}.Encode()
}

// ExchangeCode returns the token of a sign-in with a browser. It answers CodeInvalid with the reasons
// of hangar.OAuthService.
func (c *Client) ExchangeCode(ctx context.Context, code, verifier hangar.Sensitive, redirectURI string) (hangar.Sensitive, error) {
	in := post("/oauth/token")
	form := url.Values{
		"grant_type": {"authorization_code"}, "client_id": {string(hangar.OAuthClientCLI)}, "redirect_uri": {redirectURI},
		"code": {code.Reveal()}, "code_verifier": {verifier.Reveal()},
	}
	req, err := http.NewRequestWithContext(ctx, in.method, c.base+in.path, strings.NewReader(form.Encode()))
	if err != nil {
		return hangar.Sensitive{}, hangar.Errorf(hangar.CodeInvalid, "", "bad address of the server: %w", err)
	}
	req.Header = c.header()
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := c.http.Do(req)
	if err != nil {
		return hangar.Sensitive{}, lost(ctx, in, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	if err != nil {
		return hangar.Sensitive{}, lost(ctx, in, err)
	}
	var out struct {
		Token  string `json:"access_token"`
		Reason string `json:"error"`
		Text   string `json:"error_description"`
	}
	switch err := json.Unmarshal(raw, &out); {
	case err == nil && res.StatusCode == http.StatusOK && out.Token != "":
		return hangar.NewSensitive(out.Token), nil
	case err == nil && out.Reason != "" && out.Text != "":
		return hangar.Sensitive{}, &hangar.Error{Code: codeOf(res.StatusCode), Reason: out.Reason, Message: out.Text}
	default:
		return hangar.Sensitive{}, foreignError(res, raw)
	}
}

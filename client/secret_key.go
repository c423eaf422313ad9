package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
)

// madeSecretKey answers the setting of a secret key.
type madeSecretKey struct {
	hangar.SecretKey
	Version int `json:"version"`
}

func secretKeyPath(key hangar.SecretKeyRef, more ...string) string {
	return appPath(key.App, append([]string{"secretkeys", key.Name}, more...)...)
}

// SecretKeys implements hangar.SecretKeyService.
func (c *Client) SecretKeys(ctx context.Context, app hangar.AppName, q hangar.SecretKeyQuery) ([]hangar.SecretKey, error) {
	in := get(appPath(app, "secretkeys"))
	in.query = atLeast(q.MinVersion)
	if q.Types != nil {
		names := make([]string, 0, len(q.Types))
		for _, t := range q.Types {
			names = append(names, string(t))
		}
		in.query.Set("types", strings.Join(names, ","))
	}
	var out struct {
		SecretKeys []hangar.SecretKey `json:"secret_keys"`
	}
	err := c.do(ctx, in, &out)
	return out.SecretKeys, err
}

// SecretKey implements hangar.SecretKeyService.
func (c *Client) SecretKey(ctx context.Context, key hangar.SecretKeyRef, minVersion int) (hangar.SecretKey, error) {
	in := get(secretKeyPath(key))
	in.query = atLeast(minVersion)
	var out hangar.SecretKey
	err := c.do(ctx, in, &out)
	return out, err
}

// SetSecretKey implements hangar.SecretKeyService.
func (c *Client) SetSecretKey(ctx context.Context, key hangar.SecretKeyRef, in hangar.SecretKeySet) (hangar.SecretKey, int, error) {
	return c.makeSecretKey(ctx, secretKeyPath(key), map[string]any{"type": in.Type, "value": []byte(in.Value.Reveal())})
}

// GenerateSecretKey implements hangar.SecretKeyService.
func (c *Client) GenerateSecretKey(ctx context.Context, key hangar.SecretKeyRef, t hangar.SecretKeyType) (hangar.SecretKey, int, error) {
	return c.makeSecretKey(ctx, secretKeyPath(key, "generate"), map[string]any{"type": t})
}

func (c *Client) makeSecretKey(ctx context.Context, path string, body map[string]any) (hangar.SecretKey, int, error) {
	in := post(path)
	in.in = body
	var out madeSecretKey
	err := c.do(ctx, in, &out)
	return out.SecretKey, out.Version, err
}

// DeleteSecretKey implements hangar.SecretKeyService.
func (c *Client) DeleteSecretKey(ctx context.Context, key hangar.SecretKeyRef) (int, error) {
	var out madeSecretKey
	err := c.do(ctx, call{method: http.MethodDelete, path: secretKeyPath(key)}, &out)
	return out.Version, err
}

// EncryptWithKey implements hangar.SecretKeyService.
func (c *Client) EncryptWithKey(ctx context.Context, key hangar.SecretKeyRef, minVersion int, plaintext, associated []byte) ([]byte, error) {
	out, err := c.useSecretKey(ctx, key, "encrypt", minVersion, keyData{"plaintext": plaintext, "associated_data": associated})
	return out["ciphertext"], err
}

// DecryptWithKey implements hangar.SecretKeyService.
func (c *Client) DecryptWithKey(ctx context.Context, key hangar.SecretKeyRef, minVersion int, ciphertext, associated []byte) ([]byte, error) {
	out, err := c.useSecretKey(ctx, key, "decrypt", minVersion, keyData{"ciphertext": ciphertext, "associated_data": associated})
	return out["plaintext"], err
}

// SignWithKey implements hangar.SecretKeyService.
func (c *Client) SignWithKey(ctx context.Context, key hangar.SecretKeyRef, minVersion int, plaintext []byte) ([]byte, error) {
	out, err := c.useSecretKey(ctx, key, "sign", minVersion, keyData{"plaintext": plaintext})
	return out["signature"], err
}

// VerifyWithKey implements hangar.SecretKeyService.
func (c *Client) VerifyWithKey(ctx context.Context, key hangar.SecretKeyRef, minVersion int, plaintext, signature []byte) error {
	in := post(secretKeyPath(key, "verify"))
	in.query = atLeast(minVersion)
	in.in = keyData{"plaintext": plaintext, "signature": signature}.sent()
	return c.do(ctx, in, nil)
}

// keyData is the input or output of an operation with a key, by the names on the wire.
type keyData map[string][]byte

// sent replaces nil values by empty ones, because nil would become null.
func (d keyData) sent() keyData {
	for name, data := range d {
		d[name] = append([]byte{}, data...)
	}
	return d
}

func (c *Client) useSecretKey(ctx context.Context, key hangar.SecretKeyRef, operation string, minVersion int, data keyData) (keyData, error) {
	in := post(secretKeyPath(key, operation))
	in.query = atLeast(minVersion)
	in.in = data.sent()
	var out keyData
	err := c.do(ctx, in, &out)
	return out, err
}

func atLeast(version int) url.Values {
	values := url.Values{}
	if version != 0 {
		values.Set("min_version", strconv.Itoa(version))
	}
	return values
}

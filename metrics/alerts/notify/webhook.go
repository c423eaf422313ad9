package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

// webhooks calls webhooks. It does not keep connections: two organizations must not share them, and
// calls are minutes apart.
type webhooks struct{ client *http.Client }

const (
	maxAnswerHeader = 64 << 10 // bytes
	maxAnswer       = 64 << 10 // bytes of a body that are read and discarded
)

func newWebhooks(dial func(ctx context.Context, network, address string) (net.Conn, error)) *webhooks {
	if dial == nil { // with nil, http.Transport would call any address
		dial = func(context.Context, string, string) (net.Conn, error) { return nil, errNoDialer }
	}
	return &webhooks{&http.Client{
		Transport: &http.Transport{
			DialContext: dial, DisableKeepAlives: true, DisableCompression: true,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    sendTimeout,
			MaxResponseHeaderBytes: maxAnswerHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

var errNoDialer = errors.New("there is no dialer for webhooks")

// Signature is the value of hangar.AlertSignatureHeader for a body.
func Signature(secret string, body []byte) string {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write(body)
	return "sha256=" + hex.EncodeToString(h.Sum(nil))
}

// send posts a payload. Errors contain only the status of the webhook's response.
func (w *webhooks) send(ctx context.Context, to hangar.AlertWebhook, p Payload) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, bytes.NewReader(body))
	if err != nil {
		return refusal{errors.New("the URL of the webhook cannot be called")}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", hangar.EdgeProduct+"-alerts")
	req.Header.Set(hangar.AlertSignatureHeader, Signature(to.Secret.Reveal(), body))
	resp, err := w.client.Do(req)
	if err != nil {
		return fmt.Errorf("the webhook %s", publicdial.Describe(err))
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // bounded, because the response may be endless
	_ = resp.Body.Close()
	return verdict(resp.StatusCode)
}

// verdict returns the meaning of a response's status.
func verdict(status int) error {
	err := fmt.Errorf("the webhook answers with status %d", status)
	switch {
	case status >= 200 && status < 300:
		return nil
	case status >= 300 && status < 400:
		return refusal{fmt.Errorf("the webhook answers with status %d, and redirects are not followed", status)}
	case status >= 400 && status < 500 && status != http.StatusRequestTimeout && status != http.StatusTooManyRequests:
		return refusal{err}
	}
	return err
}

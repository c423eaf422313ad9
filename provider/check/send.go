package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

// call is a request before it is signed.
type call struct {
	method, path string // path begins after the base URL
	body         any    // nil: none
}

func (c call) String() string { return c.method + " BASE" + c.path }

// at returns the path of the created extension, with a suffix.
func (k *checker) at(suffix string) string {
	return "/extensions/" + url.PathEscape(k.made.ID) + suffix
}

func (k *checker) remove() call { return call{method: http.MethodDelete, path: k.at("")} }
func (k *checker) get() call    { return call{method: http.MethodGet, path: k.at("")} }

// answer is the server's answer.
type answer struct {
	status int
	header http.Header
	body   []byte // at most one byte more than maxAnswer
	took   time.Duration
}

func (a *answer) ok() bool      { return a.status/100 == 2 }
func (a *answer) refused() bool { return a.status/100 == 4 }

// decode reads a JSON object.
func (a *answer) decode(into any) error {
	if len(a.body) > maxAnswer {
		return fmt.Errorf("the body has more than %d bytes", maxAnswer)
	}
	if media, _, err := mime.ParseMediaType(a.header.Get("Content-Type")); err != nil || media != "application/json" {
		return errors.New("the content type is not application/json")
	}
	if err := json.Unmarshal(a.body, into); err != nil {
		return errors.New("the body is not the JSON object that it must be")
	}
	return nil
}

// request builds a request that is not signed.
func (k *checker) request(ctx context.Context, c call) (*http.Request, error) {
	var body io.Reader
	if c.body != nil {
		raw, err := json.Marshal(c.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(raw)
	}
	r, err := http.NewRequestWithContext(ctx, c.method, k.base+c.path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, nil
}

// signed builds a request as the platform sends it.
func (k *checker) signed(ctx context.Context, c call) (*http.Request, error) {
	r, err := k.request(ctx, c)
	if err != nil {
		return nil, err
	}
	return r, provider.Signer{Secret: k.Secret}.Sign(r)
}

// send signs and sends a request.
func (k *checker) send(ctx context.Context, c call) (*answer, error) {
	r, err := k.signed(ctx, c)
	if err != nil {
		return nil, err
	}
	return k.do(r)
}

// do sends a request unchanged.
func (k *checker) do(r *http.Request) (*answer, error) {
	ctx, cancel := context.WithTimeout(r.Context(), giveUpAfter)
	defer cancel()
	began := time.Now()
	res, err := k.client.Do(r.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	return &answer{res.StatusCode, res.Header, body, time.Since(began)}, nil
}

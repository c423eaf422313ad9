package check

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

// forgery is a request that the platform did not send, or not in this form.
type forgery struct {
	rule  string
	build func(ctx context.Context, k *checker, c call) (*http.Request, error)
	only  []string // methods; nil: all
}

// by builds a request and signs it with the Signer that s returns.
func by(s func(k *checker) provider.Signer) func(context.Context, *checker, call) (*http.Request, error) {
	return func(ctx context.Context, k *checker, c call) (*http.Request, error) {
		r, err := k.request(ctx, c)
		if err != nil {
			return nil, err
		}
		return r, s(k).Sign(r)
	}
}

// after builds a signed request and then changes it.
func after(change func(r *http.Request)) func(context.Context, *checker, call) (*http.Request, error) {
	return func(ctx context.Context, k *checker, c call) (*http.Request, error) {
		r, err := k.signed(ctx, c)
		if err == nil {
			change(r)
		}
		return r, err
	}
}

var withBody = []string{http.MethodPost, http.MethodPatch}

// forgeries are the requests that every server must refuse.
var forgeries = []forgery{
	{rule: "a request without a signature is refused", build: after(func(r *http.Request) { r.Header.Del(provider.SignatureHeader) })},
	{rule: "an empty signature is refused", build: after(func(r *http.Request) { r.Header.Set(provider.SignatureHeader, "") })},
	{rule: "a signature by another secret is refused", build: by(func(k *checker) provider.Signer { return provider.Signer{Secret: k.Secret + "x"} })},
	{rule: "a signature by an empty secret is refused", build: after(func(r *http.Request) {
		message := []byte(r.URL.RawQuery)
		if slices.Contains(withBody, r.Method) {
			message = bodyOf(r)
		}
		r.Header.Set(provider.SignatureHeader, provider.Signature("", message))
	})},
	{rule: "half of the signature is refused", build: after(func(r *http.Request) {
		r.Header.Set(provider.SignatureHeader, r.Header.Get(provider.SignatureHeader)[:32])
	})},
	{rule: "a body that was changed after it was signed is refused", only: withBody, build: after(func(r *http.Request) {
		setBody(r, append(bytes.TrimSuffix(bodyOf(r), []byte("}")), []byte(`,"x":1}`)...))
	})},
	{rule: "a query that was changed after it was signed is refused", only: []string{http.MethodGet, http.MethodDelete}, build: after(func(r *http.Request) {
		r.URL.RawQuery = "x=1&" + r.URL.RawQuery
	})},
	{rule: "a timestamp of ten minutes ago is refused", build: by(func(k *checker) provider.Signer {
		return provider.Signer{Secret: k.Secret, Now: func() time.Time { return time.Now().Add(-10 * time.Minute) }}
	})},
	{rule: "a timestamp in ten minutes is refused", build: by(func(k *checker) provider.Signer {
		return provider.Signer{Secret: k.Secret, Now: func() time.Time { return time.Now().Add(10 * time.Minute) }}
	})},
	{rule: "a request that was signed for another server is refused", build: func(ctx context.Context, k *checker, c call) (*http.Request, error) {
		return k.elsewhere(ctx, c, func(u *url.URL) { u.Host = "other.example.com" })
	}},
	{rule: "a request that was signed for another path is refused", build: func(ctx context.Context, k *checker, c call) (*http.Request, error) {
		return k.elsewhere(ctx, c, func(u *url.URL) { u.Path += "-other" })
	}},
	{rule: "a request without url, nonce and timestamp is refused", build: func(ctx context.Context, k *checker, c call) (*http.Request, error) {
		r, err := k.request(ctx, c)
		if err != nil {
			return nil, err
		}
		var message []byte
		if r.Body != nil {
			message = bodyOf(r)
		}
		r.Header.Set(provider.SignatureHeader, provider.Signature(k.Secret, message))
		return r, nil
	}},
	{rule: "a query that is the body of another request is refused", only: []string{http.MethodGet, http.MethodDelete}, build: func(ctx context.Context, k *checker, c call) (*http.Request, error) {
		body, err := k.signed(ctx, call{http.MethodPost, c.path, json.RawMessage(`{}`)})
		if err != nil {
			return nil, err
		}
		r, err := k.request(ctx, c)
		if err == nil {
			r.URL.RawQuery = string(bodyOf(body))
			r.Header.Set(provider.SignatureHeader, body.Header.Get(provider.SignatureHeader))
		}
		return r, err
	}},
}

// elsewhere signs a request for a different URL from the one to which it is sent.
func (k *checker) elsewhere(ctx context.Context, c call, change func(*url.URL)) (*http.Request, error) {
	r, err := k.request(ctx, c)
	if err != nil {
		return nil, err
	}
	there := *r.URL
	change(r.URL)
	if err := (provider.Signer{Secret: k.Secret}).Sign(r); err != nil {
		return nil, err
	}
	there.RawQuery = r.URL.RawQuery
	r.URL = &there
	return r, nil
}

func bodyOf(r *http.Request) []byte {
	body, _ := r.GetBody() // reads from memory
	raw, _ := io.ReadAll(body)
	return raw
}

func setBody(r *http.Request, body []byte) {
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
}

// forgeries sends each forgery with every method, and checks that the extension still exists.
func (k *checker) forgeries(ctx context.Context) {
	for _, f := range forgeries {
		if ctx.Err() != nil {
			return
		}
		k.forge(ctx, f)
	}
	k.replay(ctx)
	const rule = "forged requests have changed nothing"
	if _, ok := k.resource(ctx, rule, k.get()); ok {
		k.kept(rule)
	}
}

func (k *checker) forge(ctx context.Context, f forgery) {
	for _, c := range []call{
		{http.MethodPost, "/extensions", k.provision}, k.get(), {http.MethodPatch, k.at(""), k.provision}, k.remove(),
	} {
		if f.only != nil && !slices.Contains(f.only, c.method) {
			continue
		}
		r, err := f.build(ctx, k, c)
		if err != nil {
			k.broken(f.rule, "%s: %v", c, err)
			return
		}
		if a, err := k.do(r); err != nil || !a.refused() {
			k.failed(f.rule, c, a, err)
			return
		}
	}
	k.kept(f.rule)
}

// replay sends the same request twice.
func (k *checker) replay(ctx context.Context) {
	const rule = "a request that came before is refused"
	for _, c := range []call{k.get(), {http.MethodPost, "/extensions", k.provision}} {
		r, err := k.signed(ctx, c)
		if err != nil {
			k.broken(rule, "%s: %v", c, err)
			return
		}
		again := r.Clone(ctx)
		if r.GetBody != nil {
			again.Body, _ = r.GetBody()
		}
		if a, err := k.do(r); err != nil || !a.ok() {
			k.failed(rule, c, a, err)
			return
		}
		if a, err := k.do(again); err != nil || !a.refused() {
			k.failed(rule, c, a, err)
			return
		}
	}
	k.kept(rule)
}

package provider_test

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/hangar-platform/hangar/provider"
)

func TestSignRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		signer              provider.Signer
		method, target, doc string
		body                io.Reader // instead of doc
	}{
		"no secret":             {signer: provider.Signer{}, method: "GET", target: "https://h/"},
		"short nonce":           {signer: provider.Signer{Secret: "s", Nonce: func() string { return "abc" }}, method: "GET", target: "https://h/"},
		"nonce with a space":    {signer: provider.Signer{Secret: "s", Nonce: func() string { return strings.Repeat("a b", 8) }}, method: "GET", target: "https://h/"},
		"method":                {method: "PUT", target: "https://h/", doc: "{}"},
		"scheme":                {method: "GET", target: "ftp://h/"},
		"no host":               {method: "GET", target: "/extensions"},
		"user":                  {method: "GET", target: "https://me@h/"},
		"fragment":              {method: "GET", target: "https://h/#a"},
		"body of a GET":         {method: "GET", target: "https://h/", doc: "{}"},
		"body of a DELETE":      {method: "DELETE", target: "https://h/", doc: "{}"},
		"query has url":         {method: "GET", target: "https://h/?url=x"},
		"query has nonce":       {method: "GET", target: "https://h/?a=1&nonce"},
		"query has timestamp":   {method: "GET", target: "https://h/?timest%61mp=1"},
		"query has a semicolon": {method: "GET", target: "https://h/?a=1;url=2"},
		"query is not encoded":  {method: "POST", target: `https://h/?a="`, doc: "{}"},
		"body has url":          {method: "POST", target: "https://h/", doc: `{"url":"x"}`},
		"body has nonce":        {method: "POST", target: "https://h/", doc: `{"a":{},"nonce":null}`},
		"body has timestamp":    {method: "PATCH", target: "https://h/", doc: `{"timest\u0061mp":1}`},
		"body is an array":      {method: "POST", target: "https://h/", doc: `[]`},
		"body is null":          {method: "POST", target: "https://h/", doc: `null`},
		"body is two objects":   {method: "POST", target: "https://h/", doc: `{}{}`},
		"body cannot be read":   {method: "POST", target: "https://h/", body: iotest.ErrReader(errors.New("broken"))},
	} {
		t.Run(name, func(t *testing.T) {
			if c.signer.Secret == "" && name != "no secret" {
				c.signer.Secret = "s"
			}
			if c.body == nil && c.doc != "" {
				c.body = strings.NewReader(c.doc)
			}
			r, err := http.NewRequestWithContext(t.Context(), c.method, c.target, c.body)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.signer.Sign(r); err == nil {
				t.Errorf("signed as %s", r.URL)
			}
			if got := r.Header.Get(provider.SignatureHeader); got != "" {
				t.Errorf("the request has the signature %s", got)
			}
		})
	}
}

func TestSignedRequestCanBeSentAgainByTheTransport(t *testing.T) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://h", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if err := (provider.Signer{Secret: "s"}).Sign(r); err != nil {
		t.Fatal(err)
	}
	first, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.GetBody()
	if err != nil {
		t.Fatal(err)
	}
	second, err := io.ReadAll(again)
	if err != nil || string(first) != string(second) {
		t.Errorf("the bodies are %s and %s, %v", first, second, err)
	}
	if !strings.Contains(string(first), `"url":"https://h/"`) {
		t.Errorf("an empty path is signed as another than /: %s", first)
	}
	if r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("the content type is %q", r.Header.Get("Content-Type"))
	}
}

func TestNoncesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		u, err := (provider.Signer{Secret: "s"}).SignLink(&url.URL{Scheme: "https", Host: "h", Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		nonce := u.Query().Get("nonce")
		if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(nonce) || seen[nonce] {
			t.Fatalf("nonce %q is malformed or a repetition", nonce)
		}
		seen[nonce] = true
	}
}

func TestSignLinkLeavesItsArgument(t *testing.T) {
	u := &url.URL{Scheme: "https", Host: "h", Path: "/sso", RawQuery: "a=1"}
	link, err := (provider.Signer{Secret: "s"}).SignLink(u)
	if err != nil {
		t.Fatal(err)
	}
	if u.RawQuery != "a=1" || !strings.HasPrefix(link.RawQuery, "a=1&nonce=") {
		t.Errorf("the URL is %s and the link %s", u, link)
	}
	if _, err := (provider.Signer{Secret: "s"}).SignLink(link); err == nil {
		t.Error("a link is signed twice")
	}
}

// Package call makes the platform's requests to providers, as docs/extensions.md specifies them.
//
// Promises. Every request is signed. Answers are not trusted: their size, type and members are
// checked, redirects are not followed, and no text of an answer gets into an error. Private and
// loopback addresses and plain HTTP are refused unless the target allows them.
//
// Concurrency. A Caller is safe for concurrent use.
//
// The package decides nothing: the caller knows what a refusal means, and when to repeat a request.
package call

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
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hangar-platform/hangar/internal/publicdial"
	"github.com/hangar-platform/hangar/provider"
)

const (
	// Timeout bounds one request with its answer. The specification asks providers to answer within
	// 5 seconds.
	Timeout = 30 * time.Second

	maxAnswer     = 1 << 20 // bytes
	maxID         = 255     // bytes of a provider's id
	maxRetryAfter = 5 * time.Minute
)

// Target is the server of a provider.
type Target struct {
	Base    string // URL
	Secret  string // signs requests
	Private bool   // private addresses and plain HTTP are allowed
}

// Kind says what an error means for the request.
type Kind string

// The kinds of errors.
const (
	Temporary Kind = "temporary" // the same request may succeed later; it may have had its effect
	Unsent    Kind = "unsent"    // the same request may succeed later; it has not reached the provider
	Refused   Kind = "refused"   // the provider will not do it
	Missing   Kind = "missing"   // the provider does not have it
	Unusable  Kind = "unusable"  // the provider has done it, and its answer cannot be used
)

// Error is why a request has failed. Its text may be shown to tenants.
type Error struct {
	Kind       Kind
	Status     int // of HTTP; 0: there was no answer
	Text       string
	RetryAfter time.Duration
}

// Error is the text.
func (e *Error) Error() string { return e.Text }

// KindOf returns the kind of an error of this package, and Temporary for any other error.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Temporary
}

// Caller makes requests.
type Caller struct {
	client *http.Client
	now    func() time.Time
}

// New returns a Caller over a dialer that refuses addresses outside the public internet.
func New(dialer *publicdial.Dialer, now func() time.Time) *Caller {
	return &Caller{now: now, client: &http.Client{
		Transport:     dialer.Transport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes connections that are idle.
func (c *Caller) Close() { c.client.CloseIdleConnections() }

// Provision requests an extension. pending says that the provider has only accepted the request.
func (c *Caller) Provision(ctx context.Context, t Target, in provider.Provision) (made provider.Provisioned, pending bool, err error) {
	status, err := c.do(ctx, t, http.MethodPost, "/extensions", in, &made)
	if err == nil && (made.Validate() != nil || !ValidID(made.ID)) {
		err = unusable("lacks an id that can be used, or a config")
	}
	return made, status == http.StatusAccepted, err
}

// Resource reads an extension.
func (c *Caller) Resource(ctx context.Context, t Target, id string) (provider.Resource, error) {
	return c.resource(ctx, t, http.MethodGet, id, nil)
}

// Change requests a change of an extension.
func (c *Caller) Change(ctx context.Context, t Target, id string, in provider.Provision) (provider.Resource, error) {
	return c.resource(ctx, t, http.MethodPatch, id, in)
}

func (c *Caller) resource(ctx context.Context, t Target, method, id string, in any) (r provider.Resource, err error) {
	if _, err = c.do(ctx, t, method, pathOf(id), in, &r); err == nil && r.ID != id {
		return provider.Resource{}, unusable("is about another extension than the one that was asked for")
	}
	return r, err
}

// Delete deletes an extension. One that the provider does not have is not an error.
func (c *Caller) Delete(ctx context.Context, t Target, id string) error {
	_, err := c.do(ctx, t, http.MethodDelete, pathOf(id), nil, nil)
	if KindOf(err) == Missing {
		return nil
	}
	return err
}

// Link returns the signed link of single sign-on.
func (c *Caller) Link(t Target, id string) (string, error) {
	u, err := url.Parse(strings.TrimRight(t.Base, "/") + pathOf(id) + "/sso")
	if err != nil {
		return "", err
	}
	link, err := c.signer(t).SignLink(u)
	if err != nil {
		return "", err
	}
	return link.String(), nil
}

func pathOf(id string) string { return "/extensions/" + url.PathEscape(id) }

// ValidID reports whether a provider may use an id: 1 to 255 bytes of printable UTF-8 that can be a
// segment of a path.
func ValidID(id string) bool {
	return id != "" && len(id) <= maxID && id != "." && id != ".." && utf8.ValidString(id) &&
		!strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) })
}

func (c *Caller) signer(t Target) provider.Signer {
	return provider.Signer{Secret: t.Secret, Now: c.now}
}

// do makes one request and decodes its answer into out, unless that is nil.
func (c *Caller) do(ctx context.Context, t Target, method, path string, in, out any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if t.Private {
		ctx = publicdial.WithAdministrator(ctx)
	}
	var body io.Reader = http.NoBody
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return 0, fmt.Errorf("encode the request to a provider: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(t.Base, "/")+path, body)
	if err != nil {
		return 0, &Error{Kind: Refused, Text: "the base URL of the provider cannot be called"}
	}
	if r.URL.Scheme != "https" && !t.Private {
		return 0, &Error{Kind: Unsent, Text: "the base URL of the provider is not https"}
	}
	if in == nil {
		r.Body = nil
	}
	if err := c.signer(t).Sign(r); err != nil {
		return 0, fmt.Errorf("sign the request to a provider: %w", err)
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "hangar")
	answer, err := c.client.Do(r)
	if err != nil {
		kind := Temporary
		if _, refused := errors.AsType[*publicdial.Error](err); refused {
			kind = Unsent
		}
		return 0, &Error{Kind: kind, Text: "the provider " + publicdial.Describe(err)}
	}
	defer answer.Body.Close()
	if err := statusError(answer); err != nil {
		return answer.StatusCode, err
	}
	if out == nil {
		return answer.StatusCode, nil
	}
	return answer.StatusCode, decode(answer, out)
}

// statusError returns the error of an answer, or nil if its status is a success.
func statusError(answer *http.Response) error {
	status := answer.StatusCode
	e := &Error{Status: status, Text: "the provider answers with status " + strconv.Itoa(status)}
	switch {
	case status/100 == 2:
		return nil
	case status == http.StatusNotFound, status == http.StatusGone:
		e.Kind = Missing
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		// Its clock may be wrong, or it does not have the secret yet.
		e.Kind, e.Text = Temporary, e.Text+": it does not accept the signature or the time of the request"
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		e.Kind = Temporary
	case status/100 == 3:
		e.Kind, e.Text = Temporary, e.Text+": a redirect, which is not followed"
	case status/100 == 4:
		e.Kind = Refused
	default:
		e.Kind = Temporary
	}
	if seconds, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 31); err == nil {
		e.RetryAfter = min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	return e
}

func unusable(fault string) *Error {
	return &Error{Kind: Unusable, Text: "the provider's answer " + fault}
}

// decode reads the JSON of an answer.
func decode(answer *http.Response, out any) error {
	media, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") {
		return unusable("is not JSON")
	}
	raw, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return &Error{Kind: Temporary, Status: answer.StatusCode, Text: "the provider " + publicdial.Describe(err)}
	case len(raw) > maxAnswer:
		return unusable(fmt.Sprintf("has more than %d bytes", maxAnswer))
	case !utf8.Valid(raw) || json.Unmarshal(raw, out) != nil:
		return unusable("is not the JSON that was expected")
	default:
		return nil
	}
}

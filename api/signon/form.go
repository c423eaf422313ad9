package signon

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/hangar-platform/hangar"
)

// The bounds of a query, in bytes: of a request, and so of the request that pages carry; and of what a foreign
// provider sends back, whose code may have any length (RFC 6749, section 4.1.2).
const (
	maxQuery        = 8 << 10
	maxForeignQuery = 32 << 10
)

// form has parameters that occur at most once each (RFC 6749, section 3.1).
type form map[string]string

// The errors of a form. They name no value.
var (
	errFormTooLarge = errors.New("the parameters are too long")
	errFormBroken   = errors.New("the parameters are not application/x-www-form-urlencoded in UTF-8")
	errFormTwice    = errors.New("a parameter occurs twice")
	errFormMedia    = errors.New("the body must be application/x-www-form-urlencoded")
)

// parseForm reads parameters. With errFormTwice it returns those that occur once, so that the error can be
// sent to the client.
func parseForm(raw string, most int) (form, error) {
	return parseFormOf(raw, most, hangar.MaxOAuthParameter)
}

// parseFormOf is parseForm with another bound for each parameter.
func parseFormOf(raw string, most, parameter int) (form, error) {
	if len(raw) > most {
		return nil, errFormTooLarge
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, errFormBroken
	}
	f, twice := form{}, false
	for name, list := range values {
		if len(list) > 1 {
			twice = true
			continue
		}
		if len(list[0]) > parameter && name != fieldRequest {
			return nil, errFormTooLarge
		}
		if !utf8.ValidString(list[0]) || strings.ContainsRune(list[0], 0) {
			return nil, errFormBroken
		}
		f[name] = list[0]
	}
	if twice {
		return f, errFormTwice
	}
	return f, nil
}

// readForm reads the body of a request.
func readForm(r *http.Request) (form, error) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/x-www-form-urlencoded" {
		return nil, errFormMedia
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, errFormTooLarge
	}
	return parseForm(string(raw), maxForm)
}

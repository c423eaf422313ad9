// Package input reads requests: their bodies, which are JSON, and their queries.
//
// Promises. Everything that is read is within the bounds that the caller gives. Other input answers
// CodeInvalid and names the parameter, or the property of the body. A body may have unknown properties
// only if the operation is Lenient, because an ignored property could have been meant to allow less. No
// text of a client is echoed beyond MaxText.
//
// Concurrency. A Query belongs to one request, and is for one goroutine.
//
// It knows no routes: the caller says what a parameter means.
package input

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hangar-platform/hangar"
)

// MaxText bounds names in queries and bodies, in bytes.
const MaxText = 255

// BodyTimeout is how long a body may take to arrive.
const BodyTimeout = 30 * time.Second

// ReasonBodyTooLarge is the reason of the answer to a body that is larger than is allowed.
const ReasonBodyTooLarge = "body_too_large"

// Decode reads the body of a request, which must be one JSON value. Unless the operation of the route
// is Lenient, the body may only have properties of T.
func Decode[T any](r *http.Request) (T, error) {
	var v T
	raw, err := readBody(r)
	if err != nil {
		return v, err
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return v, hangar.Errorf(hangar.CodeInvalid, "", "the body is empty; it must be a JSON object")
	}
	return v, unmarshalBody(r, raw, &v)
}

// DecodeOptional is Decode for a body that may be missing.
func DecodeOptional[T any](r *http.Request) (T, error) {
	var v T
	raw, err := readBody(r)
	if err != nil || len(bytes.TrimSpace(raw)) == 0 {
		return v, err
	}
	return v, unmarshalBody(r, raw, &v)
}

// unmarshalBody is unmarshal, but as strict as the operation of the route.
func unmarshalBody[T any](r *http.Request, raw []byte, v *T) error {
	if err := unmarshal(raw, v); err != nil || r.Context().Value(lenientKey{}) != nil {
		return err
	}
	return UnknownProperty(raw, reflect.TypeFor[T]())
}

func readBody(r *http.Request) ([]byte, error) {
	raw, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil && !utf8.Valid(raw):
		// The decoder would replace broken characters by others.
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "the body is not valid UTF-8")
	case err == nil:
		return raw, nil
	case errors.As(err, &tooLarge):
		return nil, hangar.Errorf(hangar.CodeInvalid, ReasonBodyTooLarge, "the body is larger than the %d bytes that are allowed", tooLarge.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, hangar.Errorf(hangar.CodeTimeout, "", "the body did not arrive within %s", BodyTimeout)
	default:
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "the body could not be read: %w", err)
	}
}

// unmarshal returns the error of the decoder with the property that it is about, or the error of a type
// that decodes itself.
func unmarshal(raw []byte, v any) error {
	err := json.Unmarshal(raw, v)
	var known *hangar.Error
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.As(err, &wrong) && wrong.Field != "":
		return Invalid(withoutEmbedded(wrong.Field, reflect.TypeOf(v).Elem()), "%w", err)
	default:
		return hangar.Errorf(hangar.CodeInvalid, "", "%w", err)
	}
}

// withoutEmbedded is the path of a property, without the names of embedded structs with which the
// decoder begins it.
func withoutEmbedded(path string, t reflect.Type) string {
	for t.Kind() == reflect.Struct {
		name, rest, more := strings.Cut(path, ".")
		f, found := t.FieldByName(name)
		if !more || !found || !f.Anonymous {
			break
		}
		path, t = rest, f.Type
	}
	return path
}

// Invalid names the parameter, or the property of a body, that breaks a rule: CodeInvalid. The
// rule is a format with args.
func Invalid(name, rule string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, "", "invalid "+name+": "+rule, args...)
}

// Unsupported names an input that is understood but not offered: CodeInvalid, ReasonUnsupported.
func Unsupported(name, text string) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonUnsupported, "invalid %s: %s", name, text)
}

// Clip bounds a text that the client chose to MaxText.
func Clip(s string) string { return ClipTo(s, MaxText) }

// ClipTo bounds a text to limit bytes.
func ClipTo(s string, limit int) string {
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

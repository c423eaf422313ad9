package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hangar-platform/hangar"
)

const (
	maxAppName  = 63
	maxNameText = 255 // of other names in queries and bodies
)

// steady serves bodies of any size, as long as they keep coming.
func steady(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &steadyBody{ReadCloser: r.Body, control: http.NewResponseController(w)}
		next.ServeHTTP(w, r)
	})
}

// steadyBody gives every read as long as a whole body has elsewhere. net/http lifts
// the deadline when the body has been read to its end.
type steadyBody struct {
	io.ReadCloser
	control *http.ResponseController
	ended   bool
}

// Read implements io.Reader.
func (b *steadyBody) Read(p []byte) (int, error) {
	if !b.ended {
		_ = b.control.SetReadDeadline(time.Now().Add(bodyTimeout))
	}
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err != nil
	return n, err
}

// decode reads the body of a request, which must be one JSON value. Unless the operation of
// the route is Lenient, it has only properties that T has.
func decode[T any](r *http.Request) (T, error) {
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

// decodeOptional is decode for a body that may be missing.
func decodeOptional[T any](r *http.Request) (T, error) {
	var v T
	raw, err := readBody(r)
	if err != nil || len(bytes.TrimSpace(raw)) == 0 {
		return v, err
	}
	return v, unmarshalBody(r, raw, &v)
}

// unmarshalBody is unmarshal, as strict as the operation of the route is.
func unmarshalBody[T any](r *http.Request, raw []byte, v *T) error {
	if err := unmarshal(raw, v); err != nil || r.Context().Value(lenientKey{}) != nil {
		return err
	}
	return unknownProperty(raw, reflect.TypeFor[T]())
}

func readBody(r *http.Request) ([]byte, error) {
	raw, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil && !utf8.Valid(raw):
		// The decoder would put other characters in the place of broken ones.
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "the body is not valid UTF-8")
	case err == nil:
		return raw, nil
	case errors.As(err, &tooLarge):
		return nil, hangar.Errorf(hangar.CodeInvalid, reasonBodyTooLarge, "the body is larger than the %d bytes that are allowed", tooLarge.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, hangar.Errorf(hangar.CodeTimeout, "", "the body did not arrive within %s", bodyTimeout)
	default:
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "the body could not be read: %w", err)
	}
}

// unmarshal answers with the decoder's own text, and the property that it is about,
// or with what a value of the domain says of itself.
func unmarshal(raw []byte, v any) error {
	err := json.Unmarshal(raw, v)
	var known *hangar.Error
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.As(err, &wrong) && wrong.Field != "":
		return invalid(wrong.Field, "%w", err)
	default:
		return hangar.Errorf(hangar.CodeInvalid, "", "%w", err)
	}
}

// invalid names the parameter, or the property of a body, that breaks a rule.
func invalid(name, rule string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, "", "invalid "+name+": "+rule, args...)
}

func unsupported(name, text string) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonUnsupported, "invalid %s: %s", name, text)
}

// appName reads the App of a path. A name that no App can have is not found.
func appName(r *http.Request) (hangar.AppName, error) {
	name := r.PathValue("app")
	if name == "" || len(name) > maxAppName || strings.ContainsFunc(name, func(c rune) bool {
		return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z')
	}) {
		return "", hangar.AppNotFound()
	}
	return hangar.AppName(name), nil
}

// machineRef reads the Machine of a path. An id that no Machine can have is not found.
func machineRef(r *http.Request) (hangar.MachineRef, error) {
	app, err := appName(r)
	if err != nil {
		return hangar.MachineRef{}, err
	}
	id := hangar.MachineID(r.PathValue("machine"))
	if !id.Valid() {
		return hangar.MachineRef{}, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %q is not the id of a machine", clip(string(id)))
	}
	return hangar.MachineRef{App: app, ID: id}, nil
}

// clip bounds a text that the client chose.
func clip(s string) string { return clipTo(s, maxNameText) }

func clipTo(s string, limit int) string {
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

// query reads parameters and keeps the first error, which names its parameter.
type query struct {
	values url.Values
	err    error
}

// queryOf parses the query strictly: a malformed one is not half read.
func queryOf(r *http.Request) *query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		err = invalid("query", "%s", err)
	}
	return &query{values: values, err: err}
}

func (q *query) fail(name, rule string, args ...any) {
	if q.err == nil {
		q.err = invalid("parameter "+name, rule, args...)
	}
}

func (q *query) text(name string) string {
	v := q.values.Get(name)
	if len(v) > maxNameText {
		q.fail(name, "has %d bytes, more than the %d that are allowed", len(v), maxNameText)
		return ""
	}
	return v
}

func (q *query) bool(name string) bool { return q.boolOr(name, false) }

func (q *query) boolOr(name string, missing bool) bool {
	v := q.text(name)
	if v == "" {
		return missing
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		q.fail(name, "%q is not true or false", v)
	}
	return b
}

// int reads a number from low to high; missing is 0.
func (q *query) int(name string, low, high int) int {
	v := q.text(name)
	if v == "" {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > high {
		q.fail(name, "%q is not a number from %d to %d", v, low, high)
		return 0
	}
	return n
}

// duration reads seconds or a duration such as "10s", from 0 to limit.
func (q *query) duration(name string, limit time.Duration) time.Duration {
	v := q.text(name)
	if v == "" {
		return 0
	}
	d, err := parseDuration(v)
	if err != nil || d < 0 || d > limit {
		q.fail(name, "%q is not a number of seconds, or a duration such as \"10s\", of at most %s", v, limit)
		return 0
	}
	return d
}

func parseDuration(text string) (time.Duration, error) {
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	return time.ParseDuration(text)
}

// words reads a parameter that may be repeated or hold a list with commas.
func (q *query) words(name string) []string {
	var words []string
	for _, v := range q.values[name] {
		for w := range strings.SplitSeq(v, ",") {
			if w = strings.TrimSpace(w); w != "" {
				words = append(words, w)
			}
		}
	}
	return words
}

// states reads Machine states; also allows one more than those that exist.
func (q *query) states(name string, also hangar.MachineState) []hangar.MachineState {
	var states []hangar.MachineState
	for _, w := range q.words(name) {
		s := hangar.MachineState(w)
		if !s.Valid() && (also == "" || s != also) {
			q.fail(name, "%q is not a state of a machine", clip(w))
			return nil
		}
		states = append(states, s)
	}
	return states
}

func (q *query) regions(name string) []hangar.Region {
	var regions []hangar.Region
	for _, w := range q.words(name) {
		if len(w) > maxNameText {
			q.fail(name, "has a word of %d bytes, more than the %d that are allowed", len(w), maxNameText)
			return nil
		}
		regions = append(regions, hangar.Region(w))
	}
	return regions
}

// time reads a time of RFC 3339; missing is the zero time.
func (q *query) time(name string) time.Time {
	v := q.text(name)
	if v == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, v)
	if err != nil {
		q.fail(name, "%q is not a time such as \"2006-01-02T15:04:05Z\"", v)
	}
	return t
}

func (q *query) signal(name string) hangar.Signal {
	v := q.text(name)
	if v == "" {
		return 0
	}
	sig, err := hangar.ParseSignal(v)
	if err != nil {
		q.fail(name, "%q is not the name of a signal or a number from 1 to 64", v)
	}
	return sig
}

// stopTimeout is how long a stop may take, as clients send it: "10s", "10",
// seconds as a number, or nanoseconds as a large one.
type stopTimeout time.Duration

// MarshalJSON writes a text such as "10s".
func (t stopTimeout) MarshalJSON() ([]byte, error) { return hangar.Duration(t).MarshalJSON() }

// UnmarshalJSON reads any of the forms.
func (t *stopTimeout) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
	}
	if text == "" || text == "null" {
		return nil
	}
	d, err := parseDuration(text)
	if n, numErr := strconv.ParseInt(text, 10, 64); numErr == nil && n >= 1e6 {
		d, err = time.Duration(n), nil
	}
	if err != nil || d < 0 || d > hangar.MaxStopTimeout {
		return invalid("timeout", "%s is not a duration from 0s to %s", clip(string(b)), hangar.MaxStopTimeout)
	}
	*t = stopTimeout(d)
	return nil
}

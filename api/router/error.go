package router

import (
	"context"
	"errors"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
)

// Reasons that only the API gives.
const (
	reasonMethodNotAllowed = "method_not_allowed"
	reasonUnknownPath      = "unknown_path"
)

// statuses is the status code of every class of errors.
var statuses = map[hangar.Code]int{
	hangar.CodeInvalid:            http.StatusBadRequest,
	hangar.CodeUnauthenticated:    http.StatusUnauthorized,
	hangar.CodeForbidden:          http.StatusForbidden,
	hangar.CodeNotFound:           http.StatusNotFound,
	hangar.CodeConflict:           http.StatusConflict,
	hangar.CodeFailedPrecondition: http.StatusPreconditionFailed,
	hangar.CodeExhausted:          http.StatusTooManyRequests,
	hangar.CodeTimeout:            http.StatusRequestTimeout,
	hangar.CodeUnavailable:        http.StatusServiceUnavailable,
	hangar.CodeUnimplemented:      http.StatusNotImplemented,
	hangar.CodeInternal:           http.StatusInternalServerError,
}

type codeReason struct {
	code   hangar.Code
	reason string
}

// exceptions are the errors whose status differs from their class.
var exceptions = map[codeReason]int{
	{hangar.CodeInvalid, hangar.ReasonNameTaken}:   http.StatusUnprocessableEntity,
	{hangar.CodeInvalid, hangar.ReasonBadName}:     http.StatusUnprocessableEntity,
	{hangar.CodeInvalid, input.ReasonBodyTooLarge}: http.StatusRequestEntityTooLarge,
	// Clients repeat a wait that failed with anything but 400 or 404.
	{hangar.CodeFailedPrecondition, hangar.ReasonOutOfReach}: http.StatusBadRequest,
	{hangar.CodeInvalid, reasonMethodNotAllowed}:             http.StatusMethodNotAllowed,
	// As the public platform answers. Clients would repeat a request after a 429, to no avail.
	{hangar.CodeExhausted, hangar.ReasonQuota}: http.StatusForbidden,
}

// prefixes are the words with which clients expect the texts of a class to begin.
var prefixes = map[hangar.Code]string{
	hangar.CodeConflict:           "aborted: ",
	hangar.CodeFailedPrecondition: "failed_precondition: ",
	hangar.CodeTimeout:            "deadline_exceeded: ",
}

// ownPrefixes begin the texts to which a service has already given a prefix.
var ownPrefixes = []string{
	"aborted: ", "already_exists: ", "failed_precondition: ", "deadline_exceeded: ", "resource_exhausted: ", "invalid_argument: ",
}

// phrases are what clients look for in the texts of a reason.
var phrases = map[codeReason]string{
	{hangar.CodeNotFound, hangar.ReasonMachineNotFound}:      "machine not found",
	{hangar.CodeNotFound, hangar.ReasonVolumeNotFound}:       "volume not found",
	{hangar.CodeInvalid, hangar.ReasonVolumeNotFound}:        "volume not found",
	{hangar.CodeConflict, hangar.ReasonInsufficientCapacity}: "could not reserve resource for machine",
	{hangar.CodeConflict, hangar.ReasonVolumeCapacity}:       "no capacity",
}

// maxErrorText bounds the text of an error, in bytes: it may quote what was sent.
const maxErrorText = 4 << 10

const internalText = "internal error; the log of the server has the cause under the id of this request"

// Error is how an error looks on the wire.
type Error struct {
	Text   string      `json:"error"`
	Reason string      `json:"status,omitempty"`
	Code   hangar.Code `json:"code"`
}

// Status is the HTTP status of the error.
func (e Error) Status() int {
	if s, ok := exceptions[codeReason{e.Code, e.Reason}]; ok {
		return s
	}
	if s, ok := statuses[e.Code]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Advise sets the headers that say what to do about the error.
func (e Error) Advise(h http.Header) {
	switch {
	case e.Reason == hangar.ReasonQuota: // waiting does not help
	case e.Code == hangar.CodeUnavailable, e.Code == hangar.CodeExhausted:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", "1")
		}
	case e.Code == hangar.CodeUnauthenticated:
		h.Set("WWW-Authenticate", "Bearer")
	}
}

// Describe returns the wire form of an error.
func Describe(err error) Error {
	code, reason := hangar.CodeOf(err), hangar.ReasonOf(err)
	var e *hangar.Error
	switch {
	case errors.As(err, &e):
	case code == hangar.CodeTimeout:
		e = &hangar.Error{Message: "the time for this request has passed"}
	case errors.Is(err, context.Canceled):
		// The caller is still there, so it is the server that ends.
		code, e = hangar.CodeUnavailable, &hangar.Error{Message: "the server is shutting down"}
	default:
		e = &hangar.Error{}
	}
	text := e.Message
	if text == "" {
		text = defaultText(code)
	}
	if phrase := phrases[codeReason{code, reason}]; phrase != "" && !strings.Contains(text, phrase) {
		text = phrase + ": " + text
	}
	if !hasOwnPrefix(text) {
		text = prefixes[code] + text
	}
	return Error{Text: input.ClipTo(text, maxErrorText), Reason: reason, Code: code}
}

func defaultText(code hangar.Code) string {
	if code == hangar.CodeInternal {
		return internalText
	}
	return strings.ReplaceAll(string(code), "_", " ")
}

func hasOwnPrefix(text string) bool {
	return slices.ContainsFunc(ownPrefixes, func(p string) bool { return strings.HasPrefix(text, p) })
}

// WriteError answers with an error, even when the context of the request has ended. That may be because
// the server ends, and without an answer the client would receive the status 200.
func (rt *Router) WriteError(w http.ResponseWriter, r *http.Request, err error) {
	body := Describe(EndedBy(r.Context(), err))
	if body.Code == hangar.CodeInternal && r.Context().Err() == nil {
		rt.Log.ErrorContext(r.Context(), "request failed", KeyRequest, RequestID(r), KeyMethod, r.Method, KeyPath, r.URL.Path, KeyError, err)
	} else {
		rt.Log.DebugContext(r.Context(), "request refused", KeyRequest, RequestID(r), KeyMethod, r.Method, KeyPath, r.URL.Path, KeyError, err)
	}
	body.Advise(w.Header())
	rt.writeBody(w, body.Status(), body)
}

// unknownPath answers for paths, and methods of paths, that are not served.
func (rt *Router) unknownPath(r *http.Request) (Answer, error) {
	var allowed []string
	for _, method := range methods {
		probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := rt.mux.Handler(probe); pattern != "/" && pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		return Answer{Header: http.Header{"Allow": {strings.Join(allowed, ", ")}}},
			hangar.Errorf(hangar.CodeInvalid, reasonMethodNotAllowed, "method %s is not allowed here; allowed: %s", input.Clip(r.Method), strings.Join(allowed, ", "))
	}
	if rt.Absent != nil {
		if why := rt.Absent(r.URL.Path); why != "" {
			return Answer{}, hangar.Errorf(hangar.CodeNotFound, reasonUnknownPath, "there is nothing at this path: %s", why)
		}
	}
	return Answer{}, errUnknownPath
}

// methods are the methods that the routes use.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

var errUnknownPath = hangar.Errorf(hangar.CodeNotFound, reasonUnknownPath, "there is nothing at this path")

// exact keeps paths such as //v1/apps or /v1/../x from http.ServeMux, which would
// redirect them with a page of HTML. The registry has paths of its own.
func (rt *Router) exact(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := r.URL.EscapedPath()
		clean := path.Clean(at)
		isClean := strings.HasPrefix(at, "/") && (at == clean || at == clean+"/" && clean != "/")
		if !isClean && !strings.HasPrefix(at, "/v2/") {
			rt.plain(func(*http.Request) (Answer, error) { return Answer{}, errUnknownPath }).ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

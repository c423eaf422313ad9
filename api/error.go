package api

import (
	"context"
	"errors"
	"net/http"
	"path"
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

// exceptions are the errors whose status is not that of their class.
var exceptions = map[codeReason]int{
	{hangar.CodeInvalid, hangar.ReasonNameTaken}:   http.StatusUnprocessableEntity,
	{hangar.CodeInvalid, hangar.ReasonBadName}:     http.StatusUnprocessableEntity,
	{hangar.CodeInvalid, input.ReasonBodyTooLarge}: http.StatusRequestEntityTooLarge,
	// Clients repeat a wait that failed with anything but 400 or 404.
	{hangar.CodeFailedPrecondition, hangar.ReasonOutOfReach}: http.StatusBadRequest,
	{hangar.CodeInvalid, reasonMethodNotAllowed}:             http.StatusMethodNotAllowed,
	// As the public platform answers. Clients repeat what 429 refuses, which is of no use here.
	{hangar.CodeExhausted, hangar.ReasonQuota}: http.StatusForbidden,
}

// prefixes are the words with which clients expect the texts of a class to begin.
var prefixes = map[hangar.Code]string{
	hangar.CodeConflict:           "aborted: ",
	hangar.CodeFailedPrecondition: "failed_precondition: ",
	hangar.CodeTimeout:            "deadline_exceeded: ",
}

// ownPrefixes mark a text that a service has already given such a beginning.
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

// errorBody is how an error looks on the wire.
type errorBody struct {
	Text   string      `json:"error"`
	Reason string      `json:"status,omitempty"`
	Code   hangar.Code `json:"code"`
}

// statusOf is the one way from an error to a status code.
func statusOf(code hangar.Code, reason string) int {
	if s, ok := exceptions[codeReason{code, reason}]; ok {
		return s
	}
	if s, ok := statuses[code]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// describe turns an error into what is sent of it.
func describe(err error) errorBody {
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
	return errorBody{Text: input.ClipTo(text, maxErrorText), Reason: reason, Code: code}
}

func defaultText(code hangar.Code) string {
	if code == hangar.CodeInternal {
		return internalText
	}
	return strings.ReplaceAll(string(code), "_", " ")
}

func hasOwnPrefix(text string) bool {
	for _, p := range ownPrefixes {
		if strings.HasPrefix(text, p) {
			return true
		}
	}
	return false
}

// writeError answers with an error, also when the context of the request has ended:
// that may be the end of the server, and an answer that is left out is an answer with
// status 200.
func (s *server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	body := describe(endedBy(r.Context(), err))
	if body.Code == hangar.CodeInternal && r.Context().Err() == nil {
		s.Log.ErrorContext(r.Context(), "request failed", keyRequest, requestID(r), keyMethod, r.Method, keyPath, r.URL.Path, keyError, err)
	} else {
		s.Log.DebugContext(r.Context(), "request refused", keyRequest, requestID(r), keyMethod, r.Method, keyPath, r.URL.Path, keyError, err)
	}
	if body.Reason != hangar.ReasonQuota { // which no waiting changes
		advise(w.Header(), body.Code)
	}
	s.writeBody(w, statusOf(body.Code, body.Reason), body)
}

// advise says in the header of an error what to do about it.
func advise(h http.Header, code hangar.Code) {
	switch code {
	case hangar.CodeUnavailable, hangar.CodeExhausted:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", "1")
		}
	case hangar.CodeUnauthenticated:
		h.Set("WWW-Authenticate", "Bearer")
	default:
	}
}

// unknownPath answers for paths, and methods of paths, that are not served.
func (s *server) unknownPath(r *http.Request) (answer, error) {
	var allowed []string
	for _, method := range methods {
		probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := s.mux.Handler(probe); pattern != "/" && pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		return answer{header: http.Header{"Allow": {strings.Join(allowed, ", ")}}},
			hangar.Errorf(hangar.CodeInvalid, reasonMethodNotAllowed, "method %s is not allowed here; allowed: %s", input.Clip(r.Method), strings.Join(allowed, ", "))
	}
	return answer{}, errUnknownPath
}

// methods are those that some path may have.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

var errUnknownPath = hangar.Errorf(hangar.CodeNotFound, reasonUnknownPath, "there is nothing at this path")

// exact keeps paths such as //v1/apps or /v1/../x from http.ServeMux, which would
// redirect them with a page of HTML. The registry has paths of its own.
func (s *server) exact(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := r.URL.EscapedPath()
		clean := path.Clean(at)
		isClean := strings.HasPrefix(at, "/") && (at == clean || at == clean+"/" && clean != "/")
		if !isClean && !strings.HasPrefix(at, "/v2/") {
			s.plain(func(*http.Request) (answer, error) { return answer{}, errUnknownPath }).ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

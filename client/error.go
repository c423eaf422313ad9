package client

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/hangar-platform/hangar"
)

// maxErrorBytes bounds how much of an error answer is read.
const maxErrorBytes = 64 << 10

// errorBody is how the API writes an error, in an answer and at the end of a stream.
type errorBody struct {
	Text   string      `json:"error"`
	Reason string      `json:"status"`
	Code   hangar.Code `json:"code"`
	// Type is set in errors of the HTTP API of Prometheus, which have no Code.
	Type string `json:"errorType"`
}

// textPrefixes are the words that the API puts before a text for clients that match them. They only
// repeat the code.
var textPrefixes = map[hangar.Code]string{
	hangar.CodeConflict:           "aborted: ",
	hangar.CodeFailedPrecondition: "failed_precondition: ",
	hangar.CodeTimeout:            "deadline_exceeded: ",
}

// errorFrom rebuilds the error that the server answered with.
func errorFrom(res *http.Response) error {
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	var body errorBody
	switch {
	case err != nil || json.Unmarshal(raw, &body) != nil || body.Code == "" && body.Type == "":
		return foreignError(res, raw)
	case body.Code == "":
		return &hangar.Error{Code: codeOf(res.StatusCode), Message: body.Text}
	}
	return body.rebuild()
}

func (b errorBody) rebuild() error {
	return &hangar.Error{Code: b.Code, Reason: b.Reason, Message: strings.TrimPrefix(b.Text, textPrefixes[b.Code])}
}

// foreignError describes an answer that is not from a hangar server, such as one from a proxy in front
// of it.
func foreignError(res *http.Response, raw []byte) error {
	text := strings.TrimSpace(string(raw))
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return hangar.Errorf(codeOf(res.StatusCode), "", "the server answered %s: %s", res.Status, text)
}

// codeOf is the code of an error that has nothing but a status.
func codeOf(status int) hangar.Code {
	switch {
	case status == http.StatusUnauthorized:
		return hangar.CodeUnauthenticated
	case status == http.StatusForbidden:
		return hangar.CodeForbidden
	case status == http.StatusNotFound:
		return hangar.CodeNotFound
	case status == http.StatusTooManyRequests:
		return hangar.CodeExhausted
	case status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		return hangar.CodeUnavailable
	case status < http.StatusInternalServerError:
		return hangar.CodeInvalid
	}
	return hangar.CodeInternal
}

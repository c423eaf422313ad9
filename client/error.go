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
}

// textPrefixes are the words that the API puts before a text for clients that
// match them. Here they would only repeat the code.
var textPrefixes = map[hangar.Code]string{
	hangar.CodeConflict:           "aborted: ",
	hangar.CodeFailedPrecondition: "failed_precondition: ",
	hangar.CodeTimeout:            "deadline_exceeded: ",
}

// errorFrom rebuilds the error that the server answered with.
func errorFrom(res *http.Response) error {
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	var body errorBody
	if err != nil || json.Unmarshal(raw, &body) != nil || body.Code == "" {
		return foreignError(res, raw)
	}
	return body.rebuild()
}

func (b errorBody) rebuild() error {
	return &hangar.Error{Code: b.Code, Reason: b.Reason, Message: strings.TrimPrefix(b.Text, textPrefixes[b.Code])}
}

// foreignError describes an answer that is not from a hangar server, such as that
// of a proxy before it.
func foreignError(res *http.Response, raw []byte) error {
	code := hangar.CodeInternal
	switch s := res.StatusCode; {
	case s == http.StatusUnauthorized:
		code = hangar.CodeUnauthenticated
	case s == http.StatusForbidden:
		code = hangar.CodeForbidden
	case s == http.StatusNotFound:
		code = hangar.CodeNotFound
	case s == http.StatusTooManyRequests:
		code = hangar.CodeExhausted
	case s == http.StatusBadGateway, s == http.StatusServiceUnavailable, s == http.StatusGatewayTimeout:
		code = hangar.CodeUnavailable
	case s < http.StatusInternalServerError:
		code = hangar.CodeInvalid
	}
	text := strings.TrimSpace(string(raw))
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return hangar.Errorf(code, "", "the server answered %s: %s", res.Status, text)
}

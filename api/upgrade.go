package api

import (
	"bytes"
	"errors"
	"net/http"
	"strings"

	"github.com/coder/websocket"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
)

// errHungUp says that a connection was lost during its upgrade. It is not reported to
// the client, which is gone.
var errHungUp = errors.New("the connection was lost at the upgrade")

// mayUpgrade refuses a request that does not ask for a WebSocket.
func mayUpgrade(r *http.Request) error {
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return nil
	}
	hint := ""
	if strings.HasSuffix(r.URL.Path, "/exec") {
		hint = ", or POST the command"
	}
	return input.Invalid("header Upgrade", "this path is for WebSocket: send Upgrade: websocket"+hint)
}

// upgrade turns the connection of a request into a WebSocket.
func upgrade(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	if err := mayUpgrade(r); err != nil {
		return nil, err
	}
	held := &refusal{ResponseWriter: w}
	// The origin is not checked, because the token in a header keeps other sites out.
	ws, err := websocket.Accept(held, r, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	switch {
	case err == nil:
		return ws, nil
	case held.upgraded:
		return nil, errHungUp
	case held.status == http.StatusNotImplemented:
		return nil, &hangar.Error{Code: hangar.CodeUnimplemented, Message: "this connection cannot be upgraded", Err: err}
	default:
		w.Header().Del("Connection")
		return nil, input.Invalid("upgrade", "%s", strings.TrimSpace(held.text.String()))
	}
}

// refusal holds back the plain text that the library would answer with.
type refusal struct {
	http.ResponseWriter
	upgraded bool
	status   int
	text     bytes.Buffer
}

// WriteHeader implements http.ResponseWriter.
func (w *refusal) WriteHeader(status int) {
	if status == http.StatusSwitchingProtocols {
		w.upgraded = true
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.status = status
}

// Write implements http.ResponseWriter.
func (w *refusal) Write(p []byte) (int, error) { return w.text.Write(p) }

// Unwrap lets the connection be hijacked.
func (w *refusal) Unwrap() http.ResponseWriter { return w.ResponseWriter }

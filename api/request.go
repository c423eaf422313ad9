package api

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
)

const maxAppName = 63

// steady serves bodies of any size, as long as they keep coming.
func steady(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &steadyBody{ReadCloser: r.Body, control: http.NewResponseController(w)}
		next.ServeHTTP(w, r)
	})
}

// steadyBody gives each read the time that other requests have for a whole body. net/http removes the
// deadline when the body has been read to its end.
type steadyBody struct {
	io.ReadCloser
	control *http.ResponseController
	ended   bool
}

// Read implements io.Reader.
func (b *steadyBody) Read(p []byte) (int, error) {
	if !b.ended {
		_ = b.control.SetReadDeadline(time.Now().Add(input.BodyTimeout))
	}
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err != nil
	return n, err
}

// appName reads the App of a path. It answers AppNotFound for a name that no App can have.
func appName(r *http.Request) (hangar.AppName, error) {
	name := r.PathValue("app")
	if name == "" || len(name) > maxAppName || strings.ContainsFunc(name, func(c rune) bool {
		return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z')
	}) {
		return "", hangar.AppNotFound()
	}
	return hangar.AppName(name), nil
}

// machineRef reads the Machine of a path. It answers CodeNotFound for an id that no Machine can have.
func machineRef(r *http.Request) (hangar.MachineRef, error) {
	app, err := appName(r)
	if err != nil {
		return hangar.MachineRef{}, err
	}
	id := hangar.MachineID(r.PathValue("machine"))
	if !id.Valid() {
		return hangar.MachineRef{}, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %q is not the id of a machine", input.Clip(string(id)))
	}
	return hangar.MachineRef{App: app, ID: id}, nil
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
	d, err := input.ParseDuration(text)
	if n, numErr := strconv.ParseInt(text, 10, 64); numErr == nil && n >= 1e6 {
		d, err = time.Duration(n), nil
	}
	if err != nil || d < 0 || d > hangar.MaxStopTimeout {
		return input.Invalid("timeout", "%s is not a duration from 0s to %s", input.Clip(string(b)), hangar.MaxStopTimeout)
	}
	*t = stopTimeout(d)
	return nil
}

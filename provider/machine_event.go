package provider

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
	"strings"
	"time"
	"unicode/utf8"
)

// MachineEventType begins the type of every MachineEvent; the name of the event follows.
const MachineEventType = "io.platform.machine."

// OriginalMachineEventType begins the types instead for a receiver that wants the names of the public
// platform.
const OriginalMachineEventType = "io.fly.machine."

// specVersion is the version of CloudEvents that this package writes and reads.
const specVersion = "1.0"

// The headers of an event in binary mode.
const (
	headerSpecVersion = "Ce-Specversion"
	headerID          = "Ce-Id"
	headerSource      = "Ce-Source"
	headerType        = "Ce-Type"
	headerTime        = "Ce-Time"
)

// MachineEvent tells a provider that runs on the platform what happened to one of its
// Machines. It is a CloudEvent in the binary content mode of HTTP: CloudEvents 1.0.2, HTTP Protocol
// Binding, section 3.1. The signature of the request covers its body, not its headers.
type MachineEvent struct {
	ID     string    `json:"-"` // unique with Source
	Source string    `json:"-"` // a URI reference
	Type   string    `json:"-"` // MachineEventType and the name of the event
	Time   time.Time `json:"-"`

	MachineID string          `json:"machine_id"`
	Status    string          `json:"status"`         // such as "failed"
	Data      json.RawMessage `json:"data,omitempty"` // an object; its members depend on the type
}

// Name returns the part of the type that names the event, such as "start".
func (e *MachineEvent) Name() string {
	if name, ok := strings.CutPrefix(e.Type, OriginalMachineEventType); ok {
		return name
	}
	return strings.TrimPrefix(e.Type, MachineEventType)
}

// Validate reports the first part that is missing or malformed.
func (e *MachineEvent) Validate() error {
	switch {
	case !utf8.ValidString(e.ID + e.Source + e.Type):
		return errors.New("provider: machine event: an attribute is not UTF-8")
	case e.ID == "":
		return errors.New("provider: machine event: id is missing")
	case e.Source == "":
		return errors.New("provider: machine event: source is missing")
	case e.Name() == e.Type || e.Name() == "":
		return errors.New("provider: machine event: type must be " + MachineEventType + " and a name")
	case e.Time.IsZero():
		return errors.New("provider: machine event: time is missing")
	case e.MachineID == "":
		return errors.New("provider: machine event: machine_id is missing")
	}
	if e.Data != nil {
		if _, err := object(e.Data); err != nil {
			return fmt.Errorf("provider: machine event: data: %w", err)
		}
	}
	return nil
}

// NewRequest returns a POST request to a URL that carries the event. It is not signed.
func (e *MachineEvent) NewRequest(ctx context.Context, target string) (*http.Request, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	body, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("provider: machine event: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(headerSpecVersion, specVersion)
	r.Header.Set(headerID, encodeAttribute(e.ID))
	r.Header.Set(headerSource, encodeAttribute(e.Source))
	r.Header.Set(headerType, encodeAttribute(e.Type))
	r.Header.Set(headerTime, e.Time.UTC().Format(time.RFC3339Nano))
	return r, nil
}

// ReadMachineEvent reads the event in a request that a Verifier has accepted and whose body it has bounded.
func ReadMachineEvent(r *http.Request) (MachineEvent, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return MachineEvent{}, fmt.Errorf("provider: machine event: read body: %w", err)
	}
	return ParseMachineEvent(r.Header, body)
}

// ParseMachineEvent reads an event from the headers and the body of a request. It ignores unknown attributes
// and members.
func ParseMachineEvent(h http.Header, body []byte) (MachineEvent, error) {
	if media, _, err := mime.ParseMediaType(h.Get("Content-Type")); err != nil || media != "application/json" {
		return MachineEvent{}, errors.New("provider: machine event: the content type must be application/json, which is binary mode")
	}
	var e MachineEvent
	if _, err := object(body); err != nil {
		return MachineEvent{}, fmt.Errorf("provider: machine event: body: %w", err)
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return MachineEvent{}, fmt.Errorf("provider: machine event: body: %w", err)
	}
	if string(e.Data) == "null" {
		e.Data = nil
	}
	var version, at string
	for _, attribute := range []struct {
		header string
		value  *string
	}{
		{headerSpecVersion, &version}, {headerID, &e.ID}, {headerSource, &e.Source}, {headerType, &e.Type}, {headerTime, &at},
	} {
		values := h.Values(attribute.header)
		if len(values) != 1 {
			return MachineEvent{}, fmt.Errorf("provider: machine event: there must be one header %s", attribute.header)
		}
		var err error
		if *attribute.value, err = decodeAttribute(values[0]); err != nil {
			return MachineEvent{}, fmt.Errorf("provider: machine event: header %s: %w", attribute.header, err)
		}
	}
	if version != specVersion {
		return MachineEvent{}, errors.New("provider: machine event: the version of CloudEvents is not " + specVersion)
	}
	var err error
	if e.Time, err = time.Parse(time.RFC3339, at); err != nil {
		return MachineEvent{}, errors.New("provider: machine event: time is not one of RFC 3339")
	}
	return e, e.Validate()
}

// encodeAttribute encodes the value of an attribute for a header: CloudEvents 1.0.2, HTTP Protocol
// Binding, section 3.1.3.2.
func encodeAttribute(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' || c == '"' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// decodeAttribute is the inverse of encodeAttribute. It also reads strings in double quotes, which older
// versions of the specification had.
func decodeAttribute(s string) (string, error) {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = unquote(s[1 : len(s)-1])
	}
	s, err := url.PathUnescape(s)
	if err != nil {
		return "", errors.New("the value is not percent-encoded")
	}
	return s, nil
}

// unquote removes the backslashes from an HTTP quoted string: RFC 9110, section 5.6.4.
func unquote(s string) string {
	var b strings.Builder
	escaped := false
	for _, c := range []byte(s) {
		if c == '\\' && !escaped {
			escaped = true
			continue
		}
		b.WriteByte(c)
		escaped = false
	}
	return b.String()
}

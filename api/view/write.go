package view

import (
	"bytes"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/hangar-platform/hangar"
)

// Most requests are for Machines, so their views are written by hand. They equal what encoding/json
// writes of a Machine and a MachineSummary, byte for byte. But the config is not parsed again, because
// it was checked when it was sent.

// MachineBody is a Machine that is written as its view.
type MachineBody struct{ *hangar.Machine }

// WriteJSON implements Writer.
func (m MachineBody) WriteJSON(b *bytes.Buffer) error { return writeMachine(b, m.Machine) }

// MachineBodies is a list of Machines that is written as one of their views.
type MachineBodies []*hangar.Machine

// WriteJSON implements Writer.
func (list MachineBodies) WriteJSON(b *bytes.Buffer) error { return writeList(b, list, writeMachine) }

// SummaryBodies is a list of Machines that is written as one of their summaries.
type SummaryBodies []*hangar.Machine

// WriteJSON implements Writer.
func (list SummaryBodies) WriteJSON(b *bytes.Buffer) error { return writeList(b, list, writeSummary) }

func writeList(b *bytes.Buffer, list []*hangar.Machine, write func(*bytes.Buffer, *hangar.Machine) error) error {
	b.WriteByte('[')
	for i, m := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := write(b, m); err != nil {
			return err
		}
	}
	b.WriteByte(']')
	return nil
}

// writtenMachine is about the size of a Machine without its config, in bytes.
const writtenMachine = 2 << 10

// writeMachine writes what encoding/json makes of a Machine.
func writeMachine(to *bytes.Buffer, m *hangar.Machine) error {
	config, err := m.Config.Document()
	if err != nil {
		return fmt.Errorf("config of machine %s: %w", m.ID, err)
	}
	to.Grow(len(config) + writtenMachine)
	b := appendHead(to.AvailableBuffer(), m)
	if b, err = appendAddr(append(b, `,"private_ip":`...), m.PrivateIP); err != nil {
		return err
	}
	if b, err = appendImageRef(append(b, `,"image_ref":`...), m.ImageRef); err != nil {
		return err
	}
	b = strconv.AppendBool(append(b, `,"cordoned":`...), m.Cordoned)
	if m.Nonce != "" {
		b = appendText(append(b, `,"nonce":`...), m.Nonce)
	}
	if m.SecretsVersion != 0 {
		b = strconv.AppendInt(append(b, `,"secrets_version":`...), int64(m.SecretsVersion), 10)
	}
	b = appendText(append(b, `,"version":`...), m.InstanceID)
	b = append(append(b, `,"config":`...), config...)
	b = appendText(append(b, `,"incomplete_config":null,"host_status":`...), HostStatus(m))
	b = appendTime(append(b, `,"created_at":`...), m.CreatedAt)
	b = appendTime(append(b, `,"updated_at":`...), m.UpdatedAt)
	b = append(b, `,"checks":[`...)
	for i, k := range m.Checks {
		b = appendCheck(appendComma(b, i), k)
	}
	b = append(b, `],"events":[`...)
	for i := range m.Events {
		if b, err = appendEvent(appendComma(b, i), &m.Events[i]); err != nil {
			return err
		}
	}
	to.Write(append(b, ']', '}'))
	return nil
}

// writeSummary writes what encoding/json makes of a MachineSummary.
func writeSummary(to *bytes.Buffer, m *hangar.Machine) error {
	to.Grow(writtenMachine)
	b := appendHead(to.AvailableBuffer(), m)
	b = appendText(append(b, `,"version":`...), m.InstanceID)
	b, err := appendImageRef(append(b, `,"image_ref":`...), m.ImageRef)
	if err != nil {
		return err
	}
	if b, err = appendAddr(append(b, `,"private_ip":`...), m.PrivateIP); err != nil {
		return err
	}
	b = appendTime(append(b, `,"created_at":`...), m.CreatedAt)
	b = appendTime(append(b, `,"updated_at":`...), m.UpdatedAt)
	b = strconv.AppendBool(append(b, `,"cordoned":`...), m.Cordoned)
	to.Write(append(b, '}'))
	return nil
}

// appendHead appends the fields that both views begin with.
func appendHead(b []byte, m *hangar.Machine) []byte {
	b = appendText(append(b, `{"id":`...), m.ID)
	b = appendText(append(b, `,"name":`...), m.Name)
	b = appendText(append(b, `,"app_name":`...), m.App)
	b = appendText(append(b, `,"state":`...), m.State)
	b = appendText(append(b, `,"region":`...), m.Region)
	b = appendText(append(b, `,"host_id":`...), m.Host)
	return appendText(append(b, `,"instance_id":`...), m.InstanceID)
}

func appendImageRef(b []byte, ref hangar.ImageRef) ([]byte, error) {
	b = appendText(append(b, `{"registry":`...), ref.Registry)
	b = appendText(append(b, `,"repository":`...), ref.Repository)
	if ref.Tag != "" {
		b = appendText(append(b, `,"tag":`...), ref.Tag)
	}
	b = appendText(append(b, `,"digest":`...), ref.Digest)
	b = append(b, `,"labels":`...)
	if len(ref.Labels) == 0 {
		return append(b, "{}}"...), nil
	}
	b, err := appendValue(b, ref.Labels)
	return append(b, '}'), err
}

func appendCheck(b []byte, k hangar.MachineCheck) []byte {
	b = appendText(append(b, `{"name":`...), k.Name)
	b = appendText(append(b, `,"status":`...), k.Status)
	b = appendText(append(b, `,"output":`...), k.Output)
	b = appendTime(append(b, `,"updated_at":`...), k.UpdatedAt)
	return append(b, '}')
}

func appendEvent(b []byte, e *hangar.Event) ([]byte, error) {
	b = appendText(append(b, `{"id":`...), e.ID)
	b = appendText(append(b, `,"type":`...), e.Type)
	b = appendText(append(b, `,"status":`...), e.Status)
	b = appendText(append(b, `,"source":`...), e.Source)
	b = strconv.AppendInt(append(b, `,"timestamp":`...), e.Timestamp, 10)
	if e.Request == nil {
		return append(b, '}'), nil
	}
	b, err := appendValue(append(b, `,"request":`...), e.Request)
	return append(b, '}'), err
}

func appendComma(b []byte, i int) []byte {
	if i > 0 {
		return append(b, ',')
	}
	return b
}

// appendTime appends what Time writes.
func appendTime(b []byte, t time.Time) []byte {
	return append(t.UTC().AppendFormat(append(b, '"'), time.RFC3339), '"')
}

// appendText appends a JSON string. Nearly all are plain; the rest are left to
// encoding/json.
func appendText[T ~string](b []byte, s T) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			if more, err := appendValue(b, string(s)); err == nil { // which it is for every string
				return more
			}
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// appendAddr appends what encoding/json makes of an address.
func appendAddr(b []byte, a hangar.PrivateIP) ([]byte, error) {
	text, err := a.MarshalText()
	return appendText(b, string(text)), err
}

// appendValue appends what encoding/json makes of a value.
func appendValue(b []byte, v any) ([]byte, error) {
	to := bytes.NewBuffer(b)
	if err := Encode(to, v); err != nil {
		return b, err
	}
	return bytes.TrimSuffix(to.Bytes(), []byte("\n")), nil
}

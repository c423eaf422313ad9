// Package view has the JSON forms of Machines and volumes that clients of the public platform
// decode, and the encoding of all answers.
package view

import (
	"bytes"
	"encoding/json"
)

// Writer is an answer that encodes itself.
type Writer interface {
	// WriteJSON appends the answer as encoding/json would write it, but without escaping for HTML.
	WriteJSON(b *bytes.Buffer) error
}

// Encode appends an answer as JSON, with a line feed.
func Encode(b *bytes.Buffer, v any) error {
	if w, ok := v.(Writer); ok {
		err := w.WriteJSON(b)
		b.WriteByte('\n')
		return err
	}
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// OrEmpty makes a nil list [] on the wire instead of null.
func OrEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

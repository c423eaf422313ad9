package hangar

import (
	"encoding/json"
	"log/slog"
)

// redacted is what is shown in place of a Sensitive.
const redacted = "[redacted]"

// Sensitive is a text that is not shown by accident, such as the value of a secret or a
// password: printed, logged or encoded as JSON it is "[redacted]". Decoding JSON reads
// the text itself, and Reveal returns it. The zero value is no text at all, which is
// not the same as an empty one.
type Sensitive struct {
	// text is a pointer, because fmt does not follow pointers where it cannot call String.
	text *string
}

// NewSensitive returns a Sensitive with a text.
func NewSensitive(text string) Sensitive { return Sensitive{&text} }

// Reveal returns the text. The zero value has an empty one.
func (s Sensitive) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsZero reports whether there is no text.
func (s Sensitive) IsZero() bool { return s.text == nil }

// String hides the text.
func (s Sensitive) String() string {
	if s.text == nil {
		return ""
	}
	return redacted
}

// GoString hides the text.
func (s Sensitive) GoString() string { return s.String() }

// LogValue hides the text.
func (s Sensitive) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON hides the text.
func (s Sensitive) MarshalJSON() ([]byte, error) {
	if s.text == nil {
		return []byte("null"), nil
	}
	return json.Marshal(redacted)
}

// UnmarshalJSON reads the text; null is the zero value.
func (s *Sensitive) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &s.text)
}

package hangar

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Duration is a time.Duration whose JSON form is a string such as "15s". It also reads what existing
// clients send: seconds in a string without a unit, and nanoseconds as an integer.
type Duration time.Duration

// String returns the duration as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON writes a string such as "15s".
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads "15s", "15" (seconds) or 15000000000 (nanoseconds).
func (d *Duration) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] != '"' {
		var ns int64
		if err := json.Unmarshal(b, &ns); err != nil {
			return fmt.Errorf("invalid duration %s: must be a string such as \"15s\" or nanoseconds", b)
		}
		*d = Duration(ns)
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	if text == "" {
		*d = 0
		return nil
	}
	if s, err := strconv.ParseInt(text, 10, 32); err == nil {
		*d = Duration(time.Duration(s) * time.Second)
		return nil
	}
	v, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("invalid duration %q: must be a number with a unit, such as \"15s\"", text)
	}
	*d = Duration(v)
	return nil
}

package provider

import (
	"errors"
	"strconv"
	"time"
)

// Timestamp is a number of seconds since the Unix epoch. It is written as a JSON number and read from
// a number or a string.
type Timestamp int64

// Time returns the timestamp as a time in UTC.
func (t Timestamp) Time() time.Time { return time.Unix(int64(t), 0).UTC() }

// UnmarshalJSON reads 1693513586 and "1693513586".
func (t *Timestamp) UnmarshalJSON(raw []byte) error {
	text := string(raw)
	if text == "null" {
		return nil
	}
	if len(text) > 2 && text[0] == '"' && text[len(text)-1] == '"' {
		text = text[1 : len(text)-1]
	}
	parsed, err := parseTimestamp(text)
	if err != nil {
		return err
	}
	*t = parsed
	return nil
}

// parseTimestamp reads decimal digits and nothing else.
func parseTimestamp(text string) (Timestamp, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, errors.New("timestamp is not a number of seconds since 1970 in decimal digits")
	}
	return Timestamp(n), nil
}

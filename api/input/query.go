package input

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// Query reads parameters and keeps the first error, which names its parameter.
type Query struct {
	Values url.Values
	Err    error // CodeInvalid
}

// QueryOf parses the query of a request. A malformed query is an error as a whole.
func QueryOf(r *http.Request) *Query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		err = Invalid("query", "%s", err)
	}
	return &Query{Values: values, Err: err}
}

// Fail keeps an error about a parameter, unless there is one; the rule is a format with args.
func (q *Query) Fail(name, rule string, args ...any) {
	if q.Err == nil {
		q.Err = Invalid("parameter "+name, rule, args...)
	}
}

// Text reads a text of at most MaxText; missing is empty.
func (q *Query) Text(name string) string {
	v := q.Values.Get(name)
	if len(v) > MaxText {
		q.Fail(name, "has %d bytes, more than the %d that are allowed", len(v), MaxText)
		return ""
	}
	return v
}

// Bool reads true or false; missing is false.
func (q *Query) Bool(name string) bool { return q.BoolOr(name, false) }

// BoolOr reads true or false; missing is its value if there is none.
func (q *Query) BoolOr(name string, missing bool) bool {
	v := q.Text(name)
	if v == "" {
		return missing
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		q.Fail(name, "%q is not true or false", v)
	}
	return b
}

// Int reads a number from low to high; missing is 0.
func (q *Query) Int(name string, low, high int) int {
	v := q.Text(name)
	if v == "" {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > high {
		q.Fail(name, "%q is not a number from %d to %d", v, low, high)
		return 0
	}
	return n
}

// Duration reads seconds or a duration such as "10s", from 0 to limit.
func (q *Query) Duration(name string, limit time.Duration) time.Duration {
	v := q.Text(name)
	if v == "" {
		return 0
	}
	d, err := ParseDuration(v)
	if err != nil || d < 0 || d > limit {
		q.Fail(name, "%q is not a number of seconds, or a duration such as \"10s\", of at most %s", v, limit)
		return 0
	}
	return d
}

// ParseDuration reads a number of seconds, or a text such as "10s".
func ParseDuration(text string) (time.Duration, error) {
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	return time.ParseDuration(text)
}

// Words reads a parameter that may be repeated or hold a list with commas.
func (q *Query) Words(name string) []string {
	var words []string
	for _, v := range q.Values[name] {
		for w := range strings.SplitSeq(v, ",") {
			if w = strings.TrimSpace(w); w != "" {
				words = append(words, w)
			}
		}
	}
	return words
}

// States reads Machine states. also is allowed in addition.
func (q *Query) States(name string, also hangar.MachineState) []hangar.MachineState {
	var states []hangar.MachineState
	for _, w := range q.Words(name) {
		s := hangar.MachineState(w)
		if !s.Valid() && (also == "" || s != also) {
			q.Fail(name, "%q is not a state of a machine", Clip(w))
			return nil
		}
		states = append(states, s)
	}
	return states
}

// Regions reads regions, or groups of them.
func (q *Query) Regions(name string) []hangar.Region {
	var regions []hangar.Region
	for _, w := range q.Words(name) {
		if len(w) > MaxText {
			q.Fail(name, "has a word of %d bytes, more than the %d that are allowed", len(w), MaxText)
			return nil
		}
		regions = append(regions, hangar.Region(w))
	}
	return regions
}

// Time reads a time of RFC 3339; missing is the zero time.
func (q *Query) Time(name string) time.Time {
	v := q.Text(name)
	if v == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, v)
	if err != nil {
		q.Fail(name, "%q is not a time such as \"2006-01-02T15:04:05Z\"", v)
	}
	return t
}

// Signal reads the name or number of a signal; missing is 0.
func (q *Query) Signal(name string) hangar.Signal {
	v := q.Text(name)
	if v == "" {
		return 0
	}
	sig, err := hangar.ParseSignal(v)
	if err != nil {
		q.Fail(name, "%q is not the name of a signal or a number from 1 to 64", v)
	}
	return sig
}

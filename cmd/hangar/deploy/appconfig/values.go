package appconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/cmdline"
)

// Many is a section that is one table or an array of tables.
type Many[T any] []T

// UnmarshalJSON reads both forms.
func (m *Many[T]) UnmarshalJSON(raw []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		var one T
		if err := json.Unmarshal(raw, &one); err != nil {
			return err
		}
		*m = Many[T]{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]T)(m))
}

// Text is a string. Numbers and booleans become the text with which they are written.
type Text string

// UnmarshalJSON reads a scalar.
func (t *Text) UnmarshalJSON(raw []byte) error {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return err
	}
	switch v := v.(type) {
	case string:
		*t = Text(v)
	case bool:
		*t = Text(strconv.FormatBool(v))
	case json.Number:
		*t = Text(v)
	default:
		return fmt.Errorf("must be a text")
	}
	return nil
}

// Words is a command line: a list of words, or one text that is split as in a shell.
type Words []string

// UnmarshalJSON reads both forms.
func (w *Words) UnmarshalJSON(raw []byte) error {
	if !isText(raw) {
		if err := json.Unmarshal(raw, (*[]string)(w)); err != nil {
			return fmt.Errorf("must be a command: a text, or a list of words")
		}
		return nil
	}
	words, err := cmdline.Split(textOf(raw))
	*w = words
	return err
}

// Seconds is a duration; a number is in seconds.
type Seconds time.Duration

// UnmarshalJSON reads 30, "30" and "30s".
func (s *Seconds) UnmarshalJSON(raw []byte) error {
	return readDuration(raw, time.Second, (*time.Duration)(s))
}

// MarshalJSON writes "30s".
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).String()) }

// Or returns the duration, or usual if it is missing or 0.
func (s *Seconds) Or(usual time.Duration) time.Duration {
	if s == nil || *s == 0 {
		return usual
	}
	return time.Duration(*s)
}

// Millis is a duration; a number is in milliseconds.
type Millis time.Duration

// UnmarshalJSON reads 15000, "15000" and "15s".
func (m *Millis) UnmarshalJSON(raw []byte) error {
	return readDuration(raw, time.Millisecond, (*time.Duration)(m))
}

// MarshalJSON writes "15s".
func (m Millis) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(m).String()) }

// duration converts m for the config of a Machine; nil stays nil.
func (m *Millis) duration() *hangar.Duration {
	if m == nil {
		return nil
	}
	d := hangar.Duration(*m)
	return &d
}

// maxDuration bounds every duration of a file.
const maxDuration = 365 * 24 * time.Hour

func readDuration(raw []byte, unit time.Duration, to *time.Duration) error {
	text := strings.TrimSpace(string(raw))
	if isText(raw) {
		text = textOf(raw)
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 && n <= int64(maxDuration/unit) {
		*to = time.Duration(n) * unit
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxDuration {
		return fmt.Errorf("%.40q is not a duration such as \"15s\" or \"5m\"", text)
	}
	*to = d
	return nil
}

// Memory is an amount of memory in MiB.
type Memory int

// UnmarshalJSON reads 512, "512", "512mb" and "2gb".
func (m *Memory) UnmarshalJSON(raw []byte) error {
	n, err := readSize(raw, units.MiB, "\"512mb\" or \"2gb\"")
	*m = Memory(n)
	return err
}

// Gigas is a size of a volume in GiB.
type Gigas int

// UnmarshalJSON reads 10, "10" and "10gb".
func (g *Gigas) UnmarshalJSON(raw []byte) error {
	n, err := readSize(raw, units.GiB, "\"10gb\"")
	*g = Gigas(n)
	return err
}

func readSize(raw []byte, unit int64, like string) (int, error) {
	text := strings.TrimSpace(string(raw))
	if isText(raw) {
		text = textOf(raw)
	}
	if n, err := strconv.Atoi(text); err == nil && n >= 0 && n <= math.MaxInt32 {
		return n, nil
	}
	n, err := units.RAMInBytes(text)
	if err != nil || n < 0 || n%unit != 0 || n/unit > math.MaxInt32 {
		return 0, fmt.Errorf("%.40q is not a size such as %s", text, like)
	}
	return int(n / unit), nil
}

// Autostop says what is done with an idle Machine: "off", "stop" or "suspend".
type Autostop string

// UnmarshalJSON reads a word, or a boolean as older files have it.
func (a *Autostop) UnmarshalJSON(raw []byte) error {
	switch text := strings.TrimSpace(string(raw)); text {
	case "true", `"stop"`:
		*a = "stop"
	case "false", `"off"`:
		*a = "off"
	case `"suspend"`:
		*a = "suspend"
	default:
		return fmt.Errorf("%.40s is not \"off\", \"stop\" or \"suspend\"", text)
	}
	return nil
}

// value converts a for the config of a Machine.
func (a Autostop) value() any {
	switch a {
	case "stop":
		return true
	case "off":
		return false
	default:
		return string(a)
	}
}

// Strategy is the order in which a deploy changes Machines.
type Strategy string

// Strategies returns the supported strategies.
func Strategies() []Strategy {
	return []Strategy{
		Strategy(hangar.StrategyRolling), Strategy(hangar.StrategyRollingOne), Strategy(hangar.StrategyCanary),
		Strategy(hangar.StrategyBlueGreen), Strategy(hangar.StrategyImmediate),
	}
}

// ParseStrategy reads a strategy in any case; "blue-green" is another word for bluegreen.
func ParseStrategy(text string) (Strategy, error) {
	s := Strategy(strings.ToLower(text))
	if s == "blue-green" || s == "blue_green" {
		s = Strategy(hangar.StrategyBlueGreen)
	}
	if !slices.Contains(Strategies(), s) {
		return "", fmt.Errorf("%.40q is none of %v", text, Strategies())
	}
	return s, nil
}

// UnmarshalJSON reads a strategy.
func (s *Strategy) UnmarshalJSON(raw []byte) (err error) {
	if !isText(raw) {
		return fmt.Errorf("must be one of %v", Strategies())
	}
	*s, err = ParseStrategy(textOf(raw))
	return err
}

// Fraction is a number of Machines, or if below 1, a fraction of all Machines.
type Fraction float64

// UnmarshalJSON reads 2, 0.33, "2" and "0.33".
func (f *Fraction) UnmarshalJSON(raw []byte) error {
	text := strings.TrimSpace(string(raw))
	if isText(raw) {
		text = textOf(raw)
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0) || v > 1000 || v > 1 && v != math.Trunc(v) {
		return fmt.Errorf("%.40q is neither a number of Machines from 1 on nor a fraction between 0 and 1", text)
	}
	*f = Fraction(v)
	return nil
}

// Of returns how many of n Machines it means, at least one.
func (f Fraction) Of(n int) int {
	if f >= 1 {
		return int(f)
	}
	return max(1, int(math.Floor(float64(f)*float64(n))))
}

func isText(raw []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(raw), []byte(`"`)) }

// textOf returns the value of a JSON string, or "" for an invalid one.
func textOf(raw []byte) string {
	var text string
	_ = json.Unmarshal(raw, &text) // the caller has checked it by isText
	return text
}

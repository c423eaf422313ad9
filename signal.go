package hangar

import (
	"encoding/json"
	"strconv"
	"strings"
	"syscall"
)

// Signal is a POSIX signal by its Linux number. Its JSON form is the name.
type Signal int

var signalNames = map[Signal]string{
	Signal(syscall.SIGHUP): "SIGHUP", Signal(syscall.SIGINT): "SIGINT", Signal(syscall.SIGQUIT): "SIGQUIT",
	Signal(syscall.SIGABRT): "SIGABRT", Signal(syscall.SIGKILL): "SIGKILL", Signal(syscall.SIGUSR1): "SIGUSR1",
	Signal(syscall.SIGUSR2): "SIGUSR2", Signal(syscall.SIGPIPE): "SIGPIPE", Signal(syscall.SIGALRM): "SIGALRM",
	Signal(syscall.SIGTERM): "SIGTERM", Signal(syscall.SIGCONT): "SIGCONT", Signal(syscall.SIGSTOP): "SIGSTOP",
	Signal(syscall.SIGTSTP): "SIGTSTP", Signal(syscall.SIGWINCH): "SIGWINCH",
}

// String returns the name, e.g. "SIGINT", or the number.
func (s Signal) String() string {
	if n, ok := signalNames[s]; ok {
		return n
	}
	return strconv.Itoa(int(s))
}

// ParseSignal reads "SIGTERM", "TERM", "sigterm" or "15". The error is CodeInvalid.
func ParseSignal(text string) (Signal, error) {
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n < 65 {
		return Signal(n), nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	for s, n := range signalNames {
		if n == name {
			return s, nil
		}
	}
	return 0, Errorf(CodeInvalid, "", "invalid signal %q: must be a name such as SIGTERM or a number from 1 to 64", text)
}

// MarshalJSON writes the name.
func (s Signal) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalJSON reads a name, a number, or an object {"signal": …}, as clients of
// the public platform send all three. Null and "" leave the signal unset.
func (s *Signal) UnmarshalJSON(b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	if m, ok := v.(map[string]any); ok {
		for key := range m {
			if key != "signal" {
				return Errorf(CodeInvalid, "", "invalid signal: unknown property %.40q, an object has \"signal\" alone", key)
			}
		}
		v = m["signal"]
	}
	var err error
	switch v := v.(type) {
	case nil:
	case float64:
		*s, err = ParseSignal(strconv.FormatFloat(v, 'f', -1, 64))
	case string:
		if v != "" {
			*s, err = ParseSignal(v)
		}
	default:
		err = Errorf(CodeInvalid, "", "invalid signal %s: must be a name or a number", b)
	}
	return err
}

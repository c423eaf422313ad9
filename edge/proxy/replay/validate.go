package replay

import (
	"strings"

	"github.com/hangar-platform/hangar"
)

// validate checks what both forms share.
func (in *Instruction) validate() error {
	switch {
	case in.Instance != "" && !word(string(in.Instance)):
		return refused("instance %q is not the id of a Machine", in.Instance)
	case in.PreferInstance != "" && !word(string(in.PreferInstance)):
		return refused("prefer_instance %q is not the id of a Machine", in.PreferInstance)
	case in.Instance != "" && in.PreferInstance != "":
		return refused("instance and prefer_instance are given both")
	case in.App != "" && !word(string(in.App)):
		return refused("app %q is not the name of an app", in.App)
	case len(in.State) > MaxState:
		return refused("state is longer than %d bytes", MaxState)
	case strings.ContainsFunc(in.State, control):
		return refused("state contains control characters")
	}
	switch in.Fallback {
	case FallbackNone, FallbackForce, FallbackPrefer:
	default:
		return refused("fallback is %q, not %q or %q", in.Fallback, FallbackForce, FallbackPrefer)
	}
	return nil
}

// Cacheable reports whether the target may be remembered for other requests: it depends on
// nothing of this request alone.
func (in *Instruction) Cacheable() bool {
	return in.State == "" && in.Transform == nil && in.Timeout == 0 && in.Fallback == FallbackNone && !in.Elsewhere
}

// word reports whether s can be a name or an id: a label of a hostname.
func word(s string) bool {
	return len(s) <= 63 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}

// control reports whether a character can end or hide a header.
func control(r rune) bool { return r < ' ' || r == 0x7f }

// Source is the value of hangar.HeaderReplaySource.
type Source struct {
	Instance hangar.MachineID // who asked for the replay
	Region   hangar.Region    // where that was
	Time     int64            // microseconds since 1970
	State    string
}

// String writes the header.
func (s Source) String() string {
	var b strings.Builder
	pair(&b, "instance", string(s.Instance))
	pair(&b, "region", string(s.Region))
	number(&b, "t", s.Time)
	if s.State != "" {
		pair(&b, "state", s.State)
	}
	return b.String()
}

// FailReason says why a request could not be replayed.
type FailReason string

// The reasons why a request was not replayed.
const (
	FailTimeout     FailReason = "timeout"
	FailRetries     FailReason = "retries_exhausted"
	FailNoCandidate FailReason = "no_candidate"
)

// Failed is the value of hangar.HeaderReplayFailed: where a request was to go before it fell
// back.
type Failed struct {
	Instance hangar.MachineID
	App      hangar.AppName
	Regions  []hangar.Region
	Source   hangar.MachineID // who asked for the replay
	Reason   FailReason
	Elapsed  int64 // milliseconds
}

// String writes the header.
func (f Failed) String() string {
	var b strings.Builder
	if f.Instance != "" {
		pair(&b, "instance", string(f.Instance))
	}
	if f.App != "" {
		pair(&b, "app", string(f.App))
	}
	if len(f.Regions) > 0 {
		list := make([]string, len(f.Regions))
		for i, r := range f.Regions {
			list[i] = string(r)
		}
		pair(&b, "region", strings.Join(list, ","))
	}
	pair(&b, "replay_source", string(f.Source))
	pair(&b, "reason", string(f.Reason))
	number(&b, "elapsed_ms", f.Elapsed)
	return b.String()
}

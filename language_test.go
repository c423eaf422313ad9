package hangar_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func TestDurationJSON(t *testing.T) {
	for sent, want := range map[string]time.Duration{
		`"15s"`: 15 * time.Second, `"15"`: 15 * time.Second, `15000000000`: 15 * time.Second, `"1m30s"`: 90 * time.Second,
		`""`: 0, `0`: 0, `-1`: -1, `"250ms"`: 250 * time.Millisecond,
	} {
		var d hangar.Duration
		if err := json.Unmarshal([]byte(sent), &d); err != nil || time.Duration(d) != want {
			t.Errorf("%s is read as %s, %v; want %s", sent, d, err, want)
			continue
		}
		raw, err := json.Marshal(d)
		var again hangar.Duration
		if err != nil || json.Unmarshal(raw, &again) != nil || again != d {
			t.Errorf("%s is written as %s, %v", d, raw, err)
		}
	}
	for _, bad := range []string{`"soon"`, `1.5`, `true`, `{}`, `"99999999999999999999"`, `99999999999999999999`} {
		var d hangar.Duration
		if err := json.Unmarshal([]byte(bad), &d); err == nil {
			t.Errorf("%s is read as %s", bad, d)
		}
	}
}

func TestSignalJSON(t *testing.T) {
	for sent, want := range map[string]hangar.Signal{
		`"SIGTERM"`: 15, `"term"`: 15, `"15"`: 15, `15`: 15, `{"signal":"SIGKILL"}`: 9, `{"signal":9}`: 9, `null`: 0, `""`: 0, `{}`: 0, `64`: 64,
	} {
		var s hangar.Signal
		if err := json.Unmarshal([]byte(sent), &s); err != nil || s != want {
			t.Errorf("%s is read as %s, %v; want %s", sent, s, err, want)
		}
	}
	for _, bad := range []string{`"SIGNOTHING"`, `0`, `65`, `-9`, `1.5`, `true`, `[9]`, `{"signal":[]}`} {
		var s hangar.Signal
		if err := json.Unmarshal([]byte(bad), &s); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%s is read as %s, %v", bad, s, err)
		}
	}
	for s := hangar.Signal(1); s <= 64; s++ {
		raw, err := json.Marshal(s)
		var again hangar.Signal
		if err != nil || json.Unmarshal(raw, &again) != nil || again != s {
			t.Errorf("signal %d is written as %s, %v, and read as %d", int(s), raw, err, int(again))
		}
	}
}

func TestStates(t *testing.T) {
	states := hangar.MachineStates()
	for _, from := range states {
		if !from.Valid() {
			t.Errorf("%s is not valid", from)
		}
		for _, to := range states {
			switch got := from.CanBecome(to); {
			case from == to && got:
				t.Errorf("%s may follow itself", from)
			case from == hangar.MachineDestroyed && got:
				t.Errorf("a destroyed machine may become %s", to)
			case from == hangar.MachineDestroying && got != (to == hangar.MachineDestroyed):
				t.Errorf("a machine that is being destroyed may become %s: %t", to, got)
			case to == hangar.MachineDestroying && from != hangar.MachineDestroyed && from != hangar.MachineDestroying && !got:
				t.Errorf("a machine in %s cannot be destroyed", from)
			}
		}
		if !from.Settled() && reach(from, hangar.MachineState.Settled) == "" {
			t.Errorf("%s never settles", from)
		}
		if from != hangar.MachineDestroyed && from.NeedsForce() && from.Answers(hangar.VerbDestroy) != hangar.Accept {
			t.Errorf("%s needs force but is not destroyed even with it", from)
		}
	}
	if hangar.MachineState("flying").Valid() || hangar.WaitSettled.Valid() {
		t.Error("a state that is none is valid")
	}
	for _, v := range []hangar.Verb{"start", "stop", "suspend", "restart", "update", "exec", "annotate", "destroy", "lease"} {
		accepted := 0
		for _, s := range states {
			if s.Answers(v) == hangar.Accept {
				accepted++
			}
			if v != hangar.VerbDestroy && (s == hangar.MachineDestroying || s == hangar.MachineDestroyed) && s.Answers(v) != hangar.Refuse {
				t.Errorf("a machine in %s does not refuse to %s", s, v)
			}
		}
		if accepted == 0 {
			t.Errorf("%s is never accepted", v)
		}
	}
}

// reach returns a state that satisfies want and that follows from, or "".
func reach(from hangar.MachineState, want func(hangar.MachineState) bool) hangar.MachineState {
	seen, todo := map[hangar.MachineState]bool{}, []hangar.MachineState{from}
	for len(todo) > 0 {
		s := todo[0]
		todo = todo[1:]
		for _, next := range hangar.MachineStates() {
			if s.CanBecome(next) && !seen[next] {
				if want(next) {
					return next
				}
				seen[next] = true
				todo = append(todo, next)
			}
		}
	}
	return ""
}

func TestErrors(t *testing.T) {
	cause := hangar.Errorf(hangar.CodeNotFound, hangar.ReasonAppNotFound, "no app: %w", io.EOF)
	if cause.Error() != "no app: EOF" || !errors.Is(cause, io.EOF) {
		t.Errorf("error %q is EOF: %t", cause, errors.Is(cause, io.EOF))
	}
	wrapped := fmt.Errorf("get: %w", cause)
	if hangar.CodeOf(wrapped) != hangar.CodeNotFound || hangar.ReasonOf(wrapped) != hangar.ReasonAppNotFound {
		t.Errorf("wrapping changes the code to %s %s", hangar.CodeOf(wrapped), hangar.ReasonOf(wrapped))
	}
	outer := &hangar.Error{Code: hangar.CodeUnavailable, Message: "later", Err: wrapped}
	if hangar.CodeOf(outer) != hangar.CodeUnavailable || outer.Error() != "later: get: no app: EOF" {
		t.Errorf("outermost error is %s %q", hangar.CodeOf(outer), outer)
	}
	for err, want := range map[error]hangar.Code{
		nil: "", io.EOF: hangar.CodeInternal, context.DeadlineExceeded: hangar.CodeTimeout, context.Canceled: hangar.CodeInternal,
	} {
		if got := hangar.CodeOf(err); got != want {
			t.Errorf("code of %v is %q, want %q", err, got, want)
		}
	}
	if _, err := hangar.PrincipalFrom(t.Context()); hangar.CodeOf(err) != hangar.CodeUnauthenticated {
		t.Errorf("a context without a principal gives %v", err)
	}
}

func TestIDs(t *testing.T) {
	for range 100 {
		if id := hangar.NewMachineID(); !id.Valid() {
			t.Fatalf("made the id %q", id)
		}
	}
	for _, bad := range []hangar.MachineID{"", "0000000000000", "000000000000000", "D891234A567E89", "../../etc/pass", "d891234a567e8g"} {
		if bad.Valid() {
			t.Errorf("%q is valid", bad)
		}
	}
	now := time.Date(2026, 8, 14, 0, 0, 0, 0, time.UTC)
	if a, b := hangar.NewInstanceID(now), hangar.NewInstanceID(now.Add(time.Millisecond)); a >= b || len(a) != 26 {
		t.Errorf("%s does not sort before %s", a, b)
	}
}

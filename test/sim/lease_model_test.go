package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// The requests of a client to a Machine that may be leased.
const (
	opAcquire = "acquire" // or refresh
	opRelease = "release"
	opLease   = "lease"  // look at it
	opUpdate  = "update" // of a version that is known, or of whichever there is
	opMachine = "machine"
	opGuarded = "guarded" // a verb that changes nothing
)

// How the platform answered.
const (
	done     = "done"
	held     = "held"      // another has the lease
	notHeld  = "not held"  // there is no lease, or not this one
	stale    = "stale"     // another version than the one named
	busy     = "busy"      // the state forbids it
	noAnswer = "no answer" // the daemon died: it happened or not
)

// leaseInput is an operation. Times are Unix nanoseconds.
type leaseInput struct {
	op      string
	id      int    // of the operation, never 0
	nonce   string // shown; "": none
	ttl     time.Duration
	current string // opUpdate: the version that must be there, "": any
	call    int64
}

// leaseOutput is its answer.
type leaseOutput struct {
	answer  string
	nonce   string // of the lease
	by      int    // operation that acquired or refreshed the lease last; or that wrote the version
	expires int64
	version string // of the Machine
	back    int64
}

// leaseState is what a Machine can be: leased until a time, at a version. The result of an
// operation without an answer is "?" until a client has seen it.
type leaseState struct {
	nonce   string // "": not leased
	by      int    // operation that acquired or refreshed it last
	expires int64  // when it ends; of an unseen one, the soonest
	unseen  bool   // expires is the soonest
	version string
	wrote   int   // operation that wrote the version
	now     int64 // no operation so far can have happened after this
}

const unseen = "?"

// leaseModel is a lease beside a register that is changed by compare-and-swap. Time
// passes: a lease ends by itself once its time has come, and not before.
func leaseModel(version string) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{leaseState{version: version}} },
		Step: func(state, input, output any) (next []any) {
			s, in, out := state.(leaseState), input.(leaseInput), output.(leaseOutput)
			for _, before := range s.elapse(in.call, out.back) {
				for _, after := range before.step(in, out) {
					next = append(next, after)
				}
			}
			return next
		},
		DescribeOperation: func(in, out any) string { return describeLeaseOp(in.(leaseInput), out.(leaseOutput)) },
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
	}
	return m.ToModel()
}

// elapse returns what s can be at a moment between call and back: as it was, or
// after the end of the lease.
func (s leaseState) elapse(call, back int64) (states []leaseState) {
	s.now = max(s.now, call)
	if s.nonce == "" || s.unseen || s.now < s.expires {
		states = append(states, s)
	}
	if s.nonce != "" && back >= s.expires {
		s.now = max(s.now, s.expires)
		states = append(states, s.unleased())
	}
	return states
}

func (s leaseState) unleased() leaseState {
	s.nonce, s.by, s.expires, s.unseen = "", 0, 0, false
	return s
}

// step returns what s can be after an operation, none if it cannot be answered so.
func (s leaseState) step(in leaseInput, out leaseOutput) []leaseState {
	admitted := s.nonce == "" || s.nonce == in.nonce
	if out.answer == held {
		return s.when(!admitted)
	}
	switch in.op {
	case opAcquire:
		return s.acquire(in, out, admitted)
	case opRelease:
		mine := s.nonce != "" && s.nonce == in.nonce
		return s.choose(out.answer, notHeld, mine, s.unleased())
	case opLease:
		if out.answer == notHeld {
			return s.when(s.nonce == "")
		}
		return s.see(out)
	case opUpdate:
		matches := in.current == "" || in.current == s.version
		switch out.answer {
		case busy:
			return s.when(admitted)
		case stale:
			return s.when(admitted && !matches)
		}
		next := s
		next.version, next.wrote = out.version, in.id
		if out.answer == noAnswer {
			next.version = unseen
		}
		return s.choose(out.answer, "", admitted && matches, next)
	case opMachine:
		if s.version == unseen && s.wrote == out.by {
			s.version = out.version
		}
		return s.when(s.version == out.version && s.wrote == out.by)
	default:
		return s.when(admitted || out.answer == noAnswer)
	}
}

func (s leaseState) acquire(in leaseInput, out leaseOutput, admitted bool) []leaseState {
	next := s
	next.by, next.expires, next.unseen = in.id, out.expires, false
	switch {
	case out.answer == noAnswer:
		next.expires, next.unseen = in.call+int64(in.ttl), true
		if s.nonce == "" {
			next.nonce = unseen
		}
	case s.nonce == "":
		admitted = out.nonce != in.nonce // a nonce does not come back
		next.nonce = out.nonce
	default:
		admitted = admitted && out.nonce == s.nonce
	}
	return s.choose(out.answer, "", admitted, next)
}

// see returns s if out can be what a client saw of its lease.
func (s leaseState) see(out leaseOutput) []leaseState {
	if s.nonce == unseen {
		s.nonce = out.nonce
	}
	if s.unseen && out.expires >= s.expires {
		s.expires, s.unseen = out.expires, false
	}
	return s.when(s.nonce == out.nonce && s.by == out.by && s.expires == out.expires &&
		(s.version == out.version || s.version == unseen))
}

// choose returns what follows an operation that takes effect if possible holds, and
// else is answered with refused.
func (s leaseState) choose(answer, refused string, possible bool, effect leaseState) []leaseState {
	switch {
	case answer == noAnswer && possible:
		return []leaseState{s, effect}
	case answer == noAnswer:
		return []leaseState{s}
	case answer == done && possible:
		return []leaseState{effect}
	case answer == refused:
		return s.when(!possible)
	default:
		return nil
	}
}

func (s leaseState) when(possible bool) []leaseState {
	if possible {
		return []leaseState{s}
	}
	return nil
}

func describeLeaseOp(in leaseInput, out leaseOutput) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#%d %s", in.id, in.op)
	for _, p := range []struct{ name, value string }{{"nonce", in.nonce}, {"current", in.current}} {
		if p.value != "" {
			fmt.Fprintf(&b, " %s=%s", p.name, p.value)
		}
	}
	fmt.Fprintf(&b, " → %s", out.answer)
	if out.nonce != "" {
		fmt.Fprintf(&b, " %s by #%d until %s", out.nonce, out.by, time.Unix(0, out.expires).Format("05.000"))
	}
	if out.version != "" {
		fmt.Fprintf(&b, " version %s by #%d", out.version, out.by)
	}
	return b.String()
}

// TestLeaseModel makes sure that the model accepts right histories and refuses wrong ones.
func TestLeaseModel(t *testing.T) {
	const hour = int64(time.Hour)
	op := func(from, to int64, in leaseInput, out leaseOutput) porcupine.Operation {
		in.call, out.back = from, to
		return porcupine.Operation{Input: in, Call: from, Output: out, Return: to}
	}
	acquired := op(1, 2, leaseInput{op: opAcquire, id: 1, ttl: time.Hour}, leaseOutput{answer: done, nonce: "a", by: 1, expires: hour, version: "v"})
	for name, test := range map[string]struct {
		right bool
		last  []porcupine.Operation
	}{
		"another holds":   {true, []porcupine.Operation{op(3, 4, leaseInput{op: opAcquire, id: 2}, leaseOutput{answer: held})}},
		"two hold":        {false, []porcupine.Operation{op(3, 4, leaseInput{op: opAcquire, id: 2}, leaseOutput{answer: done, nonce: "b", by: 2, expires: hour})}},
		"it is lost":      {false, []porcupine.Operation{op(3, 4, leaseInput{op: opLease, id: 2}, leaseOutput{answer: notHeld})}},
		"it ends":         {true, []porcupine.Operation{op(hour, hour+1, leaseInput{op: opLease, id: 2}, leaseOutput{answer: notHeld})}},
		"it does not end": {false, []porcupine.Operation{op(hour, hour+1, leaseInput{op: opAcquire, id: 2}, leaseOutput{answer: held})}},
		"refreshed": {true, []porcupine.Operation{
			op(3, 4, leaseInput{op: opAcquire, id: 2, nonce: "a"}, leaseOutput{answer: done, nonce: "a", by: 2, expires: 2 * hour}),
			op(hour, hour+1, leaseInput{op: opLease, id: 3}, leaseOutput{answer: done, nonce: "a", by: 2, expires: 2 * hour, version: "v"}),
		}},
		"refreshed to another nonce": {false, []porcupine.Operation{
			op(3, 4, leaseInput{op: opAcquire, id: 2, nonce: "a"}, leaseOutput{answer: done, nonce: "b", by: 2, expires: 2 * hour}),
		}},
		"update by another": {false, []porcupine.Operation{op(3, 4, leaseInput{op: opUpdate, id: 2}, leaseOutput{answer: done, version: "w"})}},
		"update without effect": {false, []porcupine.Operation{
			op(3, 4, leaseInput{op: opUpdate, id: 2, nonce: "a"}, leaseOutput{answer: done, version: "w"}),
			op(5, 6, leaseInput{op: opMachine, id: 3}, leaseOutput{answer: done, version: "v"}),
		}},
		"two updates of one version": {false, []porcupine.Operation{
			op(3, 5, leaseInput{op: opUpdate, id: 2, nonce: "a", current: "v"}, leaseOutput{answer: done, version: "w"}),
			op(3, 5, leaseInput{op: opUpdate, id: 3, nonce: "a", current: "v"}, leaseOutput{answer: done, version: "x"}),
		}},
		"update that got no answer": {true, []porcupine.Operation{
			op(3, 5, leaseInput{op: opUpdate, id: 2, nonce: "a", current: "v"}, leaseOutput{answer: noAnswer}),
			op(6, 7, leaseInput{op: opMachine, id: 3}, leaseOutput{answer: done, version: "w", by: 2}),
		}},
		"update that took effect too late": {false, []porcupine.Operation{
			op(3, 5, leaseInput{op: opUpdate, id: 2, nonce: "a", current: "v"}, leaseOutput{answer: noAnswer}),
			op(6, 7, leaseInput{op: opMachine, id: 3}, leaseOutput{answer: done, version: "v"}),
			op(8, 9, leaseInput{op: opMachine, id: 4}, leaseOutput{answer: done, version: "w", by: 2}),
		}},
		"release that got no answer": {true, []porcupine.Operation{
			op(3, 5, leaseInput{op: opRelease, id: 2, nonce: "a"}, leaseOutput{answer: noAnswer}),
			op(6, 7, leaseInput{op: opAcquire, id: 3}, leaseOutput{answer: done, nonce: "b", by: 3, expires: hour}),
		}},
		"release by another": {false, []porcupine.Operation{op(3, 4, leaseInput{op: opRelease, id: 2, nonce: "b"}, leaseOutput{answer: done})}},
	} {
		history := append([]porcupine.Operation{acquired}, test.last...)
		if got := porcupine.CheckOperations(leaseModel("v"), history); got != test.right {
			t.Errorf("%s: the model says %t", name, got)
		}
	}
}
